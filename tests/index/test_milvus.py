"""What is Milvus's alone: changes that are cut off, a second writer, approximate kinds, what it cannot take."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from doubtless.embedding import Embedding
from doubtless.errors import InputError, StoreError
from doubtless.index.backends import open_index
from doubtless.index.milvus.conditions import expression
from doubtless.index.milvus.connection import MILVUS
from doubtless.index.milvus.index import MilvusIndex
from doubtless.index.remote.catalog import Catalog
from doubtless.index.remote.facts import filter_keys_of
from doubtless.index.remote.store import RemoteStore
from doubtless.ingest.create import create_index
from doubtless.ingest.shards import EmbeddedShard
from tests.index.test_search import names
from tests.reference.gallery import drawn

GALLERY = drawn("gaussian-scalar", 40, dim=4, seed=1)


@pytest.fixture
def name(tmp_path: Path) -> str:
    return f"milvus:{tmp_path}/gallery.db"


def made(name: str, count: int = 10, **options: object) -> MilvusIndex:
    index = MilvusIndex.create(name, family="gaussian", dim=4, variances=1, **options)  # type: ignore[arg-type]
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


CHANGES: list[tuple[Callable[[MilvusIndex], None], int]] = [
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
            with MilvusIndex.open(name, writable=step != "as it lies") as other:
                assert torch.equal(other.search(GALLERY, 10).row, before[0].row)
                assert (other.items(other.rows), other.label_names, len(other)) == (*before[1:], 10)
    with MilvusIndex.open(name, writable=True) as index:
        change(index)
        assert len(index) == len(index.rows) == after


@pytest.mark.parametrize(("change", "after"), CHANGES, ids=["add", "update", "remove"])
def test_a_change_that_is_cut_off_after_it_counts_is_completed(name: str, change, after: int) -> None:
    with made(name) as index:
        with cut_off(RemoteStore, "_complete"):
            change(index)
        assert len(index) == after
        with MilvusIndex.open(name, writable=True) as other:
            assert (len(other), len(other.rows), len(set(other.ids()))) == (after, after, after)
            assert other.search(GALLERY, 20).found.sum(1).tolist() == [after] * 40


def test_an_attachment_that_is_cut_off_leaves_the_one_before(name: str) -> None:
    with made(name) as index:
        index.attach("doubt", {"a": torch.ones(40_000)}, {"is": "old"})
        with cut_off(Catalog, "write_pieces", after=True):
            index.attach("doubt", {"a": torch.zeros(40_000)}, {"is": "new"})
        with MilvusIndex.open(name, writable=True) as other:
            tensors, record = other.attached("doubt")  # type: ignore[misc]
            assert (record, float(tensors["a"].sum())) == ({"is": "old"}, 40_000)
            kept = other._driver.parts_of("piece")
            assert len(kept) == -(-(40_000 * 4 + 200) // 49_149)  # nothing of the one that was cut off


def test_the_last_writer_is_the_writer(name: str) -> None:
    with made(name) as first, MilvusIndex.open(name, writable=True) as second:
        with pytest.raises(StoreError, match="was opened for writing by another since"):
            first.add(GALLERY[20:21], ["new"])
        second.add(GALLERY[20:21], ["new"])
        assert (len(first), len(second)) == (11, 11)


def test_killed_writers_lose_nothing_that_was_acknowledged(name: str) -> None:
    """kill -9 in the middle of additions of ten: all that were told of are there, and no tenth of one."""
    program = f"""
import os
from doubtless.index.milvus.index import MilvusIndex
from tests.reference.gallery import drawn
index = MilvusIndex.create({name!r}, family="gaussian", dim=4, variances=1)
for lot in range(10_000):
    index.add(drawn("gaussian-scalar", 10, dim=4, seed=lot), [f"{{lot}} {{item}}" for item in range(10)])
    os.write(1, b"+")
