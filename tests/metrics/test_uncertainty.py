"""Error AUROC, AUSC and coverage against loops over every order of ties."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from doubtless.errors import InputError
from doubtless.evaluation.result import Curve
from doubtless.metrics.ranking import Ranking, area_under_roc
from doubtless.metrics.uncertainty import (
    augrc,
    aurc,
    ausc,
    ausc_oracle,
    coverage_at_risk,
    error_auroc,
    oracle_form,
    oracle_sparsification_curve,
    risk_coverage_curve,
    selective_form,
    sparsification_curve,
)
from tests.reference import metrics as reference

doubt = st.sampled_from([0.0, 0.5, 1.0, 2.0, math.inf, -math.inf])
queries = st.lists(st.tuples(doubt, st.booleans()), min_size=1, max_size=6)
many = st.lists(st.tuples(doubt | st.floats(allow_nan=False), st.booleans()), min_size=1, max_size=40)


def split(items: list[tuple[float, bool]]) -> tuple[Tensor, Tensor]:
    return (
        torch.tensor([value for value, _ in items], dtype=torch.double),
        torch.tensor([right for _, right in items]),
    )


@settings(deadline=None)
@given(queries)
def test_ausc_is_the_mean_over_every_order_of_ties(items: list[tuple[float, bool]]) -> None:
    uncertainty, correct = split(items)
    assert ausc(uncertainty, correct) == pytest.approx(
        reference.ausc(uncertainty.tolist(), correct.tolist()), abs=1e-12
    )


@settings(deadline=None)
@given(queries)
def test_aurc_and_augrc_are_the_mean_over_every_order_of_ties(items: list[tuple[float, bool]]) -> None:
    uncertainty, correct = split(items)
    expected = reference.ausc(uncertainty.tolist(), correct.tolist())
    assert aurc(uncertainty, correct) == pytest.approx(1 - expected, abs=1e-12)
    expected = reference.augrc(uncertainty.tolist(), correct.tolist())
    assert augrc(uncertainty, correct) == pytest.approx(expected, abs=1e-12)


@settings(deadline=None)
@given(many)
def test_augrc_is_what_the_paper_says_of_auroc_and_errors(items: list[tuple[float, bool]]) -> None:
    uncertainty, correct = split(items)
    wrong = 1 - float(correct.double().mean())
    found = augrc(uncertainty, correct)
    if 0 < wrong < 1:
        auroc = error_auroc(uncertainty, correct)
        assert found == pytest.approx((1 - auroc) * wrong * (1 - wrong) + wrong**2 / 2, abs=1e-12)
    assert wrong**2 / 2 - 1e-12 <= found <= wrong - wrong**2 / 2 + 1e-12
    assert 1 - ausc_oracle(correct) - 1e-12 <= aurc(uncertainty, correct) <= 1
    oracle = (~correct).double()
    assert aurc(oracle, correct) == pytest.approx(1 - ausc_oracle(correct), abs=1e-12)
    assert augrc(oracle, correct) == pytest.approx(wrong**2 / 2, abs=1e-12)
    constant = torch.zeros(len(items))
    assert aurc(constant, correct) == pytest.approx(wrong, abs=1e-12)
    assert augrc(constant, correct) == pytest.approx(wrong / 2, abs=1e-12)


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=7))
def test_oracle_is_the_best_order_and_a_constant_is_chance(right: list[bool]) -> None:
    correct = torch.tensor(right)
    best = reference.ausc([float(not value) for value in right], right)
    assert ausc_oracle(correct) == pytest.approx(best, abs=1e-12)
    constant = torch.zeros(len(right))
    assert ausc(constant, correct) == pytest.approx(sum(right) / len(right), abs=1e-12)


@settings(deadline=None)
@given(many)
def test_error_auroc_counts_pairs(items: list[tuple[float, bool]]) -> None:
    uncertainty, correct = split(items)
    right = uncertainty[correct].tolist()
    wrong = uncertainty[~correct].tolist()
    assert error_auroc(uncertainty, correct) == pytest.approx(
        reference.auroc(right, wrong), abs=1e-12, nan_ok=True
    )
    ranking = Ranking.unchecked(uncertainty)  # as `laplace.criteria` has it
    area = area_under_roc(ranking.totals((~correct).double()), ranking.totals(correct.double()))
    assert float(area) == pytest.approx(reference.auroc(right, wrong), abs=1e-12, nan_ok=True)


@settings(deadline=None)
@given(many, st.sampled_from(["0.01", "0.05", "0.1", "0.29", "0.07", "1", "0", "0.5"]))
def test_coverage_never_splits_a_tie(items: list[tuple[float, bool]], risk: str) -> None:
    uncertainty, correct = split(items)
    expected = reference.coverage_at_risk(uncertainty.tolist(), correct.tolist(), Fraction(risk))
    assert coverage_at_risk(uncertainty, correct, risk=float(risk)) == pytest.approx(expected, abs=1e-15)


def test_a_risk_met_exactly_is_met_in_floating_point() -> None:
    correct = torch.arange(100) >= 29  # 29 of 100 wrong; .29 · 100 = 28.999999999999996
    assert 0.29 * 100 < 29
    assert coverage_at_risk(torch.zeros(100), correct, risk=0.29) == 1.0


@settings(deadline=None)
@given(many, st.randoms(use_true_random=False))
def test_data_order_never_matters(items: list[tuple[float, bool]], random: object) -> None:
    shuffled = list(items)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for metric in (ausc, error_auroc, aurc, augrc):
        assert metric(*split(items)) == pytest.approx(metric(*split(shuffled)), abs=1e-12, nan_ok=True)


@settings(deadline=None)
@given(queries, st.data())
def test_weights_are_copies(items: list[tuple[float, bool]], data: st.DataObject) -> None:
    """A replicate of the bootstrap, by its counts, equals the metric of the copied queries."""
    uncertainty, correct = split(items)
    size = len(items)
    drawn = data.draw(st.lists(st.integers(0, size - 1), min_size=size, max_size=size))
    weights = torch.tensor(drawn).bincount(minlength=size).double().unsqueeze(0)
    copied = uncertainty[drawn], correct[drawn]
    found = selective_form(uncertainty, correct)(weights) | oracle_form(correct)(weights)
    expected = {
        "error_auroc": error_auroc(*copied),
        "ausc": reference.ausc(copied[0].tolist(), copied[1].tolist()),
        "aurc": 1 - reference.ausc(copied[0].tolist(), copied[1].tolist()),
        "augrc": reference.augrc(copied[0].tolist(), copied[1].tolist()),
        "ausc_oracle": ausc_oracle(copied[1]),
        "coverage@risk0.01": coverage_at_risk(*copied, risk=0.01),
        "coverage@risk0.05": coverage_at_risk(*copied, risk=0.05),
        "coverage@risk0.1": coverage_at_risk(*copied, risk=0.1),
    }
    assert {name: float(value) for name, value in found.items()} == pytest.approx(
        expected, abs=1e-12, nan_ok=True
    )


def test_all_right_and_all_wrong() -> None:
    uncertainty = torch.tensor([1.0, torch.inf, 3.0])
    for right in (True, False):
        correct = torch.full((3,), right)
        assert math.isnan(error_auroc(uncertainty, correct))
        assert ausc(uncertainty, correct) == float(right) == ausc_oracle(correct)
        assert coverage_at_risk(uncertainty, correct, risk=0.05) == float(right)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_oracles_closed_form(dtype: torch.dtype) -> None:
    correct = torch.arange(1000) < 700
    harmonic = [math.fsum(1 / i for i in range(1, n + 1)) for n in (1000, 700)]
    expected = 0.7 * (1 + harmonic[0] - harmonic[1])
    assert ausc_oracle(correct) == pytest.approx(expected, abs=1e-13)
    assert ausc((~correct).to(dtype), correct) == pytest.approx(expected, abs=1e-13)


def test_curves_meet_their_ends_and_their_area() -> None:
    generator = torch.Generator().manual_seed(0)
    uncertainty = torch.randint(20, (150,), generator=generator).double()
    correct = torch.rand(150, generator=generator) > uncertainty / 25
    kept_all = float(correct.double().mean())
    sparse, risk = sparsification_curve(uncertainty, correct), risk_coverage_curve(uncertainty, correct)
    assert len(sparse.x) == 150  # below 200 queries every prefix is a point, so the mean is the area
    assert sparse.x[0] == 0
    assert sparse.y[0] == pytest.approx(kept_all)
    assert sum(sparse.y) / 150 == pytest.approx(ausc(uncertainty, correct))
    assert risk.x[-1] == 1
    assert risk.y[-1] == pytest.approx(1 - kept_all)
    oracle: Curve = oracle_sparsification_curve(correct)
    assert sum(oracle.y) / 150 == pytest.approx(ausc_oracle(correct))
    assert all(best >= found - 1e-12 for best, found in zip(oracle.y, sparse.y, strict=True))


def test_long_curves_are_thinned() -> None:
    curve = sparsification_curve(torch.arange(5000.0), torch.ones(5000, dtype=torch.bool))
    assert len(curve.x) == 200
    assert (curve.x[0], curve.x[-1]) == (0, pytest.approx(1 - 1 / 5000))


def test_bad_input_is_a_sentence() -> None:
    correct = torch.tensor([True, False])
    with pytest.raises(InputError, match="1 NaN entries"):
        ausc(torch.tensor([0.0, torch.nan]), correct)
    with pytest.raises(InputError, match="one entry per query each"):
        error_auroc(torch.zeros(3), correct)
    with pytest.raises(InputError, match=r"between 0 and 1, got 1\.5"):
        coverage_at_risk(torch.zeros(2), correct, risk=1.5)
    with pytest.raises(InputError, match=r"shape \(n,\), got shape \(0,\)"):
        ausc(torch.zeros(0), torch.zeros(0, dtype=torch.bool))
