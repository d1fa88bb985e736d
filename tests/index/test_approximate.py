"""HNSW and IVF: what they find is measured against looking at everything, through every change of the index."""

from __future__ import annotations

import json
import os
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.index import building, vector_cache
from doubtless.index import proposals as approximate
from doubtless.index import search as searching
from doubtless.index.folder import FolderIndex
from doubtless.index.proposals import Recipe, kind_for, next_step, recall_of
from doubtless.index.settings import settings_of

COUNT, DIM = 3000, 16


@pytest.fixture(autouse=True)
def faiss_as_it_is_once_a_model_is_loaded() -> None:
    """pytorch-metric-learning imports these bindings, which replace methods of every FAISS index."""
    import faiss.contrib.torch_utils  # noqa: F401


def clustered(family: str, count: int, *, seed: int) -> Embedding:
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(60, DIM, generator=torch.Generator().manual_seed(0))
    location = centre[torch.randint(60, (count,), generator=generator)]
    location = location + 0.7 * torch.randn(count, DIM, generator=generator)
    doubt = 0.2 + torch.rand(count, generator=generator)
    if family == "point":
        return Embedding.point(location)
    if family == "vmf":
        return Embedding.vmf(location, 10 / doubt)
    return Embedding.gaussian(location, doubt[:, None])


def filled(path: Path, family: str, kind: str, score: str = "expected-distance") -> Embedding:
    gallery = clustered(family, COUNT, seed=1)
    variances = 1 if family == "gaussian" else None
    with FolderIndex.create(
        path, family=family, dim=DIM, variances=variances, kind=kind, score=score
    ) as index:
        metadata = [{"even": item % 2 == 0} for item in range(COUNT)]
        index.add(gallery, [str(item) for item in range(COUNT)], metadata=metadata)
    return gallery


def nearest(queries: Embedding, gallery: Embedding, rows: list[int]) -> torch.Tensor:
    """The ten nearest (n, 10) by the family's own formula among these rows."""
    chosen = torch.tensor(rows)
    distance = queries.pairwise_expected_squared_distance(gallery[chosen])
    return chosen[distance.topk(10, largest=False).indices]


def recall(index: FolderIndex, queries: Embedding, gallery: Embedding, rows: list[int], **options) -> float:
    found, wanted = index.search(queries, 10, **options).row, nearest(queries, gallery, rows)
    return float((found.unsqueeze(2) == wanted.unsqueeze(1)).any(2).float().mean())


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
@pytest.mark.parametrize("family", ["point", "gaussian", "vmf"])
def test_recall_through_changes(
    tmp_path: Path, family: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "FEW", 100)  # filters go through the approximate index too
    gallery = filled(tmp_path / "index", family, kind)
    queries, everything = clustered(family, 50, seed=2), list(range(COUNT))
    with FolderIndex.open(tmp_path / "index") as index:
        stats = index.stats()
        assert (stats["kind"], stats["searched_by"]) == (kind, kind)
        assert 0.9 <= stats["recall@10"] <= 1
        assert recall(index, queries, gallery, everything) > 0.9
        even = everything[::2]
        assert recall(index, queries, gallery, even, where={"even": True}) > 0.85
    with FolderIndex.open(tmp_path / "index", writable=True) as index:
        # The nearest items are removed, and others come that only memory holds: none is missed or shown.
        gone = sorted(set(index.search(queries, 3).row.flatten().tolist()))
        index.remove([str(row) for row in gone])
        more = clustered(family, 200, seed=3)
        index.add(more, [f"more {item}" for item in range(200)])
        whole = Embedding.cat([gallery, more])
        left = [row for row in range(COUNT + 200) if row not in set(gone)]
        assert recall(index, queries, whole, left) > 0.85
        assert not set(index.search(queries, 20).row.flatten().tolist()) & set(gone)
        found, wanted = index.search(more, 10).row, nearest(more, whole, left)
        for own, best in zip(found.tolist(), wanted.tolist(), strict=True):
            assert {row for row in best if row >= COUNT} <= set(own)
        index.compact()
        assert index.stats()["searched_by"] == kind
        assert recall(index, queries, whole, left) > 0.9


def test_scores_of_what_was_found_are_exact(tmp_path: Path) -> None:
    gallery, queries = filled(tmp_path / "index", "gaussian", "ivf"), clustered("gaussian", 20, seed=2)
    with FolderIndex.open(tmp_path / "index") as index:
        hits = index.search(queries, 5)
        every = queries.to(torch.float64).pairwise_expected_squared_distance(gallery.to(torch.float64))
        torch.testing.assert_close(
            hits.expected_squared_distance.double(), every.gather(1, hits.row), rtol=1e-5, atol=0
        )
        cosines = queries.direction @ gallery.direction.T
        torch.testing.assert_close(hits.score, cosines.gather(1, hits.row), rtol=0, atol=1e-6)


