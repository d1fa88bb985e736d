"""Changes that are cut off, in databases: undone or completed, by the same code whatever the database.

PostgreSQL has transactions, and undoes them all (`test_postgres.py`); killed writers are those of every database.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.errors import StoreError
from doubtless.index.backends import create_index_at, open_index
from doubtless.index.items import Fields
from doubtless.index.lance.driver import LanceDriver
from doubtless.index.qdrant.driver import QdrantDriver
from doubtless.index.remote.catalog import Catalog
from doubtless.index.remote.index import RemoteIndex
from doubtless.index.remote.store import RemoteStore
from tests.index.test_search import names
from tests.reference import postgres_server
from tests.reference.gallery import drawn

GALLERY = drawn("gaussian-scalar", 40, dim=4, seed=1)
SCHEMES = ("milvus", "qdrant", "lancedb")


@pytest.fixture(params=SCHEMES)
def name(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"{request.param}:{tmp_path}/gallery"


def made(name: str, count: int = 10) -> RemoteIndex:
    index = create_index_at(name, family="gaussian", dim=4, variances=1)
    assert isinstance(index, RemoteIndex)
    index.add(GALLERY[:count], names(count), labels=["cat"] * count)
    return index


class CutError(Exception):
    """The process ends here."""


@contextlib.contextmanager
def cut_off(kind: type, method: str, *, after: bool = False) -> Iterator[None]:
    """Inside, this method ends the process (an error stands for that), before or after it has done its work."""
    work = getattr(kind, method)

    def cut(*given: object) -> None:
        if after:
            work(*given)
        raise CutError

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, method, cut)
        with pytest.raises(CutError):
            yield


CHANGES: list[tuple[Callable[[RemoteIndex], None], int]] = [
    (lambda index: index.add(GALLERY[10:15], names(5, 10), labels=["new"] * 5), 15),
    (lambda index: index.update(GALLERY[20:24], names(4), labels=["new"] * 4), 10),
    (lambda index: index.remove(names(4)), 6),
]


@pytest.mark.parametrize(("change", "after"), CHANGES, ids=["add", "update", "remove"])
def test_a_change_that_is_cut_off_before_it_counts_is_undone(name: str, change, after: int) -> None:
    with made(name) as index:
        before = index.search(GALLERY, 10), index.items(index.rows), index.label_names
        with cut_off(Catalog, "write_state"):
            change(index)
        for step in ("as it lies", "opened for writing"):
            with open_index(name, writable=step != "as it lies") as other:
                assert torch.equal(other.search(GALLERY, 10).row, before[0].row)
                assert (other.items(other.rows), other.label_names, len(other)) == (*before[1:], 10)
    with open_index(name, writable=True) as index:
        change(index)
        assert len(index) == len(index.rows) == after


@pytest.mark.parametrize(("change", "after"), CHANGES, ids=["add", "update", "remove"])
def test_a_change_that_is_cut_off_after_it_counts_is_completed(name: str, change, after: int) -> None:
    with made(name) as index:
        with cut_off(RemoteStore, "_complete"):
            change(index)
        assert len(index) == after
        with open_index(name, writable=True) as other:
            assert (len(other), len(other.rows), len(set(other.ids()))) == (after, after, after)
            assert other.search(GALLERY, 20).found.sum(1).tolist() == [after] * 40


def test_an_attachment_that_is_cut_off_leaves_the_one_before(name: str) -> None:
    with made(name) as index:
        index.attach("doubt", {"a": torch.ones(40_000)}, {"is": "old"})
        with cut_off(Catalog, "write_pieces", after=True):
            index.attach("doubt", {"a": torch.zeros(40_000)}, {"is": "new"})
        with open_index(name, writable=True) as other:
            tensors, record = other.attached("doubt")  # type: ignore[misc]
            assert (record, float(tensors["a"].sum())) == ({"is": "old"}, 40_000)
            kept = other._driver.parts_of("piece")
            piece = other._driver.text_bytes // 4 * 3
            assert len(kept) == -(-(40_000 * 4 + 200) // piece)  # nothing of the one that was cut off


def test_the_last_writer_is_the_writer(name: str) -> None:
    with made(name) as first, open_index(name, writable=True) as second:
        with pytest.raises(StoreError, match="was opened for writing by another since"):
            first.add(GALLERY[20:21], ["new"])
        second.add(GALLERY[20:21], ["new"])
        assert (len(first), len(second)) == (11, 11)


@pytest.fixture(params=[*SCHEMES, "postgres"])
def lasting(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "postgres":
        with postgres_server.serving() as address:
            yield address
    else:
        yield f"{request.param}:{tmp_path}/gallery"


def test_killed_writers_lose_nothing_that_was_acknowledged(lasting: str) -> None:
    """kill -9 in the middle of additions of ten: all that were told of are there, and no tenth of one."""
    program = f"""
