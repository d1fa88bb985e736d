"""A search of an index finds what looking at every item finds, for every family, score and state of the cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery import Gallery
from doubtless.index.folder import FolderIndex
from doubtless.index.search import propose
from tests.reference.gallery import DRAWN, brute_force, drawn

SCORES = ("direction", "expected-distance")


def names(count: int, start: int = 0) -> list[str]:
    return [f"item {number}" for number in range(start, start + count)]


def created(path: Path, embedding: Embedding, **options) -> FolderIndex:
    variance = embedding.parameters.get("variance")
    variances = None if variance is None else variance.shape[1]
    return FolderIndex.create(
        path, family=embedding.family, dim=embedding.dim, variances=variances, **options
    )


def assert_found(hits, wanted, rows: list[int], k: int) -> None:
    """Same items in the same order, up to pairs that float32 cannot tell apart; same cosines and distances."""
    for query, best in enumerate(wanted):
        count = len(best)
        assert hits.row[query, count:].tolist() == [-1] * (k - count)
        assert hits.row[query, :count].tolist() == [rows[position] for position, _, _ in best]
        cosines = torch.tensor([cosine for _, cosine, _ in best])
        distances = torch.tensor([distance for _, _, distance in best])
        torch.testing.assert_close(hits.score[query, :count], cosines, rtol=0, atol=5e-7)
        torch.testing.assert_close(
            hits.expected_squared_distance[query, :count], distances, rtol=1e-5, atol=2e-6
        )


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("family", list(DRAWN))
def test_equals_brute_force(tmp_path: Path, family: str, score: str) -> None:
    """Part of the gallery mapped from files, part in memory, some removed."""
    gallery, queries = drawn(family, 60, seed=1), drawn(family, 7, seed=2)
    with created(tmp_path / "index", gallery) as index:
        index.add(gallery[:40], names(40))
    with FolderIndex.open(tmp_path / "index", writable=True) as index:
        index.add(gallery[40:], names(20, 40))
        index.remove(["item 3", "item 17", "item 51"])
        kept = [item for item in range(60) if item not in (3, 17, 51)]
        for k in (1, 10, 100):
            hits = index.search(queries, k, score=score)
            assert_found(hits, brute_force(queries, gallery[kept], k, score=score), kept, k)


def test_doubt_changes_the_order_of_expected_distances(tmp_path: Path) -> None:
    """The near item is so unsure that the farther, sure one is expected to be closer."""
    gallery = Embedding.gaussian(torch.tensor([[1.0, 0.1], [1.0, 0.5]]), torch.tensor([[0.5], [0.001]]))
    query = Embedding.gaussian(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.1]]))
    with created(tmp_path / "index", gallery) as index:
        index.add(gallery, ["unsure", "sure"])
        assert index.ids(index.search(query, 2).row[0]) == ["unsure", "sure"]
        assert index.ids(index.search(query, 2, score="expected-distance").row[0]) == ["sure", "unsure"]
    with created(tmp_path / "by distance", gallery, score="expected-distance") as index:
        index.add(gallery, ["unsure", "sure"])
        assert index.ids(index.search(query, 2).row[0]) == ["sure", "unsure"]


@pytest.mark.parametrize("queries", [1, 5, 50])
@pytest.mark.parametrize("k", [1, 10, 150])
def test_rows_that_are_not_numbers_are_never_proposed(queries: int, k: int) -> None:
    """What removal rests on, for each of the ways FAISS goes by the number of queries and of k."""
    rng = np.random.default_rng(k + queries)
    vectors = rng.normal(size=(400, 16)).astype(np.float32)
    asked = rng.normal(size=(queries, 16)).astype(np.float32)
    gone = rng.choice(400, 300, replace=False)
    left = np.setdiff1d(np.arange(400), gone)
    removed = vectors.copy()
    removed[gone] = np.nan
    found = propose(asked, [(0, removed)], k)
    exact = (asked.astype(np.float64) @ vectors[left].T.astype(np.float64)).argsort(1)[:, ::-1]
    for own, wanted in zip(found, exact, strict=True):
        assert set(own[own >= 0]) == set(left[wanted[:k]])


def test_equal_items_come_in_the_order_of_their_rows(tmp_path: Path) -> None:
    with FolderIndex.create(tmp_path / "index", family="point", dim=3) as index:
        index.add(Embedding.point(torch.tensor([[0.3, 0.4, 0.5]]).repeat(6, 1)), names(6))
        assert index.search(Embedding.point(torch.ones(1, 3)), 6).row.tolist() == [[0, 1, 2, 3, 4, 5]]


def test_far_from_the_origin_distances_stay_exact(tmp_path: Path) -> None:
    """Means 100 long that lie 0.01 apart: a float32 inner product cannot tell; what it proposes is measured."""
    generator = torch.Generator().manual_seed(0)
    offset = torch.full((1, 4), 50.0)
    gallery = Embedding.gaussian(
        offset + 0.01 * torch.randn(6, 4, generator=generator), torch.full((6, 1), 1e-6)
    )
    query = Embedding.gaussian(offset, torch.full((1, 1), 1e-6))
    with created(tmp_path / "index", gallery, score="expected-distance") as index:
        index.add(gallery, names(6))
        wanted = brute_force(query, gallery, 6, score="expected-distance")[0]
        hits = index.search(query, 6)
        assert hits.row[0].tolist() == [position for position, _, _ in wanted]
        torch.testing.assert_close(
            hits.expected_squared_distance[0],
            torch.tensor([distance for *_, distance in wanted]),
            rtol=1e-5,
            atol=0,
        )


@pytest.mark.parametrize("family", list(DRAWN))
def test_an_empty_index_and_one_item(tmp_path: Path, family: str) -> None:
    gallery, queries = drawn(family, 1), drawn(family, 3, seed=1)
    with created(tmp_path / "index", gallery) as index:
        hits = index.search(queries, 4)
        assert (len(index), hits.row.tolist()) == (0, [[-1] * 4] * 3)
        assert bool((hits.score == -torch.inf).all())
        assert bool((hits.expected_squared_distance == torch.inf).all())
        assert index.labels.tolist() == index.rows.tolist() == []
        assert len(index.embedding()) == 0
        index.add(gallery, ["only"])
        assert index.search(queries, 2).row.tolist() == [[0, -1]] * 3
        assert index.search(queries[:0], 2).row.shape == (0, 2)
        index.remove(["only"])
        assert index.search(queries, 2).row.tolist() == [[-1, -1]] * 3


def test_hits_carry_labels_and_doubt(tmp_path: Path) -> None:
    gallery, queries = drawn("vmf", 5), drawn("vmf", 2, seed=1)
    with created(tmp_path / "index", gallery) as index:
        index.add(gallery, names(5))
        assert index.search(queries, 5).label is None
        index.update(gallery, names(5), labels=["cat", None, "dog", "cat", None])
        hits = index.search(queries, 6)
        rows = dict(zip(index.rows.tolist(), range(5), strict=True))
        for query in range(2):
            found = [rows[row] for row in hits.row[query, :5].tolist()]
            assert hits.label[query].tolist() == [[0, -1, 1, 0, -1][item] for item in found] + [-1]
            torch.testing.assert_close(hits.uncertainty[query, :5], gallery.uncertainty[found])
        assert bool((hits.uncertainty[:, 5] == torch.inf).all())
        torch.testing.assert_close(hits.query_uncertainty, queries.uncertainty)
    points = Embedding.point(torch.eye(2))
    with created(tmp_path / "points", points) as index:
        index.add(points, names(2))
        hits = index.search(points, 1)
        assert hits.uncertainty is None
        assert hits.query_uncertainty is None


def test_samples_are_kept_as_von_mises_fisher(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(1, 20, 8, generator=generator) + 0.3 * torch.randn(6, 20, 8, generator=generator)
    gallery = Embedding.empirical(samples)
    with FolderIndex.create(tmp_path / "index", family="empirical", dim=8) as index:
        index.add(gallery, names(20))
        assert index.family == "vmf"
        hits = index.search(gallery, 1)
        assert hits.row[:, 0].tolist() == list(range(20))
        torch.testing.assert_close(hits.query_uncertainty, gallery.uncertainty)
        torch.testing.assert_close(index.embedding().direction, gallery.direction)
        index.add(Embedding.empirical(samples[:1, :1].repeat(3, 1, 1)), ["all samples agree"])
        stored = index.embedding([20])
        assert float(stored.resultant) == 1.0


WHERE = [
    ({"label": "cat"}, lambda item: item % 3 == 0),
    ({"label": ["cat", None]}, lambda item: item % 3 != 1),
    ({"label": ["bird"]}, lambda item: False),
    ({"label": []}, lambda item: False),
    ({"shelf": 2}, lambda item: item % 5 == 2),
    ({"shelf": [2, 2.0, 4]}, lambda item: item % 5 in (2, 4)),
    ({"shelf": True}, lambda item: False),
    ({"sold": True}, lambda item: item % 2 == 0),
    ({"sold": 1}, lambda item: False),
    ({"sold": None}, lambda item: item % 2 == 1),
    ({"kind of": "a b"}, lambda item: item % 7 == 0),
    ({"kind of": "nothing"}, lambda item: False),
    ({"no such name": 1}, lambda item: False),
    (
        {"label": "dog", "shelf": [0, 1], "sold": True},
        lambda item: item % 3 == 1 and item % 5 < 2 and item % 2 == 0,
    ),
]


@pytest.fixture(scope="module")
def shelves(tmp_path_factory: pytest.TempPathFactory) -> FolderIndex:
    gallery = drawn("gaussian-scalar", 120, seed=1)
    metadata = [
        {
            "shelf": item % 5,
            **({"sold": True} if item % 2 == 0 else {}),
            "kind of": "a b" if item % 7 == 0 else "ä",
        }
        for item in range(120)
    ]
    index = created(tmp_path_factory.mktemp("shelves") / "index", gallery)
    index.add(
        gallery, names(120), labels=[("cat", "dog", None)[item % 3] for item in range(120)], metadata=metadata
    )
    index.remove(["item 0", "item 30"])
    return index


@pytest.mark.parametrize(("where", "holds"), WHERE)
@pytest.mark.parametrize("score", SCORES)
def test_filters(shelves: FolderIndex, where, holds, score: str) -> None:
    queries = drawn("gaussian-scalar", 5, seed=9)
    kept = [item for item in range(120) if holds(item) and item not in (0, 30)]
    hits = shelves.search(queries, 10, where=where, score=score)
    gallery = drawn("gaussian-scalar", 120, seed=1)[torch.tensor(kept, dtype=torch.long)]
    assert_found(hits, brute_force(queries, gallery, 10, score=score), kept, 10)


def test_refused_searches(shelves: FolderIndex) -> None:
    query = drawn("gaussian-scalar", 1)
    with pytest.raises(InputError, match="k must be at least 1, got 0"):
        shelves.search(query, 0)
    with pytest.raises(InputError, match="did you mean 'expected-distance'"):
        shelves.search(query, 1, score="expected_distance")
    with pytest.raises(InputError, match="holds gaussian embeddings, got point"):
        shelves.search(Embedding.point(torch.ones(1, 8)), 1)
    with pytest.raises(InputError, match="dimension 8, got embeddings of 4"):
        shelves.search(drawn("gaussian-scalar", 1, dim=4), 1)
    with pytest.raises(InputError, match="stores one variance per item, got 8"):
        shelves.search(drawn("gaussian-diagonal", 1), 1)
    with pytest.raises(InputError, match="Query 1 has a location of length 0"):
        shelves.search(
            Embedding.gaussian(torch.eye(2, 8) * torch.tensor([[1.0], [0.0]]), torch.ones(2, 1)), 1
        )
    with pytest.raises(InputError, match="The filter on 'shelf' takes strings"):
        shelves.search(query, 1, where={"shelf": {"more": "than"}})
    with pytest.raises(InputError, match="NaN"):
        shelves.search(Embedding.gaussian(torch.full((1, 8), torch.nan), torch.ones(1, 1)), 1)


def test_a_gaussian_query_at_the_origin_has_distances(shelves: FolderIndex) -> None:
    query = Embedding.gaussian(torch.zeros(1, 8), torch.ones(1, 1))
    gallery = drawn("gaussian-scalar", 120, seed=1)
    kept = [item for item in range(120) if item not in (0, 30)]
    hits = shelves.search(query, 5, score="expected-distance")
    assert_found(hits, brute_force(query, gallery[kept], 5, score="expected-distance"), kept, 5)


def test_more_hits_than_items_take_no_memory(tmp_path: Path) -> None:
    """A thousand million places would be 28 GB for one query."""
    with FolderIndex.create(tmp_path / "index", family="point", dim=3) as index:
        index.add(Embedding.point(torch.eye(3)), ["a", "b", "c"], metadata=[{"n": n} for n in range(3)])
        for k, where in ((10**9, None), (np.int64(10**9), {"n": [1, 2]}), (2**62, None)):
            hits = index.search(Embedding.point(torch.eye(3)), k, where=where)
            assert hits.row.shape == (3, 1000)
            assert int(hits.found[0].sum()) == (3 if where is None else 2)
        assert index.search(Embedding.point(torch.eye(3)), 5).row.shape == (3, 5)
        answers = Gallery(index).ask(Embedding.point(torch.eye(3)), k=10**9)
        assert [len(answer.hits) for answer in answers] == [3, 3, 3]
        for k in (1e9, "5", True, None):
            with pytest.raises(InputError, match="k is a whole number of hits"):
                index.search(Embedding.point(torch.eye(3)), k)  # type: ignore[arg-type]
            with pytest.raises(InputError, match="k is a whole number of hits"):
                Gallery(index).ask(Embedding.point(torch.eye(3)), k=k)  # type: ignore[arg-type]
