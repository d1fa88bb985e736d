"""Parquet files without pyarrow, and such as are none: a sentence wherever they are read."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from doubtless.data.streams.parquet import lists_files, read_plain_columns
from doubtless.embedding import read_embedding
from doubtless.errors import InputError
from doubtless.parquet import arrow_and_parquet

READERS = (lists_files, read_plain_columns, read_embedding)


@pytest.mark.parametrize("read", READERS)
def test_what_is_no_parquet_file_is_said_to_be_none(read: Callable[[Path], Any], tmp_path: Path) -> None:
    path = tmp_path / "photos.parquet"
    path.write_bytes(b"not a table")
    with pytest.raises(InputError, match=r"photos\.parquet is no readable parquet file"):
        read(path)


@pytest.mark.parametrize("read", READERS)
def test_without_pyarrow_the_extra_is_named(
    read: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "photos.parquet"
    path.write_bytes(b"not a table")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"photos\.parquet is a parquet file; .*doubtless\[parquet\]"):
        read(path)
    with pytest.raises(
        InputError, match=r"^Parquet files need pyarrow: pip install 'doubtless\[parquet\]'\.$"
    ):
        arrow_and_parquet()
