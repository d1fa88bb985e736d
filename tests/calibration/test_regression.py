"""Isotonic and logistic regression against scikit-learn; probabilities that are cross-fitted."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as some
from sklearn.isotonic import IsotonicRegression
from sklearn.linear_model import LogisticRegression

from doubtless.calibration.regression import (
    Isotonic,
    Logistic,
    ProbabilityModel,
    better_method,
    cross_fitted,
)
from doubtless.errors import InputError
from doubtless.logistic import PENALTY
from doubtless.metrics import match_brier, match_ece

NUMBERS = some.lists(some.tuples(some.integers(-8, 8), some.booleans()), min_size=1, max_size=40)


@given(NUMBERS)
def test_isotonic_is_scikit_learns(pairs: list[tuple[int, bool]]) -> None:
    score = torch.tensor([float(x) for x, _ in pairs])
    target = torch.tensor([float(y) for _, y in pairs])
    ours = Isotonic.fit(score, target)
    theirs = IsotonicRegression(out_of_bounds="clip").fit(score.numpy(), target.numpy())
    asked = torch.linspace(-10, 10, 81)
    np.testing.assert_allclose(ours(asked).numpy(), theirs.predict(asked.numpy()), atol=1e-6)


@given(NUMBERS)
def test_centred_isotonic_rises_and_is_never_certain(pairs: list[tuple[int, bool]]) -> None:
    score = torch.tensor([float(x) for x, _ in pairs])
    target = torch.tensor([y for _, y in pairs])
    table = Isotonic.fit(score, target, centred=True, never_certain=True)
    value = table(torch.linspace(-10, 10, 81))
    assert bool((value.diff() >= -1e-12).all())
    assert bool((value > 0).all())
    assert bool((value < 1).all())
    assert bool((table.value.diff() > 0).all())  # one entry per step


def test_isotonic_edges() -> None:
    one = Isotonic.fit(torch.tensor([2.0]), torch.tensor([1.0]))
    assert one(torch.tensor([[-1.0, 2.0], [3.0, 9.0]])).tolist() == [[1.0, 1.0], [1.0, 1.0]]
    right = Isotonic.fit(torch.arange(9.0), torch.ones(9), never_certain=True)
    assert float(right(torch.tensor([100.0]))) == pytest.approx(
        10 / 11
    )  # one made-up wrong answer after ten right
    again = Isotonic.from_tensors(right.tensors("a."), "a.")
    asked = torch.linspace(-1, 10, 50)
    assert torch.equal(again(asked), right(asked))
    weighted = Isotonic.fit(
        torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0]), weight=torch.tensor([3.0, 1.0])
    )
    assert weighted(torch.tensor([0.5])).tolist() == [0.75]
    for score, target in ((torch.empty(0), torch.empty(0)), (torch.ones(2), torch.ones(3))):
        with pytest.raises(InputError, match="one target per score"):
            Isotonic.fit(score, target)
    with pytest.raises(InputError, match="finite"):
        Isotonic.fit(torch.tensor([torch.nan]), torch.tensor([1.0]))


def rows(count: int = 400, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = (
        torch.randn(count, 3, generator=generator, dtype=torch.double) * torch.tensor([1.0, 20.0, 0.1]) + 3
    )
    odds = features @ torch.tensor([1.5, -0.1, 4.0], dtype=torch.double)
    return features, torch.rand(count, generator=generator, dtype=torch.double) < torch.sigmoid(
        odds - odds.mean()
    )


def test_logistic_is_scikit_learns() -> None:
    features, right = rows()
    ours = Logistic.fit(features, right)
    plain = ((features - ours.mean) / ours.scale).numpy()
    theirs = LogisticRegression(C=1 / PENALTY, tol=1e-12, max_iter=1000).fit(plain, right.numpy())
    np.testing.assert_allclose(ours.weight.numpy(), theirs.coef_[0], atol=1e-5)
    np.testing.assert_allclose(ours(features).numpy(), theirs.decision_function(plain), atol=1e-4)


@pytest.mark.parametrize("right", [True, False])
def test_one_sided_outcomes_end_at_finite_odds(right: bool) -> None:
    features, _ = rows(50)
    odds = Logistic.fit(features, torch.full((50,), right))(features)
    assert bool(torch.isfinite(odds).all())
    assert bool(((odds > 3) == right).all())


def test_constant_and_separating_features() -> None:
    features = torch.cat([torch.arange(20.0).unsqueeze(1), torch.ones(20, 1)], dim=1)
    fitted = Logistic.fit(features, torch.arange(20) >= 10)
    assert bool(torch.isfinite(fitted.weight).all())
    assert float(fitted.weight[1]) == 0
    assert bool((fitted(features).diff() > 0).all())


def test_what_is_cross_fitted_never_saw_its_row() -> None:
    """Pure noise: a model that had seen its rows would look better than knowing nothing."""
    generator = torch.Generator().manual_seed(0)
    noise, right = torch.randn(300, 30, generator=generator), torch.rand(300, generator=generator) < 0.5
    names = [str(i) for i in range(30)]
    seen = ProbabilityModel.fit(noise, right, names=names, method="logistic")(noise)
    unseen = cross_fitted(noise, right, names=names, group=torch.arange(300), method="logistic")
    assert match_brier(seen, right) < 0.24
    assert match_brier(unseen, right) > 0.25


@pytest.mark.parametrize("method", ["auto", "logistic", "stacked", "isotonic"])
def test_models_are_calibrated_and_saved(method: str) -> None:
    features, right = rows(4000)
    test_features, test_right = rows(4000, seed=1)
    model = ProbabilityModel.fit(features, right, names=("a", "b", "c"), method=method)  # type: ignore[arg-type]
    chance = model(test_features)
    generator = torch.Generator().manual_seed(0)
    perfect = [
        match_ece(chance, torch.rand(4000, generator=generator, dtype=torch.double) < chance)
        for _ in range(20)
    ]
    assert match_ece(chance, test_right) < sum(perfect) / 20 + 0.015
    again = ProbabilityModel.from_state(model.tensors("x."), model.record(), "x.")
    assert torch.equal(again(test_features), chance)


def test_one_group_and_one_row() -> None:
    assert better_method(torch.rand(9, 1), torch.arange(9) > 4, group=torch.zeros(9)) == "stacked"
    model = ProbabilityModel.fit(torch.zeros(1, 1), torch.tensor([True]), names=("a",), method="stacked")
    assert 0 < float(model(torch.zeros(1, 1))) < 1
    with pytest.raises(InputError, match="no calibration 'isotonc'"):
        ProbabilityModel.fit(torch.zeros(1, 1), torch.tensor([True]), names=("a",), method="isotonc")  # type: ignore[arg-type]
