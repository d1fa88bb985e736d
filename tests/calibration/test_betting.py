"""Betting over labels: the chance to reject by enumeration, the exact case without a loss, laws."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as some
from scipy.stats import binom
from scipy.stats import norm as normal

from doubtless.calibration.betting import Array, mean_is_below_zero


def shown(value: Array, mean: float, level: float) -> Array:
    """Whether rates (labels, tests) within 0 and 1 are shown to have less than this mean."""
    tests = value.shape[1]
    return mean_is_below_zero(value - mean, *(np.full(tests, number) for number in (mean, 1 - mean, level)))


@pytest.mark.parametrize("values", [(0.0, 1.0), (0.0, 0.5), (0.1, 0.9), (0.0, 0.3, 1.0)])
@pytest.mark.parametrize(("mean", "level"), [(0.2, 0.05), (0.5, 0.1), (0.3, 0.3)])
def test_no_distribution_is_rejected_more_often_than_the_level(
    values: tuple[float, ...], mean: float, level: float
) -> None:
    """All sequences of nine labels, each with its probability under a distribution of just this mean."""
    low, high = values[0], values[-1]
    if not low <= mean <= high:
        pytest.skip("no distribution on these values has this mean")
    middle = 0.2 if len(values) == 3 else 0.0
    rest = (mean - middle * sum(values[1:-1]) - low * (1 - middle)) / (high - low)
    chance = np.array([1 - middle - rest, *([middle] * (len(values) - 2)), rest])
    assert chance @ np.array(values) == pytest.approx(mean)
    assert chance.min() >= 0
    sequences = np.array(list(itertools.product(range(len(values)), repeat=9)))
    rejected = shown(np.array(values)[sequences].T, mean, level)
    total = float(chance[sequences].prod(1)[rejected].sum())
    assert total <= level + 1e-12


@pytest.mark.parametrize("mean", [0.3, 0.5])
def test_what_is_shown_of_a_mean_is_shown_of_larger_ones(mean: float) -> None:
    """The room for unknown queries is itself found from data, so no smaller mean may be rejected more easily."""
    sequences = np.array(list(itertools.product((0.0, 1.0), repeat=9)))
    chance = np.where(sequences > 0, mean, 1 - mean).prod(1)
    smaller = np.array([shown(sequences.T, part * mean, 0.1) for part in np.linspace(0.1, 1, 30)])
    assert (np.maximum.accumulate(smaller, axis=0) == smaller).all()
    assert 0 < float(chance[smaller.any(0)].sum()) <= 0.1


def test_it_rejects_nearly_as_often_as_the_best_test() -> None:
    """Where the mean is half of what is tested; a constant bet, or one that forgets the end, stays far below."""
    random = np.random.default_rng(0)
    rates = (random.random((200, 2000)) < 0.05).astype(np.float64)
    ours = shown(rates, 0.1, 0.05).mean()
    best = binom.cdf(binom.ppf(0.05, 200, 0.1) - 1, 200, 0.05)
    assert best - 0.1 < ours <= best + 0.05


@given(some.integers(1, 400), some.floats(0.003, 0.6), some.floats(0.001, 0.2))
@example(8, 0.203125, 0.1875)  # where the bets come too late
def test_without_any_answer_it_is_the_binomial_test(labels: int, mean: float, level: float) -> None:
    tail = labels * math.log1p(-mean)
    if abs(tail - math.log(level)) < 1e-6:
        return
    found, exact = bool(shown(np.zeros((labels, 1)), mean, level)[0]), tail <= math.log(level)
    assert exact or not found  # it never shows what the exact test does not
    if labels >= 20 or mean <= 0.1:
        assert found == exact


@given(some.integers(0, 2**32 - 1), some.integers(1, 60))
def test_answers_everywhere_show_nothing_and_tests_do_not_touch_each_other(seed: int, labels: int) -> None:
    random = np.random.default_rng(seed)
    value = random.random((labels, 5)) - 0.3
    floor, ceiling, level = np.full(5, 0.3), np.full(5, 0.7), random.uniform(0.01, 0.5, 5)
    together = mean_is_below_zero(value, floor, ceiling, level)
    for test in range(5):
        alone = mean_is_below_zero(value[:, [test]], floor[:1], ceiling[:1], level[[test]])
        assert alone[0] == together[test]
    assert not mean_is_below_zero(np.abs(value), floor, ceiling, level).any()


def test_means_of_many_labels_are_shown_as_the_normal_distribution_would() -> None:
    random = np.random.default_rng(1)
    value = random.normal(0, 0.1, (2000, 400)).clip(-0.5, 0.5)
    half, level = np.full(400, 0.5), np.full(400, 0.05)
    assert mean_is_below_zero(value, half, half, level).mean() <= binom.ppf(0.999, 400, 0.05) / 400
    shift = 0.1 / math.sqrt(2000) * 3
    power = mean_is_below_zero((value - shift).clip(-0.5, 0.5), half, half, level).mean()
    assert power == pytest.approx(normal.cdf(3 - 1.645), abs=0.08)


def test_no_labels_show_nothing() -> None:
    one = np.ones(2)
    assert not mean_is_below_zero(np.zeros((0, 2)), one, one, 0.05 * one).any()