def test_the_other_score_is_searched_exactly(tmp_path: Path) -> None:
    gallery, queries = filled(tmp_path / "index", "gaussian", "hnsw"), clustered("gaussian", 20, seed=2)
    with FolderIndex.open(tmp_path / "index") as index:
        found = index.search(queries, 10, score="direction").row
        wanted = (queries.direction.double() @ gallery.direction.double().T).topk(10).indices
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("damage", ["cut", "flipped", "gone"])
def test_a_damaged_faiss_file_is_made_again(tmp_path: Path, damage: str) -> None:
    gallery, queries = filled(tmp_path / "index", "vmf", "hnsw"), clustered("vmf", 20, seed=2)
    (file,) = (tmp_path / "index" / "cache").rglob("approximate-*")
    if damage == "cut":
        os.truncate(file, file.stat().st_size // 3)
    elif damage == "flipped":
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    else:
        file.unlink()
    with pytest.warns(RuntimeWarning, match="is damaged"):
        reader = FolderIndex.open(tmp_path / "index")
    with reader as index:
        assert index.stats()["searched_by"] == "flat"
        assert recall(index, queries, gallery, list(range(COUNT))) == 1.0
    with pytest.warns(RuntimeWarning, match="is damaged"):
        FolderIndex.open(tmp_path / "index", writable=True).close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with FolderIndex.open(tmp_path / "index") as index:
            assert index.stats()["searched_by"] == "hnsw"


def test_growth_extends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(approximate, "UNCOVERED", 500)
    monkeypatch.setattr(vector_cache, "TAIL", 1000)
    gallery = filled(tmp_path / "index", "gaussian", "ivf")
    more = clustered("gaussian", 2000, seed=4)
    with FolderIndex.open(tmp_path / "index", writable=True) as index:
        index.add(more, [f"more {item}" for item in range(2000)])
        recipe = index._cache.approximate.recipe
        assert (recipe.count, recipe.trained) == (5000, 3000)
        queries = clustered("gaussian", 50, seed=2)
        assert recall(index, queries, Embedding.cat([gallery, more]), list(range(5000))) > 0.9


def test_sizes_choose_the_kind() -> None:
    def settings(kind: str):
        return settings_of(family="point", dim=4, variances=None, kind=kind, model=None, score="direction")

    chosen = [kind_for(settings("auto"), count) for count in (0, 249_999, 250_000, 1_999_999, 2_000_000)]
    assert chosen == ["flat", "flat", "hnsw", "hnsw", "ivf"]
    assert [kind_for(settings(kind), 10) for kind in ("flat", "hnsw", "ivf")] == ["flat", "hnsw", "ivf"]
    hnsw = Recipe("hnsw", "direction", count=300_000, trained=300_000, effort=16, recall=1.0, items=9)
    auto = settings("auto")
    assert next_step(auto, None, count=200_000) == "keep"
    assert next_step(auto, None, count=300_000) == "build"
    assert next_step(auto, hnsw, count=330_000) == "keep"
    assert next_step(auto, hnsw, count=370_000) == "extend"
    assert next_step(auto, hnsw, count=1_300_000) == "build"
    assert next_step(auto, hnsw, count=2_000_000) == "build"
    assert next_step(auto, hnsw, count=200_000) == "drop"


def test_recall_by_hand() -> None:
    found = np.array([[0, 1, 2], [1, 5, -1]])
    exact = np.array([[0, 2, 3], [1, 4, 5]])
    assert recall_of(found, exact, np.array([0, 1])) == 0.5
    assert recall_of(found[:0], exact[:0], np.zeros(0, np.int64)) == 1.0


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gallery of 3,000 is large, and a writer of a twentieth of a second stays."""
    for name, value in {"FLAT_BELOW": 1000, "UNCOVERED": 300}.items():
        monkeypatch.setattr(approximate, name, value)
    monkeypatch.setattr(vector_cache, "TAIL", 500)
    monkeypatch.setattr(building, "PATIENCE", 0.05)
    monkeypatch.setattr(building, "PIECE", 100)
    monkeypatch.setattr(searching, "FEW", 100)


@pytest.mark.usefixtures("small_steps")
def test_it_is_built_in_the_background_and_not_when_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, going = approximate.Approximate.extended, threading.Event()

    def slowly(self: approximate.Approximate, source: approximate.Source, **options: Any) -> Any:
        going.set()
        stop = options.get("stop", lambda: False)
        while slow and not stop():
            time.sleep(0.005)
        return add(self, source, **options)

    monkeypatch.setattr(approximate.Approximate, "extended", slowly)
    slow, gallery, queries = True, clustered("point", COUNT, seed=1), clustered("point", 50, seed=2)
    everything = list(range(COUNT))
    with FolderIndex.create(tmp_path / "index", family="point", dim=DIM) as index:
        index.add(gallery, [str(item) for item in everything])
        assert going.wait(20)
        assert recall(index, queries, gallery, everything) == 1.0  # exact meanwhile, and nobody waits
        index.add(clustered("point", 5, seed=9), [f"new {item}" for item in range(5)])
        began = time.monotonic()
    assert time.monotonic() - began < 5  # it is given up
    with FolderIndex.open(tmp_path / "index") as index:
        assert index.stats()["searched_by"] == "flat"
    slow = False
    with FolderIndex.open(tmp_path / "index", writable=True) as index:
        index._builder.wait(30)
        assert index.stats()["searched_by"] == "hnsw"
        assert recall(index, queries, gallery, everything) > 0.9
        index.add(clustered("point", 600, seed=10), [f"more {item}" for item in range(600)])
        index._builder.wait(30)
        assert index._cache.approximate is not None
        assert len(index._cache.approximate) > COUNT
    with FolderIndex.open(tmp_path / "index") as index:
        assert index.stats()["searched_by"] == "hnsw"
        assert index.stats()["recall@10"] > 0.9


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
@pytest.mark.parametrize("share", [0.9, 0.6, 0.3])
def test_recall_after_most_were_removed(
    tmp_path: Path, kind: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a compaction, whether what is left is few or many."""
    gallery, queries = filled(tmp_path / "index", "point", kind), clustered("point", 50, seed=2)
    draw = np.random.default_rng(0).permutation(COUNT)
    gone, left = draw[: int(share * COUNT)], sorted(draw[int(share * COUNT) :].tolist())
    with FolderIndex.open(tmp_path / "index", writable=True) as index:
        index.remove([str(item) for item in gone])
        for few in (100, 100_000):
            monkeypatch.setattr(searching, "FEW", few)
            assert recall(index, queries, gallery, left) >= 0.93
            assert index.stats()["recall@10"] >= 0.93


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.99, 1.0])
def test_recall_where_items_were_removed_before_it_was_built(tmp_path: Path, kind: str, share: float) -> None:
    """What is removed has no vector in it: as zeros, a tenth of the items took the links from all others."""
    gallery, queries = clustered("point", COUNT, seed=1), clustered("point", 50, seed=2)
    draw = np.random.default_rng(0).permutation(COUNT)
    gone, left = draw[: int(share * COUNT)], sorted(draw[int(share * COUNT) :].tolist())
    with FolderIndex.create(tmp_path / "index", family="point", dim=DIM, kind=kind) as index:
        index.add(gallery, [str(item) for item in range(COUNT)])
        index.remove([str(item) for item in gone])
    with FolderIndex.open(tmp_path / "index") as index:
        if not left:
            assert not index.search(queries, 10).found.any()
            return
        assert index.stats()["searched_by"] == kind
        assert index.stats()["recall@10"] >= 0.95
        approximate_index = index._cache.approximate
        assert approximate_index is not None
        assert approximate_index.recipe.items == len(left)
        if share < 0.9:
            assert recall(index, queries, gallery, left) >= 0.93
            own = index.search(index.embedding(index.rows), 1).row[:, 0]
            assert float((own == index.rows).float().mean()) > 0.99


def test_one_of_an_earlier_version_is_built_again(tmp_path: Path) -> None:
    """In it items that had been removed are zeros; searches are exact until it is."""
    gallery, queries = filled(tmp_path / "index", "point", "hnsw"), clustered("point", 20, seed=2)
    stamp = tmp_path / "index" / "cache" / "stamp.json"
    record = json.loads(stamp.read_text())
    del record["approximate"]["items"], record["seal"]
    stamp.write_text(json.dumps(record))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with FolderIndex.open(tmp_path / "index") as index:
            assert index.stats()["searched_by"] == "flat"
            assert recall(index, queries, gallery, list(range(COUNT))) == 1.0
        FolderIndex.open(tmp_path / "index", writable=True).close()
        with FolderIndex.open(tmp_path / "index") as index:
            assert index.stats()["searched_by"] == "hnsw"
