"""Abstention: exact binomial laws, ties, edges, and the guarantee counted over many repetitions."""

from __future__ import annotations

import math

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from scipy.stats import binom, binomtest
from torch import Tensor

from doubtless.calibration.risk import RiskControl, error_p_value, last_passed, upper_bound
from doubtless.errors import InputError


@given(some.integers(1, 200), some.data(), some.sampled_from([0.5, 0.9, 0.95, 0.999]))
def test_upper_bound_is_clopper_pearson(count: int, data: some.DataObject, confidence: float) -> None:
    errors = data.draw(some.integers(0, count))
    ours = float(upper_bound(torch.tensor([errors]), torch.tensor([count]), confidence=confidence))
    interval = binomtest(errors, count).proportion_ci(2 * confidence - 1) if confidence > 0.5 else None
    if interval is not None:
        assert ours == pytest.approx(interval.high, abs=1e-9)
    if errors < count:  # at the bound, so few errors have probability 1 − confidence
        tail = mpmath.fsum(
            mpmath.binomial(count, k) * mpmath.mpf(ours) ** k * (1 - mpmath.mpf(ours)) ** (count - k)
            for k in range(errors + 1)
        )
        assert float(tail) == pytest.approx(1 - confidence, rel=1e-6)


@given(some.integers(0, 300), some.integers(0, 300), some.floats(0.001, 0.5))
def test_p_value_is_the_binomial_tail(first: int, second: int, target: float) -> None:
    errors, count = min(first, second), max(first, second, 1)
    ours = float(error_p_value(torch.tensor([errors]), torch.tensor([count]), target=target))
    assert ours == pytest.approx(float(binom.cdf(errors, count, target)), abs=1e-10)


def test_sequences_join_and_break() -> None:
    p = torch.tensor([0.02, 0.02, 0.04, 0.04, 0.2, 0.01])
    assert last_passed(p, [(0, 1.0)], level=0.05) == 3
    assert (
        last_passed(p, [(0, 0.5), (2, 0.5)], level=0.05) == 3
    )  # arrives whole, so 0.04 passes at the full level
    assert last_passed(p, [(2, 0.5), (3, 0.5)], level=0.05) is None  # 0.04 is above a half
    assert last_passed(p, [(4, 0.5), (5, 0.5)], level=0.05) == 5
    assert last_passed(p, [(0, 0.5), (0, 0.5)], level=0.05) == 3
    assert last_passed(torch.ones(3), [(0, 1.0)], level=0.05) is None


def population(count: int, generator: torch.Generator, *, slope: float = 3.0) -> tuple[Tensor, Tensor]:
    """Doubt uniform; chance of an error doubt^slope, so the error up to t is t^slope/(slope + 1)."""
    doubt = torch.rand(count, generator=generator, dtype=torch.double)
    return doubt, torch.rand(count, generator=generator, dtype=torch.double) >= doubt**slope


@pytest.mark.parametrize(("count", "target", "confidence"), [(300, 0.1, 0.9), (2000, 0.05, 0.8)])
def test_the_guarantee_holds_as_often_as_it_says(count: int, target: float, confidence: float) -> None:
    """The true error is known, so every broken promise is counted; 400 repetitions, a 99.9 % binomial bound."""
    generator = torch.Generator().manual_seed(0)
    broken, coverage = 0, []
    for _ in range(400):
        doubt, correct = population(count, generator)
        control = RiskControl.fit(doubt, correct, target_error=target, confidence=confidence)
        coverage.append(control.coverage)
        broken += control.met and control.threshold**3 / 4 > target
    assert broken <= binom.ppf(0.999, 400, 1 - confidence)
    best = (4 * target) ** (1 / 3)
    mean = sum(coverage) / 400
    assert best - (0.15 if count < 1000 else 0.05) < mean < best + 0.01
    assert broken > 0  # a promise that is never broken is not the largest coverage


