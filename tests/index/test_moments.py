"""Sums over what an index holds: equal to fresh ones whatever came and went, and after any way of stopping."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.index import moments as module
from doubtless.index.base import Index
from doubtless.index.cache_files import CacheFiles
from doubtless.index.folder import FolderIndex
from doubtless.index.moments import Moments
from tests.index.memory_index import MemoryIndex
from tests.reference.gallery import drawn

DIM = 6


def points(count: int, seed: int = 0) -> Embedding:
    return Embedding.point(5 * torch.randn(count, DIM, generator=torch.Generator().manual_seed(seed)))


def fresh(index: Index) -> Tensor:
    """One outer product at a time."""
    total = torch.zeros(DIM, DIM, dtype=torch.double)
    for row in index.embedding().direction.double():
        total += torch.outer(row, row)
    return total


def must_be_fresh(index: Index) -> None:
    found, expected = index.moments(), fresh(index)
    assert found.count == len(index)
    assert float((found.total - expected).norm()) <= 1e-6 * float(expected.norm())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A closed index of 300 items whose sums were asked for and saved, ten removed before that, ten after."""
    with FolderIndex.create(tmp_path / "index", family="point", dim=DIM) as index:
        index.add(points(300), [f"item {number}" for number in range(300)])
        index.remove([f"item {number}" for number in range(10)])
        index.moments()
    with FolderIndex.open(tmp_path / "index", writable=True) as index:
        index.remove([f"item {number}" for number in range(10, 20)])
    return tmp_path / "index"


def stamp(path: Path) -> dict:
    return json.loads((path / "cache" / "stamp.json").read_text())


