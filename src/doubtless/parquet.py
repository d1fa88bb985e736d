"""Parquet files by pyarrow, which is an extra: what is missing, or cannot be read, is said in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from doubtless.errors import InputError


def arrow_and_parquet(what: str = "Parquet files need") -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet; `what` begins the sentence where they are not installed."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError(f"{what} pyarrow: pip install 'doubtless[parquet]'.") from None
    return pyarrow, parquet


def opened_parquet(path: Path) -> Any:
    """pyarrow's reader of a file."""
    _, parquet = arrow_and_parquet(f"{path} is a parquet file; reading it needs")
    try:
        return parquet.ParquetFile(path)
    except Exception as error:  # pyarrow's own errors are of several kinds
        raise InputError(f"{path} is no readable parquet file: {error}.") from error