import os
from doubtless.index.backends import create_index_at
from tests.reference import postgres_server
from tests.reference.gallery import drawn
index = create_index_at({lasting!r}, family="gaussian", dim=4, variances=1)
for lot in range(10_000):
    index.add(drawn("gaussian-scalar", 10, dim=4, seed=lot), [f"{{lot}} {{item}}" for item in range(10)])
    os.write(1, b"+")
"""
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=root)
    assert process.stdout is not None
    told = len(process.stdout.read(12))
    if lasting.startswith(("milvus:", "qdrant:")):
        with pytest.raises(StoreError, match="is open in another process"):
            open_index(lasting)
    os.kill(process.pid, signal.SIGKILL)
    told += len(process.stdout.read())
    process.wait()
    process.stdout.close()
    with open_index(lasting, writable=True) as index:
        lots = len(index) // 10
        assert lots in (told, told + 1)
        assert index.ids() == [f"{lot} {item}" for lot in range(lots) for item in range(10)]
        stored = index.embedding([10 * (lots - 1)])
        assert torch.equal(stored.location, drawn("gaussian-scalar", 10, dim=4, seed=lots - 1)[:1].location)


def test_a_search_leaves_out_what_does_not_count_yet(name: str) -> None:
    """Rows of an addition under way are nearest of all, and are not found; nor do they take others' places."""
    with made(name, 5) as index:
        state = index._store.state()
        with cut_off(Catalog, "write_state"):  # nobody clears it away before the next change
            index.add(
                Embedding.gaussian(GALLERY.location[:1].repeat(30, 1), torch.ones(30, 1)), names(30, 100)
            )
        assert index._store.state() == state
        assert sorted(index.search(GALLERY[:1], 5).row[0].tolist()) == list(range(5))
        index.add(GALLERY[20:21], ["next"])  # clears away what the one before it left
        assert sorted(row for row, _ in index._driver.labels(0, 99)) == list(range(6))


def test_an_index_that_somebody_deletes_is_gone_in_words(lasting: str) -> None:
    with made(lasting) as index:
        index._driver.drop()
        with pytest.raises(StoreError, match=r"is gone|did not do what was asked"):
            index.search(GALLERY, 3)


def test_items_with_long_texts_are_sent_in_several_lots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Databases take requests up to a size; numbers and texts count. What is too large goes alone."""
    sent: list[int] = []
    work = LanceDriver.insert

    def counted(self: LanceDriver, first: int, fields: Sequence[Fields], vectors: Mapping[str, Any]) -> None:
        sent.append(len(fields))
        work(self, first, fields, vectors)

    monkeypatch.setattr(LanceDriver, "insert", counted)
    monkeypatch.setattr(LanceDriver, "sent_bytes", 10_000)
    paths = ["x" * length for length in (10, 9_000, 10, 50_000, 4_000, 4_000, 4_000)]
    with made(f"lancedb:{tmp_path}/a") as index:
        index.add(GALLERY[10:17], names(7, 10), paths=paths)
        assert sent == [10, 3, 1, 2, 1]
        assert [item.path for item in index.items(index.rows[10:])] == paths
        assert torch.equal(index.embedding().location, GALLERY.location[:17])


def test_a_lot_fits_into_a_request_to_qdrant() -> None:
    """As JSON, which a server takes up to 32 MiB of."""
    from qdrant_client import models

    item = 12 * 129  # bytes as they are counted: 129 numbers, and two vectors of as many
    lists = torch.randn(3, 129, generator=torch.Generator().manual_seed(0)).tolist()
    point = models.PointStruct(
        id=1, vector=dict(zip(("numbers", "direction", "expected"), lists, strict=True)), payload={"row": 1}
    )
    assert len(point.model_dump_json()) * (QdrantDriver.sent_bytes // item) < 32 * 2**20
