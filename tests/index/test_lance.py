"""What is LanceDB's alone: several processes over a folder, compaction, tables of somebody else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from doubtless.errors import InputError, StoreError
from doubtless.index.backends import create_index_at, open_index
from tests.index.test_search import names
from tests.reference.gallery import drawn

GALLERY = drawn("vmf", 40, dim=4, seed=1)


def test_what_another_process_has_written_is_seen(tmp_path: Path) -> None:
    name = f"lancedb:{tmp_path}/a"
    code = f"""
import torch
from doubtless import Embedding
from doubtless.index.backends import open_index
with open_index({name!r}, writable=True) as index:
    index.add(Embedding.vmf(torch.eye(4), torch.ones(4)), list("wxyz"), labels=["new"] * 4)
"""
    with create_index_at(name, family="vmf", dim=4) as index:
        index.add(GALLERY[:10], names(10))
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert (len(index), index.ids()[10:], index.label_names) == (14, list("wxyz"), ["new"])
        assert index.search(GALLERY[:1], 20).found.sum() == 14
        with pytest.raises(StoreError, match="was opened for writing by another since"):
            index.remove(["x"])


def test_compaction_changes_no_row_and_no_hit(tmp_path: Path) -> None:
    with create_index_at(f"lancedb:{tmp_path}/a", family="vmf", dim=4) as index:
        for start in range(0, 40, 5):
            index.add(GALLERY[start : start + 5], names(5, start))
        index.remove(names(5))
        before = index.search(GALLERY, 8)
        index.compact()
        after = index.search(GALLERY, 8)
        assert torch.equal(before.row, after.row)
        assert torch.equal(before.score, after.score)
        assert index.rows.tolist() == list(range(5, 40))


def test_what_it_cannot_be_is_refused(tmp_path: Path) -> None:
    import lancedb

    for wrong in ("lancedb:", "lancedb:s3://bucket"):
        with pytest.raises(InputError, match="accepted: lancedb:FOLDER"):
            open_index(wrong)
    for kind in ("hnsw", "ivf"):
        with pytest.raises(InputError, match=f"'auto' or 'flat', got kind '{kind}'"):
            create_index_at(f"lancedb:{tmp_path}/a", family="point", dim=4, kind=kind)  # type: ignore[arg-type]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(InputError, match="is nothing of LanceDB's"):
        create_index_at(f"lancedb:{tmp_path}/other", family="point", dim=4)
    lancedb.connect(str(tmp_path / "theirs")).create_table("items", [{"a": 1}])
    with pytest.raises(InputError, match="that is none of doubtless's"):
        create_index_at(f"lancedb:{tmp_path}/theirs", family="point", dim=4)
