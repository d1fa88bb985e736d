"""What is Qdrant's alone: addresses, one process per folder, collections of somebody else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from doubtless.errors import InputError, StoreError
from doubtless.index.backends import create_index_at, open_index
from doubtless.index.qdrant.connection import QDRANT
from tests.index.test_search import names
from tests.reference.gallery import drawn

GALLERY = drawn("gaussian-scalar", 40, dim=4, seed=1)


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_every_kind_is_exact_in_a_folder(tmp_path: Path, kind: str) -> None:
    """HNSW is a server's; vectors are lifted for it all the same, and rank alike."""
    with (
        create_index_at(f"qdrant:{tmp_path}/a", family="gaussian", dim=4, variances=1, kind=kind) as index,  # type: ignore[arg-type]
        create_index_at(f"{tmp_path}/b", family="gaussian", dim=4, variances=1) as folder,
    ):
        for one in (index, folder):
            one.add(GALLERY, names(40))
        for score in ("direction", "expected-distance"):
            found, wanted = (one.search(GALLERY[:7], 5, score=score) for one in (index, folder))  # type: ignore[arg-type]
            assert torch.equal(found.row, wanted.row)
            assert torch.equal(found.score, wanted.score)
        assert (index.stats()["searched_by"], index.stats()["recall@10"]) == ("flat", 1.0)


def test_a_folder_belongs_to_one_process(tmp_path: Path) -> None:
    name = f"qdrant:{tmp_path}/a"
    code = f"import doubtless.index.backends as b; b.open_index({name!r})"
    with create_index_at(name, family="point", dim=2), open_index(name) as twice:
        assert len(twice) == 0
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
        assert "is open in another process" in done.stderr
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_what_it_cannot_be_is_refused(tmp_path: Path) -> None:
    from qdrant_client import QdrantClient, models

    for wrong in ("qdrant:", "qdrant:http://", "qdrant:http://host:1/a/b", "qdrant:http://host:1?a=b"):
        with pytest.raises(InputError, match="accepted: qdrant:"):
            open_index(wrong)
    with pytest.raises(InputError, match="'auto', 'flat' or 'hnsw', got kind 'ivf'"):
        create_index_at(f"qdrant:{tmp_path}/a", family="point", dim=4, kind="ivf")
    with pytest.raises(InputError, match="at most 65,535 numbers per vector"):
        create_index_at(f"qdrant:{tmp_path}/a", family="point", dim=70_000)
    with pytest.raises(StoreError, match="did not do what was asked"):
        open_index("qdrant:http://127.0.0.1:9")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(InputError, match="is nothing of Qdrant's local mode"):
        create_index_at(f"qdrant:{tmp_path}/other", family="point", dim=4)
    client = QdrantClient(path=str(tmp_path / "theirs"))
    client.create_collection(
        "doubtless", vectors_config=models.VectorParams(size=2, distance=models.Distance.DOT)
    )
    client.close()
    with pytest.raises(InputError, match="that is none of doubtless's"):
        create_index_at(f"qdrant:{tmp_path}/theirs", family="point", dim=4)
    assert QDRANT.parse("qdrant:http://me@h:1/x").beside("work") == Path(".qdrant-h-1-x.work")
