"""Tail probabilities and oddity: uniform for known queries, blind to scale, far for what is unlike them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from doubtless.doubt.tails import Oddity, Tail, _normal_score
from doubtless.errors import InputError


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def kolmogorov_smirnov(probability: Tensor) -> float:
    """Largest gap between the share below and the uniform law."""
    ordered, n = probability.sort().values, len(probability)
    steps = torch.arange(1, n + 1) / n
    return float(torch.maximum((steps - ordered).abs(), (ordered - steps + 1 / n).abs()).max())


def by_counting(sample: list[float], value: float) -> float:
    greater, equal = sum(x > value for x in sample), sum(x == value for x in sample)
    return (greater + 0.5 * equal + 0.5) / (len(sample) + 1)


@pytest.mark.parametrize("seed", range(3))
def test_exchangeable_values_have_uniform_probabilities(seed: int) -> None:
    sample, fresh = draw(4000, seed=seed).exp(), draw(2000, seed=100 + seed).exp()
    gap = kolmogorov_smirnov(Tail(sample).probability(fresh))
    # Two samples: sup gap below 1.95 √((n + m)/(n m)) with probability .999; other laws are far beyond.
    bound = 1.95 * math.sqrt(6000 / 8e6)
    assert gap < bound
    assert kolmogorov_smirnov(Tail(sample).probability(1.2 * fresh)) > bound


@given(
    st.lists(st.integers(-5, 5).map(float), min_size=2, max_size=30),
    st.lists(st.integers(-6, 5).map(float), min_size=1, max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_probabilities_are_counted_with_ties_at_their_expectation(
    sample: list[float], values: list[float]
) -> None:
    found = Tail(torch.tensor(sample)).probability(torch.tensor(values))
    for value, probability in zip(values, found.tolist(), strict=True):
        if value <= max(sample):
            assert probability == pytest.approx(by_counting(sample, value), abs=1e-12)


def test_a_rising_transform_changes_nothing_inside_the_sample() -> None:
    sample, fresh = draw(500), draw(200, seed=1)
    fresh = fresh[fresh <= sample.max()]
    plain = Tail(sample).probability(fresh)
    for transform in (torch.exp, lambda x: x**3 + x, lambda x: 7 * x - 2):
        torch.testing.assert_close(
            Tail(transform(sample)).probability(transform(fresh)), plain, rtol=0, atol=1e-12
        )


def test_beyond_the_sample_values_stay_apart_and_far() -> None:
    tail = Tail(draw(100))
    top = float(tail.sample[-1])
    beyond = torch.tensor([top, top + 0.1, top + 1, top + 5, math.inf], dtype=torch.double)
    found = tail.surprise(beyond)
    assert bool((found.diff() > 0).all())
    assert bool(found.isfinite().all())
    # At the edge the count's floor, one exponential scale further e times less.
    assert float(tail.surprise(torch.tensor([top + 1e-9]))) == pytest.approx(math.log(2 * 101), abs=1e-6)
    assert float(tail.surprise(torch.tensor([top + tail.scale]))) == pytest.approx(
        math.log(202) + 1, abs=1e-6
    )


def test_a_sample_of_one_value_knows_only_as_large_or_larger() -> None:
    tail = Tail(torch.ones(9))
    assert tail.probability(torch.tensor([0.0, 1.0]))[1] == pytest.approx(0.5)
    assert float(tail.probability(torch.tensor([1.1]))) < 1e-100


@pytest.mark.parametrize("sample", [torch.empty(0), torch.zeros(2, 2), torch.tensor([1.0, math.nan])])
def test_samples_that_cannot_be_ranked_are_refused(sample: Tensor) -> None:
    with pytest.raises(InputError):
        Tail(sample)


def test_normal_scores_are_quantiles_near_and_far() -> None:
    import mpmath

    for surprise in (0.7, 2.0, 10.0, 29.0, 31.0, 100.0, 250.0):
        z = float(_normal_score(torch.tensor([surprise], dtype=torch.double)))
        with mpmath.workdps(50):
            tail = float(-mpmath.log(mpmath.erfc(mpmath.mpf(z) / mpmath.sqrt(2)) / 2))
        assert tail == pytest.approx(surprise, rel=1e-3)
    across = _normal_score(torch.linspace(25, 40, 4000, dtype=torch.double))
    assert bool((across.diff() > 0).all())


def test_known_queries_are_as_odd_as_known_queries() -> None:
    mixing = torch.tensor([[1.0, 0.6, 0.2], [0.0, 0.8, -0.3], [0.0, 0.0, 0.9]], dtype=torch.double)

    def signals(seed: int) -> dict[str, Tensor]:
        columns = draw(3000, 3, seed=seed) @ mixing
        return dict(zip(("image", "model", "novelty"), columns.T, strict=True))

    gap = kolmogorov_smirnov(Oddity(signals(0)).surprise(signals(1)).neg().exp())
    assert gap < 1.95 * math.sqrt(6000 / 9e6)


def test_oddity_sees_both_sides_but_nearness_to_the_known_is_none() -> None:
    known = {"image": draw(2000), "novelty": draw(2000, seed=1)}
    still = torch.zeros(2, dtype=torch.double)
    oddity = Oddity(known)
    sure = oddity.surprise({"image": torch.tensor([-6.0, 6.0]), "novelty": still})
    assert bool((sure > 3).all())
    near, far = oddity.surprise({"image": still, "novelty": torch.tensor([-6.0, 6.0])}).tolist()
    assert near < 1.5 < 4 < far


def test_oddity_sees_signals_that_never_go_together() -> None:
    common = draw(2000)
    known = {"image": common + 0.1 * draw(2000, seed=1), "model": common + 0.1 * draw(2000, seed=2)}
    odd = Oddity(known).surprise({"image": torch.tensor([1.2, 1.2]), "model": torch.tensor([1.2, -1.2])})
    assert float(odd[0]) < 2 < 5 < float(odd[1])


def test_oddity_is_the_same_after_saving() -> None:
    known = {"image": draw(300), "novelty": draw(300, seed=1)}
    fresh = {"image": 3 * draw(50, seed=2), "novelty": 3 * draw(50, seed=3)}
    oddity = Oddity(known)
    again = Oddity.from_tensors({name: value.clone() for name, value in oddity.tensors().items()})
    assert torch.equal(oddity.surprise(fresh), again.surprise(fresh))
