"""Other processes, full disks, damaged files: what was acknowledged stays, and what cannot be is said."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
import torch

from doubtless.errors import InputError, StoreError
from doubtless.index.folder import FolderIndex
from doubtless.index.settings import DATABASE
from tests.reference.gallery import drawn

GALLERY, QUERIES = drawn("gaussian-scalar", 300, dim=16, seed=1), drawn("gaussian-scalar", 9, dim=16, seed=2)
NAMES = [f"item {number}" for number in range(300)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed index of 300 items with labels and metadata, some of them removed and updated."""
    with FolderIndex.create(tmp_path / "index", family="gaussian", dim=16, variances=1) as index:
        labels = [f"class {number % 7}" for number in range(300)]
        index.add(GALLERY, NAMES, labels=labels, metadata=[{"number": number} for number in range(300)])
        index.remove(NAMES[10:20])
        index.update(GALLERY[20:25], NAMES[20:25])
        index.attach("calibrator", {"slope": torch.tensor([2.0])}, {"kind": "logistic"})
    return tmp_path / "index"


def answers(path: Path, **options) -> tuple[list, ...]:
    with FolderIndex.open(path, **options) as index:
        hits = [index.search(QUERIES, 5, score=score) for score in ("direction", "expected-distance")]
        return tuple(found.row.tolist() for found in hits)


def run(script: str, *values: object, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, values)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, **options)


# -- one writer, many readers --------------------------------------------------------------------------


def test_a_second_writer_is_told_who_is_first(path: Path) -> None:
    script = (
        "import sys; from doubtless.index.folder import FolderIndex\n"
        "FolderIndex.open(sys.argv[1], writable=True)"
    )
    with FolderIndex.open(path, writable=True):
        with pytest.raises(StoreError, match=f"has a writer already .process {os.getpid()}."):
            FolderIndex.open(path, writable=True)
        other = run(script, path)
        assert other.returncode
        assert "has a writer already" in other.stderr
        FolderIndex.open(path).close()
    assert run(script, path).returncode == 0


def test_readers_see_changes_at_their_next_search(path: Path) -> None:
    query = GALLERY[10:11]
    with FolderIndex.open(path) as reader, FolderIndex.open(path, writable=True) as writer:
        assert reader.search(query, 1).row.tolist() != [[305]]
        writer.add(query, ["new"], labels=["class new"])
        hits = reader.search(query, 1)
        assert reader.items(hits.row[0])[0].label == "class new"
        assert (len(reader), reader.label_names[-1]) == (291, "class new")
        writer.remove(["new"])
        assert 305 not in reader.search(query, 291).row
        writer.compact()
        assert torch.equal(reader.search(QUERIES, 5).row, writer.search(QUERIES, 5).row)
        writer.update(GALLERY[:1], ["item 1"])
        assert torch.equal(reader.search(QUERIES, 5).row, writer.search(QUERIES, 5).row)
        writer.attach("doubt", {}, {"a": 1})
        assert reader.attached("doubt") == ({}, {"a": 1})


