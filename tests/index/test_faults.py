"""Random faults in the files of an index: every one is noticed, when it is read or by a check, or does no harm."""

from __future__ import annotations

import random
import shutil
import sqlite3
import subprocess
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from doubtless.errors import DoubtlessError, InputError, StoreError
from doubtless.gallery.safekeeping import backup, check, restore, salvage
from doubtless.index.folder import FolderIndex
from doubtless.index.settings import DATABASE
from doubtless.server.service.items import Shelf
from tests.reference.gallery import drawn

GALLERY, QUERIES = drawn("gaussian-scalar", 90, dim=16, seed=1), drawn("gaussian-scalar", 4, dim=16, seed=2)
FAULTS, FEW = 1000, 60
EMPTY = ("writer.lock", "reserve")
"""Files in which nothing is kept."""

WRITER = """
import os, sys
from doubtless.index.folder import FolderIndex
from tests.reference.gallery import drawn
index = FolderIndex.open(sys.argv[1], writable=True)
index.add(drawn("gaussian-scalar", 50, dim=16, seed=3), [f"late {n}" for n in range(50)], labels=["late"] * 50)
index.attach("doubt", {}, {"late": True})
index.remove(["item 50", "late 3"])
os._exit(0)  # as after a kill: the log stays
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with everything that one can hold, whose last changes lie in its log."""
    path = tmp_path_factory.mktemp("faults") / "index"
    with FolderIndex.create(path, family="gaussian", dim=16, variances=1, kind="hnsw") as index:
        numbers = range(len(GALLERY))
        index.add(
            GALLERY,
            [f"item {n}" for n in numbers],
            labels=[f"class {n % 5}" if n % 7 else None for n in numbers],
            paths=[f"photos/{n}.jpg" if n % 3 else None for n in numbers],
            metadata=[{"shelf": n % 4, "name": f"é{n}"} for n in numbers],
        )
        index.remove([f"item {n}" for n in range(10, 20)])
        index.update(GALLERY[20:25], [f"item {n}" for n in range(20, 25)])
        index.attach("calibrator", {"slope": torch.arange(50.0)}, {"kind": "logistic"})
        index.moments()
    subprocess.run([sys.executable, "-c", WRITER, str(path)], check=True, cwd=Path(__file__).parents[2])
    assert (path / f"{DATABASE}-wal").stat().st_size
    return path


def told(path: Path) -> list[Any]:
    """All that an index says, to whoever asks for everything."""
    with FolderIndex.open(path) as index:
        hits = [index.search(QUERIES, 7, score=score) for score in ("direction", "expected-distance")]
        found = [
            (one.row.tolist(), one.score.tolist(), one.expected_squared_distance.tolist()) for one in hits
        ]
        attached = [index.attached(name) or ({}, {}) for name in ("calibrator", "doubt")]
        return [
            found,
            index.items(index.rows),
            index.labels.tolist(),
            index.label_names,
            index.rows_of(["item 3", "item 22", "late 7", "nobody"]),
            index.rows_where({"shelf": [1, 2]}).tolist(),
            [value.tolist() for value in index.embedding().parameters.values()],
            [(record, [value.tolist() for value in tensors.values()]) for tensors, record in attached],
            index.attachments(),
            index.moments().total.round(decimals=6).tolist(),  # summed anew where the cache is made again
            (index.settings.record(), len(index)),
        ]  # fmt: skip


def spoil(path: Path, draw: random.Random) -> str:
    """One fault in one file; what it was."""
    files = [file for file in sorted(path.rglob("*")) if file.is_file() and file.name not in EMPTY]
    weights = [
        12 if file.name.startswith(DATABASE) else 2 if file.name == "stamp.json" else 1 for file in files
    ]
    (file,) = draw.choices(files, weights)
    data = bytearray(file.read_bytes())
    if not data:
        return f"{file.name}: empty"
    place = draw.randrange(len(data))
    if draw.random() < 0.8:  # pages are mostly empty: rather where something is
        written = [at for at in range(len(data)) if data[at]]
        place = draw.choice(written or [place])
    kind = draw.choice(["bit", "bit", "bit", "byte", "zeros", "noise", "cut", "gone"])
    stop = min(len(data), place + draw.choice([2, 16, 200]))
    if kind == "bit":
        data[place] ^= 1 << draw.randrange(8)
    elif kind == "byte":
        data[place] = draw.randrange(256)
    elif kind == "zeros":
        data[place:stop] = bytes(stop - place)
    elif kind == "noise":
        data[place:stop] = draw.randbytes(stop - place)
    elif kind == "cut":
        del data[place:]
    file.write_bytes(data)
    if kind == "gone":
        file.unlink()
    return f"{file.relative_to(path)}: {kind} at {place}"


def verdict(path: Path, right: list[Any]) -> str:
    """How a fault shows; anything but a sentence, a warning, a check or nothing at all fails."""
    looked = Path(shutil.copytree(path, path.with_name("looked at")))
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            same = told(path) == right
    except (StoreError, InputError):
        return "refused"
    finally:
        found = check(looked, thorough=True)
        shutil.rmtree(looked)
    if said:
        return "warned"  # and searched exactly, where the approximate index was damaged
    if same:
        return "harmless"
    return "noticed by check" if found.damage else "SILENT"


