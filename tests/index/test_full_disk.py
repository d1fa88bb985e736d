"""A disk that is really full: nothing acknowledged is lost, items can be removed, and no half cache stays on it."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.errors import DiskFullError
from doubtless.files import write_text
from doubtless.gallery.safekeeping import check
from doubtless.index.database.reserve import NAME
from doubtless.index.folder import FolderIndex
from tests.reference.small_disk import fill, free, small_disk

DIM, BATCH = 64, 200
MEGABYTES = 12


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", MEGABYTES) as mounted:
        yield mounted


def batch(number: int, count: int = BATCH) -> tuple[Embedding, list[str]]:
    location = torch.randn(count, DIM, generator=torch.Generator().manual_seed(number))
    return Embedding.gaussian(location, torch.ones(count, 1)), [f"{number} {item}" for item in range(count)]


def created(disk: Path) -> FolderIndex:
    return FolderIndex.create(disk / "index", family="gaussian", dim=DIM, variances=1)


def filled(index: FolderIndex) -> int:
    """Batches that went in until there was no room."""

    def add_for_ever() -> None:
        for number in range(10_000):
            index.add(*batch(number))

    with pytest.raises(DiskFullError, match=r"is full or failing .*; nothing of this call was stored"):
        add_for_ever()
    assert len(index) % BATCH == 0
    return len(index) // BATCH


def look(index: FolderIndex, ids: set[str]) -> None:
    assert set(index.ids()) == ids
    some = index.embedding(index.rows[:5])
    assert index.search(some, 1).row[:, 0].tolist() == index.rows[:5].tolist()


def left_over(index: Path) -> list[Path]:
    """Files of the cache that no stamp counts."""
    return [file for file in (index / "cache").rglob("*") if file.is_file() and file.name != "stamp.json"]


@pytest.mark.filterwarnings("ignore:The cache of the index")
def test_items_can_be_removed_from_a_full_disk(disk: Path) -> None:
    """Filled by what is added, and then by others to the last byte; also by a process that opens it when full."""
    with created(disk) as index:
        batches = filled(index)
        assert batches * BATCH * DIM * 4 > (MEGABYTES << 20) // 4  # most of it was used
        ids = {id for number in range(batches) for id in batch(number)[1]}
        look(index, ids)
        index.remove(["0 0", "1 7"])
        fill(disk)
        assert free(disk) == 0
        index.remove(["2 0"])
        look(index, ids := ids - {"0 0", "1 7", "2 0"})
    fill(disk)
    with FolderIndex.open(disk / "index", writable=True) as index:
        index.remove(["3 0"])
        look(index, ids := ids - {"3 0"})
        with pytest.raises(DiskFullError):
            index.add(*batch(10_001))
    script = (
        "import sys, os; from doubtless.index.folder import FolderIndex\n"
        "index = FolderIndex.open(sys.argv[1], writable=True)\n"
        "index.remove([sys.argv[2]])\n"
        "os._exit(0)  # as after a kill: the log stays"
    )
    for number in range(4, 9):
        fill(disk)
        subprocess.run([sys.executable, "-c", script, str(disk / "index"), f"{number} 0"], check=True)
    (disk / "filler").unlink()
    with FolderIndex.open(disk / "index", writable=True) as index:
        look(index, ids - {f"{number} 0" for number in range(4, 9)})
        index.add(*batch(10_002))
    assert check(disk / "index", thorough=True).is_whole


def test_what_is_kept_for_removals_comes_back_when_there_is_room(disk: Path) -> None:
    kept = disk / "index" / NAME
    with created(disk) as index:
        index.add(*batch(0))
        filler = fill(disk)
        assert kept.stat().st_blocks * 512 >= 512 << 10
        index.make_room()
        assert not kept.exists()
        assert free(disk) >= 512 << 10
        filler.unlink()
        index.remove(["0 0"])
        assert kept.stat().st_blocks * 512 >= 512 << 10


def test_a_batch_must_leave_room_for_its_way_from_the_log_into_the_database(disk: Path) -> None:
    """The log alone would take it; then neither fits any more, and nothing could ever be removed."""
    with created(disk) as index:
        index.add(*batch(0))
        large, ids = batch(1, count=(7 << 20) // (4 * DIM))
        with pytest.raises(DiskFullError, match="hardly anything is free"):
            index.add(large, ids)
        assert free(disk) > 8 << 20  # the log's room was given back
        index.add(*batch(2))
        look(index, {*batch(0)[1], *batch(2)[1]})


def test_a_cache_that_cannot_be_written_is_removed_again(disk: Path) -> None:
    index = created(disk)
    index.add(*batch(0, 8000))
    index.remove(["0 0"])
    before = free(disk)
    fill(disk, leave=1 << 20)  # of some two megabytes that the cache takes
    with pytest.warns(RuntimeWarning, match="could not be written"):
        index.close()
    assert not left_over(disk / "index")
    (disk / "filler").unlink()
    assert free(disk) >= before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        FolderIndex.open(disk / "index", writable=True).close()
        assert left_over(disk / "index")
        with FolderIndex.open(disk / "index") as opened:
            assert len(opened) == 7999


@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_a_cache_that_cannot_grow_is_what_it_was(disk: Path, kind: str) -> None:
    """Rows that no stamp counts, sums and links that no stamp names: they go."""
    with FolderIndex.create(disk / "index", family="gaussian", dim=DIM, variances=1, kind=kind) as index:
        index.add(*batch(0, 1000))
    sizes = {file: file.stat().st_size for file in left_over(disk / "index")}
    index = FolderIndex.open(disk / "index", writable=True)
    index.add(*batch(1, 3000))
    index.moments()
    fill(disk, leave=700_000)
    with pytest.warns(RuntimeWarning, match="could not be written"):
        index.close()
    assert {file: file.stat().st_size for file in left_over(disk / "index")} == sizes
    (disk / "filler").unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with FolderIndex.open(disk / "index") as opened:
            assert len(opened) == 4000
    assert check(disk / "index", thorough=True).is_whole


def test_a_stamp_that_cannot_be_written_fails_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who adds has added, and who closes has closed: the next may open it."""
    index = created(tmp_path)
    monkeypatch.setattr("doubtless.index.vector_cache.TAIL", 100)
    root = tmp_path / "index" / "cache"
    root.write_text("a file where a folder should be")
    with pytest.warns(RuntimeWarning, match="could not be written"):
        index.add(*batch(0))
    with pytest.warns(RuntimeWarning, match="could not be written"):
        index.close()
    root.unlink()
    monkeypatch.setattr("doubtless.index.cache_files.write_json", lambda *_: write_text("/dev/full/x", ""))
    with pytest.warns(RuntimeWarning, match="could not be written"):
        FolderIndex.open(tmp_path / "index", writable=True).close()
    assert not left_over(tmp_path / "index")
    with FolderIndex.open(tmp_path / "index") as opened:
        assert len(opened) == BATCH