def test_a_reader_that_is_far_behind_takes_the_files(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("doubtless.index.vector_cache.TAIL", 100)
    with FolderIndex.open(path) as reader, FolderIndex.open(path, writable=True) as writer:
        more = drawn("gaussian-scalar", 450, dim=16, seed=5)
        for start in range(0, 450, 150):
            writer.add(more[start : start + 150], [f"more {start + item}" for item in range(150)])
        writer.remove(["more 7"])
        assert torch.equal(reader.search(QUERIES, 50).row, writer.search(QUERIES, 50).row)
    assert answers(path) == answers(path, writable=True)


def test_a_commit_waits_for_the_disk(path: Path) -> None:
    """What a killed process cannot show: with synchronous FULL (2) a power cut loses no commit either."""
    with FolderIndex.open(path, writable=True) as index:
        connection = index._store._connection
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


# -- files that are gone or wrong ----------------------------------------------------------------------


def cache_file(path: Path, name: str) -> Path:
    (found,) = (path / "cache").rglob(name)
    return found


def overwritten(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 0x10
    file.write_bytes(data)


DAMAGES = {
    "a flipped bit": overwritten,
    "cut short": lambda file: os.truncate(file, file.stat().st_size // 2),
    "empty": lambda file: os.truncate(file, 0),
    "gone": Path.unlink,
}


@pytest.mark.parametrize("name", ["direction", "expected-distance", "items", "stamp.json"])
@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_damaged_cache_is_made_again(path: Path, damage: str, name: str) -> None:
    right = answers(path)
    DAMAGES[damage](cache_file(path, name))
    quiet = name == "stamp.json" and damage in (
        "gone",
        "a flipped bit",
    )  # a bit of a number may pass unnoticed
    with warnings.catch_warnings() if quiet else pytest.warns(RuntimeWarning, match="is damaged"):
        warnings.simplefilter("ignore" if quiet else "always")
        assert answers(path) == right  # a reader: in memory
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert answers(path, writable=True) == right  # the writer: in the files
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert answers(path) == right


def test_the_cache_is_not_needed(path: Path) -> None:
    right = answers(path)
    shutil.rmtree(path / "cache")
    assert answers(path) == right
    assert not (path / "cache").exists()
    assert answers(path, writable=True) == right
    assert (path / "cache" / "stamp.json").exists()


def test_a_cache_of_another_index_or_time_is_not_taken(path: Path, tmp_path: Path) -> None:
    old = tmp_path / "old"
    shutil.copytree(path, old)
    right = answers(path)
    with FolderIndex.open(path, writable=True) as index:
        index.add(QUERIES, [f"query {number}" for number in range(9)])
    newer = answers(path)
    assert newer != right
    # The database is restored from the copy, the cache is left as it was.
    shutil.copy(old / DATABASE, path / DATABASE)
    with pytest.raises(StoreError, match="is older than it was"):
        FolderIndex.open(path)
    (path / "last-change").unlink()
    assert answers(path) == right
    with FolderIndex.create(tmp_path / "other", family="gaussian", dim=16, variances=1) as index:
        index.add(QUERIES, [f"query {number}" for number in range(9)])
    shutil.rmtree(path / "cache")
    shutil.copytree(tmp_path / "other" / "cache", path / "cache")
    assert answers(path) == right


def test_a_killed_writer_leaves_rows_that_do_not_count(path: Path) -> None:
    """What an append wrote before its stamp was written is overwritten by the next."""
    right = answers(path)
    for name in ("direction", "expected-distance", "items"):
        with open(cache_file(path, name), "ab") as file:
            file.write(b"\xff" * 1001)
    assert answers(path) == right
    with FolderIndex.open(path, writable=True) as index:
        index.add(QUERIES, [f"query {number}" for number in range(9)])
        wanted = index.search(QUERIES, 5).row
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with FolderIndex.open(path) as index:
            assert torch.equal(index.search(QUERIES, 5).row, wanted)


# -- a damaged database --------------------------------------------------------------------------------


def page_of(path: Path, table: str) -> list[int]:
    """Pages of a table, leaves last."""
    with sqlite3.connect(path / DATABASE) as connection:
        found = connection.execute(
            "SELECT pageno FROM dbstat WHERE name = ? ORDER BY pagetype, pageno", (table,)
        )
        return [page for (page,) in found]


def ruined(path: Path, page: int) -> None:
    with open(path / DATABASE, "r+b") as file:
        file.seek((page - 1) * 16384)
        file.write(b"\xa5" * 16384)


@pytest.fixture
def larger(tmp_path: Path) -> Path:
    """An index whose tables have several pages."""
    gallery = drawn("gaussian-scalar", 2000, dim=64, seed=3)
    with FolderIndex.create(tmp_path / "larger", family="gaussian", dim=64, variances=1) as index:
        labels = [f"class {number % 7}" for number in range(2000)]
        index.add(gallery, [f"item {number}" for number in range(2000)], labels=labels)
        index.attach("calibrator", {"slope": torch.tensor([2.0])}, {"kind": "logistic"})
    return tmp_path / "larger"


def test_a_damaged_database_is_refused_and_salvaged(larger: Path, tmp_path: Path) -> None:
    ruined(larger, page_of(larger, "vector")[3])
    shutil.rmtree(larger / "cache")
    with pytest.raises(StoreError, match=r"is damaged.* doubtless salvage "):
        FolderIndex.open(larger)
    saved = FolderIndex.salvage(larger, tmp_path / "saved")
    assert saved.attachments == ["calibrator"]
    assert saved.items + saved.lost == 2000
    assert 0 < saved.lost < 200  # one page of about sixty items
    with FolderIndex.open(tmp_path / "saved") as index:
        gallery = drawn("gaussian-scalar", 2000, dim=64, seed=3)
        items = index.items(index.rows)
        numbers = [int(item.id.split()[1]) for item in items]
        assert [item.label for item in items] == [f"class {number % 7}" for number in numbers]
        for name, value in index.embedding().parameters.items():
            assert torch.equal(value, gallery[numbers].parameters[name])
        assert index.attached("calibrator")[1] == {"kind": "logistic"}


def test_a_changed_number_is_noticed(larger: Path, tmp_path: Path) -> None:
    """SQLite has no checksums; the index has."""
    with sqlite3.connect(larger / DATABASE) as connection:
        connection.execute("UPDATE vector SET numbers = zeroblob(260) WHERE row = 5")
    connection.close()
    shutil.rmtree(larger / "cache")
    with pytest.raises(StoreError, match="the numbers of row 5 are not what was stored"):
        FolderIndex.open(larger)
    assert FolderIndex.salvage(larger, tmp_path / "saved").record() == {
        "items": 1999,
        "lost": 1,
        "without_label": 0,
        "attachments": ["calibrator"],
    }


def test_damage_that_a_good_cache_hides_is_told_when_met(larger: Path) -> None:
    ruined(larger, page_of(larger, "item")[3])
    with (
        FolderIndex.open(larger) as index,
        pytest.raises(StoreError, match=r"is damaged.* doubtless salvage "),
    ):
        index.items(index.rows)


@pytest.mark.parametrize("ruin", ["header", "settings"])
def test_nothing_to_salvage(larger: Path, tmp_path: Path, ruin: str) -> None:
    ruined(larger, 1 if ruin == "header" else page_of(larger, "setting")[0])
    with pytest.raises(StoreError, match="is damaged"):
        FolderIndex.open(larger)
    with pytest.raises(StoreError, match="Nothing can be saved"):
        FolderIndex.salvage(larger, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_salvage_overwrites_nothing(larger: Path, path: Path) -> None:
    with pytest.raises(InputError, match="exists already"):
        FolderIndex.salvage(larger, path)


def test_newer_and_foreign_databases(path: Path, tmp_path: Path) -> None:
    connection = sqlite3.connect(path / DATABASE)
    connection.execute("PRAGMA user_version = 3")
    connection.close()
    for writable in (False, True):
        with pytest.raises(StoreError, match=r"newer doubtless \(schema 3, this one reads up to 2\); update"):
            FolderIndex.open(path, writable=writable)
    (tmp_path / "foreign").mkdir()
    connection = sqlite3.connect(tmp_path / "foreign" / DATABASE)
    connection.execute("CREATE TABLE mine (a)")
    connection.close()
    with pytest.raises(StoreError, match="not one of a doubtless index"):
        FolderIndex.open(tmp_path / "foreign", writable=True)


# -- disks ---------------------------------------------------------------------------------------------

FULL = """
import resource, sys, torch, warnings
from doubtless.embedding import Embedding
from doubtless.errors import StoreError
from doubtless.index.folder import FolderIndex
warnings.simplefilter("ignore")
index = FolderIndex.open(sys.argv[1], writable=True)
before = len(index)
limit = 1024 * int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
added = 0
try:
    for batch in range(1000):
        location = torch.randn(200, 16, generator=torch.Generator().manual_seed(batch))
        more = Embedding.gaussian(location, torch.ones(200, 1))
        index.add(more, [f"batch {batch} item {item}" for item in range(200)])
        added += 200
except StoreError as error:
    print(error)
assert len(index) == before + added, (len(index), before, added)
assert index.search(more, 3).row.shape == (200, 3)
print("acknowledged", added)
index.close()
"""


@pytest.mark.parametrize("kilobytes", [700, 1500])
def test_a_full_disk_fails_the_add_and_nothing_else(path: Path, kilobytes: int) -> None:
    """The operating system lets no file of that process grow beyond a limit."""
    done = run(FULL, path, kilobytes)
    assert done.returncode == 0, done.stderr
    sentence, last = done.stdout.strip().splitlines()
    assert "is full or failing" in sentence
    assert "nothing of this call was stored" in sentence
    added = int(last.split()[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the cache may not have fitted either
        with FolderIndex.open(path, writable=True) as index:
            assert len(index) == 290 + added
            index.add(QUERIES, [f"query {number}" for number in range(9)])
            assert len(index.ids(index.search(QUERIES, 2).row)) == 18


READ_ONLY = """
import os, sys
from doubtless.errors import StoreError
from doubtless.index.folder import FolderIndex
from tests.reference.gallery import drawn

def found(path):
    with FolderIndex.open(path) as index:
        return index.search(drawn("gaussian-scalar", 9, dim=16, seed=2), 5).row.tolist()

if os.geteuid() == 0:  # whom no permission stops
    found(sys.argv[2])  # imports everything
    os.setgid(65534)
    os.setuid(65534)
print(found(sys.argv[1]))
try:
    FolderIndex.open(sys.argv[1], writable=True)
except StoreError as error:
    print(error)
"""


@pytest.mark.parametrize("last", ["reader", "writer"])
def test_a_folder_that_cannot_be_written(path: Path, last: str) -> None:
    """Whether a reader or a writer closed it last: the former leaves files of SQLite behind."""
    right = str(answers(path, writable=last == "writer")[0])
    with tempfile.TemporaryDirectory(prefix="doubtless-read-only-") as folder:  # where others may look
        os.chmod(folder, 0o755)
        shutil.copytree(path, Path(folder) / "index")
        subprocess.run(["chmod", "-R", "a+rX,a-w", str(Path(folder) / "index")], check=True)
        done = run(READ_ONLY, Path(folder) / "index", path)
        subprocess.run(["chmod", "-R", "u+w", folder], check=True)
    assert done.returncode == 0, done.stderr
    found, sentence = done.stdout.strip().splitlines()
    assert found == right
    assert "cannot be opened for writing" in sentence
