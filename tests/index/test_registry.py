"""Indexes by their names: schemes, folders that look like one, and a backend of another package from end to end."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

from doubtless import registry
from doubtless.embedding import Embedding
from doubtless.errors import InputError, StoreError
from doubtless.index.backends import INDEXES, backend_of, create_index_at, folder_beside, open_index
from doubtless.index.construction import Construction
from doubtless.index.database.migration import migrate
from doubtless.index.folder import FolderIndex
from doubtless.index.milvus.index import MilvusIndex
from doubtless.index.settings import Settings
from doubtless.ingest.create import create_index
from doubtless.ingest.shards import BadImage, EmbeddedShard
from tests.index.memory_index import MemoryIndex

POINTS = Embedding.point(torch.eye(4))
SETTINGS = Settings("point", 4, 0)


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The backend as an installed package has it: by an entry point."""
    entry = EntryPoint("memory", "tests.index.memory_index:MemoryIndex", "doubtless.indexes")
    monkeypatch.setattr(registry, "entry_points", lambda *, group: [entry] if group == INDEXES.group else [])
    monkeypatch.setattr(INDEXES, "_items", {"folder": FolderIndex, "milvus": MilvusIndex})
    monkeypatch.setattr(INDEXES, "_searched", False)
    monkeypatch.setattr(INDEXES, "_searching", False)
    monkeypatch.setattr(MemoryIndex, "stores", {})
    monkeypatch.chdir(tmp_path)


def shard(count: int = 4, bad: tuple[BadImage, ...] = ()) -> EmbeddedShard:
    ids = [f"item {number}" for number in range(count)]
    return EmbeddedShard(POINTS[:count], ids, ["cat"] * count, [None] * count, [{}] * count, list(bad))


def test_folders_and_schemes(memory: None, tmp_path: Path) -> None:
    for name in ("gallery", "./a:b", "/tmp/a:b", "C:\\x", "c:x", "2024:may", "", Path("milvus:x")):
        assert backend_of(name) == (FolderIndex, name)
    assert backend_of("milvus:x.db") == (MilvusIndex, "milvus:x.db")
    assert backend_of("memory:x") == (MemoryIndex, "memory:x")
    assert backend_of("folder:a:b") == (FolderIndex, "a:b")
    with pytest.raises(
        InputError, match=r"no index backend 'milvs'; did you mean 'milvus'\? .*written \./NAME"
    ):
        open_index("milvs:x.db")
    with pytest.raises(InputError, match="no index backend 'qdrant'; accepted: folder, memory, milvus"):
        create_index_at("qdrant:http://host", family="point", dim=4)
    with create_index_at(tmp_path / "qdrant:x", family="point", dim=4) as index:
        index.add(POINTS, list("abcd"))
    with open_index("qdrant:x") as index, open_index("folder:qdrant:x") as same:
        assert len(index) == len(same) == 4
    with pytest.raises(InputError, match="must be a subclass of Index, got <class 'int'>"):
        INDEXES.register("number", int)  # type: ignore[arg-type]


def test_a_plugin_is_created_searched_and_migrated(memory: None) -> None:
    """Creation and migration know nothing of it."""
    done = create_index("memory:a", [shard(bad=(BadImage("z", None, "broken"),))], run="runs/first")
    assert (done.path, done.items, len(done.bad)) == ("memory:a", 4, 1)
    assert "broken" in (folder_beside("memory:a") / "bad.csv").read_text()
    with open_index("memory:a") as index:
        assert index.search(POINTS, 1).row[:, 0].tolist() == [0, 1, 2, 3]
        assert index.stats()["attachments"] == ["model"]
    with pytest.raises(InputError, match="exists already"):
        create_index("memory:a", [shard()])
    there = migrate("memory:a", "folder-copy")
    back = migrate("folder-copy", "memory:b")
    assert (there.items, back.items, there.checksum) == (4, 4, back.checksum)
    assert migrate("folder-copy", "memory:b").copied == 0
    with pytest.raises(InputError, match="onto itself"):
        migrate("memory:a", "memory:a")


BACKENDS = ["folder:x", "milvus:x.db", "memory:x"]


ONCE = Construction("creating", "its creation was stopped.")
RESUMED = Construction("migrating", "its migration was stopped.", resumes=True)


def interrupted(name: str, work: Construction, ids: Sequence[str] = ()) -> int:
    """Begins a construction, adds items, and is stopped; how many items were there from one before."""
    backend, known_as = backend_of(name)
    before = -1
    try:
        with backend.under_construction(known_as, SETTINGS, work) as index:
            before = len(index)
            index.add(POINTS[: len(ids)], list(ids))
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        return before


@pytest.mark.parametrize("name", BACKENDS)
def test_nobody_opens_what_is_under_construction(memory: None, name: str) -> None:
    """Of a work that begins anew a failure leaves nothing; one that resumes is continued."""
    backend, known_as = backend_of(name)
    for work, left in ((ONCE, 0), (RESUMED, 2)):
        assert interrupted(name, work, ["a", "b"]) == 0
        assert not backend.exists(known_as)
        with pytest.raises(StoreError, match=f"is no index|is not finished: {work.unfinished}"):
            open_index(name)
        assert interrupted(name, work) == left
    backend.discard(known_as, ONCE)  # not this one
    with backend.under_construction(known_as, SETTINGS, RESUMED) as index:
        assert index.ids() == ["a", "b"]
    assert backend.exists(known_as)
    for work in (ONCE, RESUMED):
        backend.discard(known_as, work)
        with pytest.raises(InputError, match="exists already"):
            interrupted(name, work)
    with open_index(name) as index:
        assert index.ids() == ["a", "b"]
    assert not list(Path().glob(".*"))


@pytest.mark.parametrize("name", BACKENDS)
def test_stopped_work_can_be_discarded(memory: None, name: str) -> None:
    backend, known_as = backend_of(name)
    assert interrupted(name, RESUMED, ["a"]) == 0
    backend.discard(known_as, RESUMED)
    assert interrupted(name, RESUMED) == 0


@pytest.mark.parametrize("name", BACKENDS[1:])
def test_unfinished_work_of_another_kind_is_left_alone(memory: None, name: str) -> None:
    backend, known_as = backend_of(name)
    interrupted(name, RESUMED, ["a"])
    with pytest.raises(InputError, match="is something else that is not finished: its migration was stopped"):
        create_index(name, [shard()])
    backend.discard(known_as, RESUMED)
    assert create_index(name, [shard()]).items == 4