def test_what_is_attached_on_a_full_disk_is_the_old_or_the_new(disk: Path) -> None:
    old, new = {"values": torch.zeros(1000)}, {"values": torch.ones(1_000_000)}
    with created(disk) as index:
        index.attach_all({"calibrator": (old, {"old": True}), "promise": (old, {"old": True})})
        filler = fill(disk, leave=5 << 20)
        with pytest.raises(DiskFullError):
            index.attach_all({"calibrator": (new, {"old": False}), "promise": (new, {"old": False})})
        for name in ("calibrator", "promise"):
            tensors, record = index.attached(name) or ({}, {})
            assert record == {"old": True}
            assert torch.equal(tensors["values"], old["values"])
        filler.unlink()


def test_a_full_disk_can_be_read(disk: Path) -> None:
    """Whoever searches needs no room, whether a writer has closed it or has been killed."""
    with created(disk) as index:
        index.add(*batch(0))
    for leave in range(0, 80_000, 4096):
        filler = fill(disk, leave=leave)
        with FolderIndex.open(disk / "index") as reader:
            look(reader, set(batch(0)[1]))
        filler.unlink()


def test_a_full_disk_is_told_from_other_faults(disk: Path) -> None:
    fill(disk)
    with pytest.raises(DiskFullError, match="No space left on device"):
        write_text(disk / "note", "x" * 100_000)
    assert sorted(os.listdir(disk)) == ["filler"]
