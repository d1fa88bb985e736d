"""Novelty against brute force: distances, what half precision and narrowing cost, and what a coreset covers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.doubt.novelty import Novelty, coreset, nearest_cosine_distance
from doubtless.errors import InputError


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def maker(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def brute(queries: Tensor, known: Tensor, *, without: Tensor | None = None) -> Tensor:
    queries, known = normalize(queries.double(), dim=1), normalize(known.double(), dim=1)
    found = []
    for row, query in enumerate(queries):
        cosines = [
            float(query @ item)
            for place, item in enumerate(known)
            if without is None or place != without[row]
        ]
        found.append(1 - max(cosines))
    return torch.tensor(found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_distances_are_brute_force_within_half_precision(dtype: torch.dtype) -> None:
    known, queries = draw(60, 40).to(dtype), draw(25, 40, seed=1).to(dtype)
    found = Novelty.fit(known, generator=maker()).distance(queries)
    # A unit row in half precision is off by at most 2⁻¹¹ of its length, so is a cosine with it.
    assert float((found - brute(queries, known)).abs().max()) < 2**-11
    assert found.dtype == torch.float32


def test_an_item_does_not_find_itself_but_its_duplicate() -> None:
    known = draw(20, 8)
    known[3] = known[11]
    rows = torch.arange(20)
    found = Novelty.fit(known, generator=maker()).distance(known, exclude=rows)
    torch.testing.assert_close(found, brute(known, known, without=rows).float(), rtol=0, atol=2**-10)
    assert float(found[3]) < 2**-10


def test_wide_features_keep_their_distances_narrowed() -> None:
    known, queries = draw(50, 3000), draw(40, 3000, seed=1)
    queries[:20] = known[:20] + 0.5 * queries[:20]
    novelty = Novelty.fit(known, generator=maker())
    assert novelty.reference.shape == (50, 512)
    assert novelty.reference.dtype == torch.float16
    exact, found = brute(queries, known), novelty.distance(queries)
    assert float((found - exact).abs().max()) < 6 / 512**0.5  # a cosine's error has deviation at most 1/√512
    assert float(found[:20].max()) < float(found[20:].min())


def test_scale_of_features_does_not_matter() -> None:
    known, queries = draw(30, 8), draw(9, 8, seed=1)
    novelty = Novelty.fit(known, generator=maker())
    torch.testing.assert_close(novelty.distance(queries), novelty.distance(1000 * queries))


@pytest.mark.parametrize("seed", range(3))
def test_a_coreset_covers_better_than_chance_and_about_as_greed_does(seed: int) -> None:
    crowd = draw(1900, 6, seed=seed) * 0.05 + torch.tensor([1.0, 0, 0, 0, 0, 0])
    features = normalize(torch.cat([crowd, draw(100, 6, seed=50 + seed)]), dim=1)  # a few are far out
    rows = coreset(features, 200, generator=maker(seed))
    radius = float(nearest_cosine_distance(features, features[rows]).max())
    chance = torch.randperm(2000, generator=maker(seed))[:200]
    by_chance = float(nearest_cosine_distance(features, features[chance]).max())
    assert len(rows.unique()) == 200
    assert radius < 0.5 * by_chance
    assert radius <= 2 * farthest_first(features, 100) + 1e-6  # half of the rows are chosen for cover


def farthest_first(features: Tensor, size: int) -> float:
    """Cover radius of the greedy 2-approximation of k centres, one centre at a time."""
    away = 1 - features @ features[0]
    for _ in range(size - 1):
        away = torch.minimum(away, 1 - features @ features[away.argmax()])
    return float(away.max())


def test_a_small_set_is_kept_whole() -> None:
    assert coreset(normalize(draw(7, 3), dim=1), 10, generator=maker()).tolist() == list(range(7))


def test_it_is_the_same_after_saving() -> None:
    queries = draw(5, 700, seed=1)
    novelty = Novelty.fit(draw(30, 700), generator=maker())
    again = Novelty.from_tensors({name: value.clone() for name, value in novelty.tensors().items()})
    assert torch.equal(novelty.distance(queries), again.distance(queries))


def test_features_that_do_not_fit_are_a_sentence() -> None:
    novelty = Novelty.fit(draw(5, 4), generator=maker())
    with pytest.raises(InputError, match="Features have 3 numbers"):
        novelty.distance(draw(2, 3))
    with pytest.raises(InputError, match="shape"):
        Novelty.fit(torch.empty(0, 4), generator=maker())
    with pytest.raises(InputError, match="at least 1"):
        coreset(draw(5, 4), 0, generator=maker())


def test_a_query_makes_no_copy_of_what_is_known() -> None:
    """A server asked it of every picture: 18 MB each time, and a heap that grew around them."""
    novelty, queries = Novelty.fit(draw(50, 3000), generator=maker()), draw(2, 3000, seed=1)
    novelty.distance(queries)
    with torch.profiler.profile(profile_memory=True) as profile:
        novelty.distance(queries)
    taken = [event.self_cpu_memory_usage for event in profile.events()]
    assert max(taken) < 100_000
