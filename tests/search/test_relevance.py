"""Right by distance: counts, metrics, consensus, validation and mining of places, each against loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from doubtless.data import Places
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation import EvaluationOptions, evaluate
from doubtless.search import Positions
from doubtless.search.relevance import count_right, is_right
from doubtless.training.mining import cache_of_places, violating_tuples
from doubtless.training.module import validation_scores

coordinates = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), min_size=1, max_size=12)


def street(count: int, *, seed: int = 0, width: float = 400.0) -> Tensor:
    return torch.rand(count, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.double) * width


def near(first: Tensor, second: Tensor, radius: float = 25.0) -> bool:
    return math.dist(first.tolist(), second.tolist()) <= radius


@settings(deadline=None, max_examples=100)
@given(coordinates, coordinates)
def test_counts_are_those_of_a_loop(asked: list[tuple[int, int]], gallery: list[tuple[int, int]]) -> None:
    # Metres that are multiples of 5: distances of exactly 25 m are common, and count.
    queries, items = (5.0 * torch.tensor(rows).double() + 5e7 for rows in (asked, gallery))
    found = count_right(Positions(queries), Positions(items), leave_one_out=False)
    assert found.tolist() == [sum(near(query, item) for item in items) for query in queries]
    alone = count_right(Positions(queries), Positions(queries), leave_one_out=True)
    assert alone.tolist() == [sum(near(query, item) for item in queries) - 1 for query in queries]


def test_counts_agree_with_what_is_right_for_thousands() -> None:
    queries, items = street(1300, seed=1, width=3000), street(2000, seed=2, width=3000)
    everything = torch.arange(len(items)).expand(len(queries), -1)
    right = is_right(Positions(queries), Positions(items), rows=torch.arange(len(queries)), found=everything)
    counted = count_right(Positions(queries), Positions(items), leave_one_out=False)
    assert torch.equal(right.sum(1), counted)
    assert int(counted.sum()) > 0


@pytest.mark.parametrize("apart", [True, False])
def test_metrics_of_places_are_those_of_a_loop(apart: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    points, positions = torch.randn(60, 6, generator=generator), street(60, width=150)
    items, taken = torch.randn(80, 6, generator=generator), street(80, seed=5, width=150)
    spread = torch.rand(60, 1, generator=generator)
    queries = Embedding.gaussian(points, spread)
    gallery = Embedding.gaussian(items, torch.full((80, 1), 0.1)) if apart else queries
    where = taken if apart else positions
    found = evaluate(
        queries,
        Positions(positions),
        gallery=gallery if apart else None,
        gallery_labels=Positions(where) if apart else None,
        options=EvaluationOptions(bootstrap=0, consensus_samples=20),
    )
    cosine = queries.direction @ gallery.direction.T
    recalls, precisions = [], []
    for row in range(60):
        order = [int(i) for i in cosine[row].argsort(descending=True) if apart or int(i) != row]
        right = [near(positions[row], where[item]) for item in order]
        if not any(right):
            continue
        recalls.append(float(right[0]))
        first = [sum(right[: i + 1]) / (i + 1) for i in range(5) if right[i]]
        precisions.append(sum(first) / min(sum(right), 5))
    assert found["recall@1"] == pytest.approx(sum(recalls) / len(recalls))
    assert found["map@5"] == pytest.approx(sum(precisions) / len(precisions))
    assert found.counts["without_positive"] == 60 - len(recalls)
    assert found.protocol["right"] == "within 25 m"
    assert "classes" not in found.counts
    assert "nmi" not in found.measures
    assert 0 <= found["ece"] <= 1


def test_sure_draws_of_places_are_calibrated_by_what_they_hit() -> None:
    """Draws that never leave their point agree fully, so the error of calibration is the share of wrong hits."""
    positions = street(40, width=120)
    points = torch.randn(40, 8, generator=torch.Generator().manual_seed(1))
    still = Embedding.gaussian(points, torch.full((40, 1), 1e-12))
    options = EvaluationOptions(bootstrap=0, consensus_samples=10)
    found = evaluate(still, Positions(positions), options=options)
    assert found["ece"] == pytest.approx(1 - found["recall@1"])


def test_labels_and_positions_do_not_mix() -> None:
    points = Embedding.point(torch.eye(4))
    with pytest.raises(InputError, match="both have labels, or both positions"):
        evaluate(points, Positions(street(4)), gallery=points, gallery_labels=torch.arange(4))
    with pytest.raises(InputError, match="must be 4 positions"):
        evaluate(points, Positions(street(3)))
    with pytest.raises(InputError, match="no other item lies within 25 m"):
        evaluate(points, Positions(1000.0 * torch.arange(8).view(4, 2)))
    with pytest.raises(InputError, match="finite metres of shape"):
        Positions(torch.tensor([[0.0, math.nan]]))


def some_places(count: int = 70, *, width: float = 200.0) -> Places:
    generator = torch.Generator().manual_seed(3)
    query = torch.rand(count, generator=generator) < 0.4
    return Places(street(count, seed=4, width=width), torch.zeros(count, dtype=torch.long), query)


def test_validation_searches_the_database_for_what_is_near() -> None:
    places = some_places()
    generator = torch.Generator().manual_seed(0)
    direction = torch.nn.functional.normalize(torch.randn(70, 5, generator=generator), dim=-1)
    found = validation_scores(direction, torch.arange(70), places=places)
    database = [i for i in range(70) if not places.query[i]]
    right = []
    for query in range(70):
        if places.query[query] and any(near(places.position[query], places.position[i]) for i in database):
            first = max(database, key=lambda i: float(direction[query] @ direction[i]))
            right.append(near(places.position[query], places.position[first]))
    assert right
    assert found["recall@1"] == pytest.approx(sum(right) / len(right))


def test_mined_tuples_of_places_are_those_of_a_loop() -> None:
    places = some_places()
    generator = torch.Generator().manual_seed(0)
    points = torch.nn.functional.normalize(torch.randn(70, 3, generator=generator), dim=-1)
    labels = places.cells()
    found = violating_tuples(points, labels, places=places, margin=0.1, negatives=3, generator=generator)
    distance = (points[:, None] - points[None]).square().sum(-1)
    assert len(found)
    for anchor, positive, *negatives in found.tolist():
        assert places.query[anchor]
        assert not places.query[positive]
        assert near(places.position[anchor], places.position[positive])
        far = [
            i
            for i in range(70)
            if not places.query[i] and not near(places.position[anchor], places.position[i])
        ]
        assert negatives == sorted(far, key=lambda i: float(distance[anchor, i]))[:3]
        assert distance[anchor, positive] > distance[anchor, negatives[0]] - 0.1
    lonely = Places(places.position, places.region, torch.ones(70, dtype=torch.bool))
    with pytest.raises(InputError, match="No place has a query and another image"):
        violating_tuples(points, labels, places=lonely, margin=0.1, negatives=1)
    dense = Places(places.position / 100, places.region, places.query)
    with pytest.raises(InputError, match="only 0 images of other places"):
        violating_tuples(points, labels, places=dense, margin=0.1, negatives=1)


def test_a_cache_of_places_holds_what_belongs_together() -> None:
    places = some_places(3000, width=5000)
    cache = cache_of_places(places, 200, generator=torch.Generator().manual_seed(0))
    assert len(cache) == len(cache.unique()) == 200
    held = places[cache]
    assert int(held.query.sum()) == 100
    database = torch.nonzero(~places.query)[:, 0]
    for row in torch.nonzero(held.query)[:, 0].tolist():
        spot = held.position[row]
        exists = any(near(spot, places.position[i]) for i in database)
        assert any(near(spot, other) for other in held[~held.query].position) == exists