"""
    root = Path(__file__).parents[2]
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, cwd=root)
    assert process.stdout is not None
    told = len(process.stdout.read(12))
    with pytest.raises(StoreError, match="is open in another process"):
        open_index(name)
    os.kill(process.pid, signal.SIGKILL)
    told += len(process.stdout.read())
    process.wait()
    process.stdout.close()
    with MilvusIndex.open(name, writable=True) as index:
        lots = len(index) // 10
        assert lots in (told, told + 1)
        assert index.ids() == [f"{lot} {item}" for lot in range(lots) for item in range(10)]
        stored = index.embedding([10 * (lots - 1)])
        assert torch.equal(stored.location, drawn("gaussian-scalar", 10, dim=4, seed=lots - 1)[:1].location)


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_approximate_kinds_find_nearly_everything(name: str, kind: str) -> None:
    gallery, queries = drawn("vmf", 3000, dim=16, seed=1), drawn("vmf", 50, dim=16, seed=2)
    with MilvusIndex.create(name, family="vmf", dim=16, kind=kind) as index:  # type: ignore[arg-type]
        index.add(gallery, names(3000))
    with open_index(name) as index:
        for score in ("direction", "expected-distance"):
            hits = index.search(queries, 10, score=score)  # type: ignore[arg-type]
            values = queries.direction @ gallery.direction.T
            values = values * gallery.resultant if score == "expected-distance" else values
            exact = values.topk(10).indices
            found = [
                len(set(own) & set(wanted))
                for own, wanted in zip(hits.row.tolist(), exact.tolist(), strict=True)
            ]
            assert np.mean(found) >= 9
        assert (index.stats()["searched_by"], index.stats()["recall@10"]) == (kind, None)


def test_what_milvus_cannot_take_is_refused_before_anything_is_stored(name: str) -> None:
    with made(name) as index:
        one, long = GALLERY[20:21], "x" * 70_000
        refused = [
            (lambda: index.add(one, [long]), "has 70,000 bytes; Milvus takes up to 65,535"),
            (lambda: index.add(one, ["new"], labels=[long]), "The label that starts"),
            (lambda: index.add(one, ["new"], paths=[long]), "The path of item 'new'"),
            (lambda: index.add(one, ["new"], metadata=[{"a": long}]), "The metadata of item 'new'"),
            (lambda: index.add(one, ["new"], metadata=[{str(n): n for n in range(3000)}]), "too many names"),
        ]
        for call, sentence in refused:
            with pytest.raises(InputError, match=sentence):
                call()
        assert (len(index), index.rows.tolist(), index.label_names) == (10, list(range(10)), ["cat"])
    with pytest.raises(InputError, match="at most 32,768 numbers per vector"):
        MilvusIndex.create(f"{name}-wide", family="gaussian", dim=20_000)


def test_a_search_leaves_out_what_does_not_count_yet(name: str) -> None:
    """Rows of an addition under way are nearest of all, and are not found; nor do they take others' places."""
    with made(name, 5) as index:
        state = index._store.state()
        with cut_off(Catalog, "write_state"):
            index.add(
                Embedding.gaussian(GALLERY.location[:1].repeat(30, 1), torch.ones(30, 1)), names(30, 100)
            )
        assert index._store.state() == state
        assert sorted(index.search(GALLERY[:1], 5).row[0].tolist()) == list(range(5))
        index.add(GALLERY[20:21], ["next"])  # clears away what the one before it left
        assert sorted(row for row, _ in index._driver.labels(0, 99)) == list(range(6))


def test_places_that_are_something_else(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "letter").write_text("mine")
    for place in ("file", "folder"):
        with pytest.raises(InputError, match="nothing of Milvus Lite's"):
            MilvusIndex.create(f"milvus:{tmp_path}/{place}", family="point", dim=2)
    for wrong in ("milvus:", "milvus:http://", "milvus:http://host:1/a/b", "milvus:http://host:1/a-b"):
        with pytest.raises(InputError, match=r"accepted: milvus:"):
            open_index(wrong)
    with pytest.raises(StoreError, match="did not do what was asked"):
        open_index("milvus:http://127.0.0.1:9")
    assert MILVUS.parse("milvus:https://host:1/shoes").parts == "shoes_parts"


def test_a_collection_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    from pymilvus import MilvusClient

    client = MilvusClient(f"{tmp_path}/theirs.db")
    client.create_collection("doubtless", dimension=4)
    client.insert("doubtless", [{"id": 1, "vector": [1.0, 0, 0, 0]}])
    client.close()
    from milvus_lite.server_manager import server_manager_instance

    server_manager_instance.release_server(f"{tmp_path}/theirs.db")
    with pytest.raises(InputError, match="a collection 'doubtless' that is none of doubtless's"):
        MilvusIndex.create(f"milvus:{tmp_path}/theirs.db", family="point", dim=4)
    with pytest.raises(StoreError, match="is no index"):
        open_index(f"milvus:{tmp_path}/theirs.db")


def test_a_creation_is_whole_or_not_there(name: str) -> None:
    def parts(broken: bool):
        for start in (0, 10):
            if start and broken:
                raise InputError("the disk of the images is gone.")
            lot = GALLERY[start : start + 10]
            yield EmbeddedShard(lot, names(10, start), [None] * 10, [None] * 10, [{}] * 10, [])

    with pytest.raises(InputError, match="images is gone"):
        create_index(name, parts(broken=True))
    with pytest.raises(StoreError, match="is no index"):
        open_index(name)
    done = create_index(name, parts(broken=False), run="runs/first", model="m")
    assert (done.items, done.path) == (20, name)
    with open_index(name) as index:
        assert (len(index), index.model, index.attached("model") is not None) == (20, "m", True)
    with pytest.raises(InputError, match="exists already"):
        create_index(name, parts(broken=False))


PLAIN = st.one_of(
    st.text(max_size=3), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, 1.0, -2.0, None])
)


@given(st.dictionaries(st.sampled_from("abc"), PLAIN), st.sampled_from("abc"), st.lists(PLAIN, max_size=3))
def test_facts_hold_as_json_compares(metadata: dict[str, object], key: str, wanted: list[object]) -> None:
    """An item fulfils a filter exactly where a value equals one that is wanted, a truth value being no number."""

    def same(one: object, other: object) -> bool:
        return isinstance(one, bool) == isinstance(other, bool) and one == other

    holds = any(same(metadata.get(key), value) for value in wanted)
    facts = filter_keys_of(json.dumps(metadata))
    said = expression({key: wanted}, [])

    def array_contains_any(_: object, values: list[int]) -> bool:
        return bool(set(values) & set(facts))

    names_ = {"array_contains_any": array_contains_any, "facts": facts, "row": 0}
    names_["array_contains"] = lambda _, value: value in facts
    assert eval(said, {"__builtins__": {}}, names_) == holds