def test_the_guarantee_holds_with_few_distinct_doubts() -> None:
    """Five values: a threshold splits no tie, and at the third value the error is just too large."""
    generator = torch.Generator().manual_seed(0)
    chance = torch.tensor([0.01, 0.03, 0.16, 0.3, 0.5], dtype=torch.double)  # means 0.01, 0.02, 0.0667, …
    broken = 0
    for _ in range(300):
        value = torch.randint(5, (500,), generator=generator)
        correct = torch.rand(500, generator=generator, dtype=torch.double) >= chance[value]
        control = RiskControl.fit(value.double(), correct, target_error=0.06, confidence=0.9)
        assert control.threshold in (-math.inf, 0.0, 1.0, 2.0, 3.0, 4.0)
        broken += control.threshold >= 2
    assert broken <= binom.ppf(0.999, 300, 0.1)


def test_all_right_all_wrong_flat() -> None:
    doubt = torch.linspace(0, 1, 1000)
    everything = RiskControl.fit(doubt, torch.ones(1000).bool())
    assert everything.coverage == 1
    assert everything.error == 0
    assert bool(everything.answers(torch.tensor([0.5])).all())
    nothing = RiskControl.fit(doubt, torch.zeros(1000).bool())
    assert not nothing.met
    assert nothing.threshold == -math.inf
    assert not bool(nothing.answers(doubt).any())
    assert "No error below 100%" in nothing.sentence()
    # 2 % wrong whatever the doubt: early mistakes must not keep a target of 5 % from being met
    flat = torch.arange(1000) % 50 != 0
    met = sum(
        RiskControl.fit(
            torch.rand(1000, generator=torch.Generator().manual_seed(seed)), flat, target_error=0.05
        ).coverage
        > 0.9
        for seed in range(20)
    )
    assert met >= 18


@pytest.mark.parametrize("count", [0, 1, 2, 30])
def test_too_few_queries_promise_nothing(count: int) -> None:
    control = RiskControl.fit(torch.rand(count), torch.ones(count).bool())
    assert not control.met
    assert "cannot be promised" in control.sentence() or "No error" in control.sentence()


def test_unmet_targets_say_what_can_be_met() -> None:
    generator = torch.Generator().manual_seed(0)
    doubt, correct = population(2000, generator, slope=0.5)
    control = RiskControl.fit(doubt, correct, target_error=0.001)
    assert not control.met
    assert 0.001 < control.reachable_error < 1
    assert "can, answering" in control.sentence()
    again = control.at(target_error=control.reachable_error * 1.3)
    assert again.met


def test_infinite_doubt_is_never_answered_and_nan_is_refused() -> None:
    doubt = torch.cat([torch.linspace(0, 1, 500), torch.full((500,), torch.inf)])
    control = RiskControl.fit(doubt, torch.ones(1000).bool())
    assert 0.45 < control.coverage < 0.55
    assert not bool(control.answers(torch.tensor([torch.inf])).any())
    with pytest.raises(InputError, match="NaN"):
        RiskControl.fit(torch.tensor([torch.nan]), torch.tensor([True]))
    with pytest.raises(InputError, match="target_error"):
        RiskControl.fit(torch.rand(10), torch.ones(10).bool(), target_error=0.0)
    with pytest.raises(InputError, match="one doubt and one outcome"):
        RiskControl.fit(torch.rand(10), torch.ones(9).bool())


def test_order_of_the_data_does_not_matter_with_a_pilot() -> None:
    generator = torch.Generator().manual_seed(3)
    doubt, correct = population(1500, generator)
    pilot = population(500, generator)
    doubt = (doubt * 20).round() / 20  # ties
    control = RiskControl.fit(doubt, correct, pilot=pilot)
    order = torch.randperm(1500, generator=generator)
    shuffled = RiskControl.fit(doubt[order], correct[order], pilot=pilot)
    assert (control.threshold, control.coverage, control.bound) == (
        shuffled.threshold,
        shuffled.coverage,
        shuffled.bound,
    )
    assert control.queries == 1500


def test_saved_and_loaded() -> None:
    doubt, correct = population(800, torch.Generator().manual_seed(1))
    control = RiskControl.fit(doubt, correct, target_error=0.08, confidence=0.9)
    again = RiskControl.from_state(*control.state())
    assert (again.threshold, again.coverage, again.target_error) == (
        control.threshold,
        control.coverage,
        control.target_error,
    )