steps = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "update", "relabel", "ask", "open", "compact"]), st.integers(0, 99)
    ),
    min_size=3,
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(steps=steps, asks=st.booleans())
def test_sums_are_fresh_whatever_came_and_went(
    steps: list, asks: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("laws") / "index"
    index = FolderIndex.create(folder, family="point", dim=DIM)
    names: list[str] = []
    for number, (step, chance) in enumerate(steps):
        some = names[: chance % (len(names) + 1)]
        if step == "add":
            new = [f"{number}/{item}" for item in range(1 + chance % 7)]
            index.add(points(len(new), seed=chance), new)
            names = new + names
        elif step == "remove" and some:
            index.remove(some)
            names = names[len(some) :]
        elif step == "update" and some:
            index.update(points(len(some), seed=100 + chance), some)
        elif step == "relabel" and some:
            index.update(index.embedding(list(index.rows_of(some).values())), some, labels=["x"] * len(some))
        elif step == "ask":
            must_be_fresh(index)
        elif step == "open":
            index.close()
            index = FolderIndex.open(folder, writable=True)
        elif step == "compact":
            index.compact()
        if asks:
            must_be_fresh(index)
    must_be_fresh(index)
    with FolderIndex.open(folder) as reader:
        must_be_fresh(reader)
    index.close()


def test_a_thousand_changes_leave_no_drift(tmp_path: Path) -> None:
    with FolderIndex.create(tmp_path / "index", family="point", dim=DIM) as index:
        index.add(points(400), [str(item) for item in range(400)])
        for number in range(250):
            index.moments()
            index.remove([str(item) for item in range(number, number + 2)])
            index.add(points(2, seed=number), [str(item) for item in range(number, number + 2)])
        must_be_fresh(index)
        index.remove([str(item) for item in range(1, 400)])  # one is left, of much that has been
        must_be_fresh(index)
        index.remove(["0"])
        assert not index.moments().total.any()
        assert index.moments().count == 0


def test_saved_sums_are_read_and_only_the_rest_is_looked_at(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sums = stamp(path)["moments"]
    assert (sums["reach"], sums["count"]) == (
        300,
        290,
    )  # what was removed after it came into the files is in it
    seen: list[int] = []
    units = Moments.units
    monkeypatch.setattr(Moments, "units", lambda self, rows: seen.append(len(rows)) or units(self, rows))
    with FolderIndex.open(path, writable=True) as index:
        must_be_fresh(index)
        assert sum(seen) == 10  # taken off again
        index.add(points(5, seed=3), list("abcde"))
        index.remove(["item 50", "a"])
        must_be_fresh(index)
    assert sum(seen) == 10 + 4 + 1  # those that came and stayed, and the one that was summed and went


def test_sums_are_not_written_for_who_never_asks(tmp_path: Path) -> None:
    with FolderIndex.create(tmp_path / "index", family="point", dim=DIM) as index:
        index.add(points(20), [str(item) for item in range(20)])
    assert stamp(tmp_path / "index")["moments"] is None


def test_an_index_from_before_sums_opens_and_makes_them(path: Path) -> None:
    old = stamp(path)
    del old["moments"], old["seal"]
    (path / "cache" / "stamp.json").write_text(json.dumps(old))
    for writable in (False, True):
        with FolderIndex.open(path, writable=writable) as index:
            must_be_fresh(index)
    assert stamp(path)["moments"]["reach"] == 300


def test_a_writer_cut_off_between_database_and_sums_loses_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = FolderIndex.open(path, writable=True)
    index.moments()
    index.add(points(200, seed=9), [f"new {item}" for item in range(200)])
    index.remove(["item 20", "item 21", "new 0"])
    index._lock.release()  # as if killed: the database is whole, the cache was never told
    index._store.close()
    with FolderIndex.open(path, writable=True) as again:
        must_be_fresh(again)

    def cut(self: CacheFiles, moments: Moments) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(CacheFiles, "write_moments", cut)
    with FolderIndex.open(path, writable=True) as again, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        again.add(points(900, seed=4), [f"more {item}" for item in range(900)])
        again.moments()
        again.close()
    assert any("could not be written" in str(one.message) for one in said)
    with FolderIndex.open(path) as reader:
        must_be_fresh(reader)


def test_damaged_sums_are_made_again(path: Path) -> None:
    (file,) = (path / "cache").glob("*/moments-*")
    data = bytearray(file.read_bytes())
    data[3] ^= 1
    file.write_bytes(data)
    with FolderIndex.open(path) as index, pytest.warns(RuntimeWarning, match="another checksum"):
        must_be_fresh(index)
    file.unlink()
    with FolderIndex.open(path) as index:
        must_be_fresh(index)


def test_a_reader_follows_a_writer(path: Path) -> None:
    with FolderIndex.open(path) as reader, FolderIndex.open(path, writable=True) as writer:
        must_be_fresh(reader)
        writer.add(points(40, seed=2), [f"new {item}" for item in range(40)])
        writer.remove(["new 3", "item 30"])
        must_be_fresh(reader)
        writer.compact()
        must_be_fresh(reader)


@pytest.mark.parametrize("kind", ["point", "gaussian-scalar", "vmf"])
def test_any_family_and_any_backend(kind: str, tmp_path: Path) -> None:
    embedding = drawn(kind, 30, dim=DIM, seed=1)
    options = {"family": embedding.family, "dim": DIM}
    if embedding.family == "gaussian":
        options["variances"] = 1
    names = [str(item) for item in range(30)]
    with FolderIndex.create(tmp_path / "index", **options) as index:
        index.add(embedding, names)
        must_be_fresh(index)
        expected = index.moments()
    MemoryIndex.stores.pop(f"moments {kind}", None)
    with MemoryIndex.create(f"moments {kind}", **options) as index:
        assert index.moments().count == 0
        index.add(embedding, names)
        must_be_fresh(index)
        assert not index.keeps_moments
        torch.testing.assert_close(index.moments().total, expected.total)


def test_wide_directions_are_narrowed_the_same_way_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WIDEST", 64)
    rows = torch.randn(50, 300, generator=torch.Generator().manual_seed(0))
    whole = Moments.of(rows)
    assert whole.total.shape == (64, 64)
    module._projection.cache_clear()
    parts = Moments.none(300).more([rows[:20], rows[20:]])
    torch.testing.assert_close(parts.total, whole.total)
    cosine, exact = whole.units(rows) @ whole.units(rows).T, normalize(rows.double(), dim=1)
    assert float((cosine - exact @ exact.T).abs().max()) < 6 / 64**0.5
    module._projection.cache_clear()


def test_rows_that_do_not_fit_are_a_sentence() -> None:
    with pytest.raises(InputError, match="take rows"):
        Moments.none(4).more([torch.zeros(2, 5)])
    assert float(Moments.of(torch.zeros(3, 4)).total.abs().sum()) == 0  # a zero row says nothing