@pytest.mark.parametrize("count", [FEW, pytest.param(FAULTS, marks=pytest.mark.slow)])
def test_every_fault_is_noticed_or_harmless(whole: Path, tmp_path: Path, count: int) -> None:
    right, draw, counts = told(whole), random.Random(count), Counter[str]()
    assert check(whole, thorough=True).is_whole
    for _ in range(count):
        path = Path(shutil.copytree(whole, tmp_path / "index"))
        fault = spoil(path, draw)
        how = verdict(path, right)
        assert how != "SILENT", fault
        counts[how] += 1
        shutil.rmtree(path)
    print(dict(counts))
    assert counts["refused"] > count // 5
    assert counts["harmless"] < count


def test_a_copy_without_its_log_is_refused_with_a_sentence(whole: Path, tmp_path: Path) -> None:
    """It would open fifty items short."""
    path = Path(shutil.copytree(whole, tmp_path / "index"))
    (path / f"{DATABASE}-wal").unlink()
    with pytest.raises(StoreError, match=r"is older than it was.*index\.sqlite-wal, was not copied with it"):
        FolderIndex.open(path)
    with pytest.raises(StoreError, match="is older than it was"):
        FolderIndex.open(path, writable=True)
    assert "is older than it was" in check(path).damage[0]
    with pytest.raises(StoreError, match="is older than it was"):
        backup(path, tmp_path / "copy")
    (path / "last-change").unlink()  # as the sentence says
    with FolderIndex.open(path) as index:
        assert len(index) == 80


def test_a_copy_is_taken_beside_a_writer_and_put_back(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "index"))
    place = Shelf(path).place("pictured", b"bytes", ".png")
    Shelf(path).write(place, b"bytes")
    with FolderIndex.open(path, writable=True) as index:
        index.add(QUERIES[:1], ["pictured"], paths=[place])
        assert backup(path, tmp_path / "copies" / "monday") == 129
        index.remove(["item 1"])
    with pytest.raises(InputError, match="exists already"):
        backup(path, tmp_path / "copies" / "monday")
    assert check(tmp_path / "copies" / "monday", thorough=True).is_whole
    shutil.rmtree(path)
    assert restore(tmp_path / "copies" / "monday", path) == 129
    assert told(path)[1] == told(tmp_path / "copies" / "monday")[1]
    assert (path / place).read_bytes() == b"bytes"
    (path / place).write_bytes(b"other")
    (sentence,) = check(path, thorough=True).damage
    assert "of item 'pictured' is not what was stored" in sentence
    with pytest.raises(StoreError, match="is damaged and was not copied"):
        backup(path, tmp_path / "copies" / "tuesday")
    assert [entry.name for entry in (tmp_path / "copies").iterdir()] == ["monday"]


def test_what_is_damaged_is_saved_in_part(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "index"))
    with FolderIndex.open(path, writable=True):
        pass  # the log goes into the database
    with sqlite3.connect(path / DATABASE) as connection:
        connection.execute("UPDATE item SET label = 1 WHERE row = 4")
        connection.execute("UPDATE part SET record = '{\"kind\": \"other\"}' WHERE name = 'calibrator'")
    connection.close()
    assert len(check(path).damage) == 1  # a quick look sees the attachment
    with FolderIndex.open(path) as index, pytest.raises(StoreError, match="what is stored of row 4 is not"):
        index.items([4])
    with FolderIndex.open(path) as index, pytest.raises(StoreError, match="attached as 'calibrator' is not"):
        index.attached("calibrator")
    saved = salvage(path, tmp_path / "saved")
    assert (saved.items, saved.lost, saved.attachments) == (127, 1, ["doubt"])
    assert check(tmp_path / "saved", thorough=True).is_whole


def test_an_index_of_an_earlier_version_is_sealed_when_it_is_written_to(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "index"))
    right = told(path)
    with sqlite3.connect(path / DATABASE) as connection:
        for table in ("setting", "state", "label", "item", "part"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN checksum")
        connection.execute("PRAGMA user_version = 1")
    connection.close()
    (path / "last-change").unlink()
    assert told(path) == right
    assert check(path, thorough=True).is_whole
    FolderIndex.open(path, writable=True).close()
    assert told(path) == right
    with sqlite3.connect(path / DATABASE) as connection:
        connection.execute("UPDATE label SET name = 'klass' WHERE code = 2")
    connection.close()
    with FolderIndex.open(path) as index, pytest.raises(StoreError, match="label 2 is not what was stored"):
        index.items(index.rows)


def test_errors_are_sentences(tmp_path: Path) -> None:
    for work in (
        lambda: backup(tmp_path / "nothing", tmp_path / "copy"),
        lambda: restore(tmp_path / "nothing", tmp_path / "copy"),
        lambda: salvage(tmp_path / "nothing", tmp_path / "copy"),
        lambda: check("milvus:nothing.db"),
    ):
        with pytest.raises(DoubtlessError):
            work()
    assert check(tmp_path / "nothing").damage
    assert not list(tmp_path.iterdir())
