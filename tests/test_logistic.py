"""The bounded logistic regression against scipy's L-BFGS-B and its own optimality conditions; cross-fitting."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from doubtless.errors import InputError
from doubtless.logistic import PENALTY, PENALTY_OF_INTERCEPT, cross_fit, fit_logistic, folds_of

F = 4


def problem(seed: int, count: int = 200, *, steepness: float = 1.0) -> tuple[Tensor, Tensor]:
    """Features (n, 4) and outcomes of which two speak for, one against, one nothing."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, F, generator=generator, dtype=torch.double)
    odds = steepness * (features @ torch.tensor([2.0, -1.5, 0.5, 0.0], dtype=torch.double) - 0.5)
    return features, torch.rand(count, generator=generator, dtype=torch.double) < torch.sigmoid(odds)


def cost_and_gradient(
    coefficients: np.ndarray, features: Tensor, outcome: Tensor, weight: Tensor, centre: Tensor
) -> tuple[float, np.ndarray]:
    """The penalised negative log-likelihood in numpy, written down once more."""
    x = np.append(features.numpy(), np.ones((len(features), 1)), axis=1)
    y, rows = outcome.double().numpy(), weight.numpy()
    odds = x @ coefficients
    ridge = np.append(np.full(features.shape[1], PENALTY), PENALTY_OF_INTERCEPT)
    away = coefficients - np.append(centre.numpy(), 0.0)
    cost = rows @ (np.logaddexp(0, odds) - y * odds) + 0.5 * ridge @ away**2
    chance = np.exp(-np.logaddexp(0, -odds))
    return float(cost), x.T @ (rows * (chance - y)) + ridge * away


def check_optimal(coefficients: Tensor, bound: Tensor, *problem: Tensor, tolerance: float = 1e-8) -> None:
    """Karush-Kuhn-Tucker: no slope where free, none downwards into the bound where held."""
    _, gradient = cost_and_gradient(coefficients.numpy(), *problem)
    held = (torch.cat([bound, torch.tensor([-torch.inf])]) >= coefficients).numpy()
    assert (coefficients[:-1] >= bound).all()
    assert np.abs(gradient[~held]).max() < tolerance
    assert (gradient[held] > -tolerance).all()


@pytest.mark.parametrize("bounds", [None, [0.0] * F, [-torch.inf, 0.0, 1.0, -0.05]])
@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_bounded_optimum_of_scipy(seed: int, bounds: list[float] | None) -> None:
    features, outcome = problem(seed)
    weight = torch.rand(200, generator=torch.Generator().manual_seed(seed + 50), dtype=torch.double) * 3
    centre = torch.tensor([0.0, 0.5, -1.0, 2.0], dtype=torch.double)
    lower = torch.full((F,), -torch.inf) if bounds is None else torch.tensor(bounds)
    ours = fit_logistic(
        features, outcome, weight=weight, centre=centre, lower=None if bounds is None else lower
    )
    best = minimize(
        cost_and_gradient,
        np.maximum(np.zeros(F + 1), np.append(lower.double().numpy(), -np.inf)),
        args=(features, outcome, weight, centre),
        jac=True,
        method="L-BFGS-B",
        bounds=[(None if low == -torch.inf else low, None) for low in lower.tolist()] + [(None, None)],
        options={"ftol": 1e-16, "gtol": 1e-10, "maxiter": 10_000},
    )
    np.testing.assert_allclose(ours.numpy(), best.x, atol=1e-6)
    assert cost_and_gradient(ours.numpy(), features, outcome, weight, centre)[0] <= best.fun + 1e-10
    check_optimal(ours, lower.double(), features, outcome, weight, centre)


@pytest.mark.parametrize("lower", [-torch.inf, 0.0])
@pytest.mark.parametrize(
    "case",
    ["separable", "all right", "all wrong", "one row", "constant", "twice the same", "no feature", "huge"],
)
def test_the_optimum_is_reached_at_the_edges(case: str, lower: float) -> None:
    features, outcome = problem(0, 60)
    if case == "separable":
        outcome = features[:, 0] > 0
    elif case in {"all right", "all wrong"}:
        outcome = torch.full((60,), case == "all right")
    elif case == "one row":
        features, outcome = features[:1], outcome[:1]
    elif case == "constant":
        features = torch.full_like(features, 3.0)
    elif case == "twice the same":
        features = features[:, [0, 0, 1, 1]]
    elif case == "no feature":
        features = features[:, :0]
    elif case == "huge":
        features = features * 1e3
    bound = torch.full((features.shape[1],), lower, dtype=torch.double)
    ours = fit_logistic(features, outcome, lower=bound)
    assert bool(torch.isfinite(ours).all())
    weight, centre = torch.ones(len(outcome)).double(), torch.zeros(features.shape[1]).double()
    check_optimal(ours, bound, features, outcome, weight, centre, tolerance=1e-6)


def test_weights_count_rows() -> None:
    features, outcome = problem(1, 80)
    times = torch.randint(0, 4, (80,), generator=torch.Generator().manual_seed(0))
    repeated = fit_logistic(features.repeat_interleave(times, 0), outcome.repeat_interleave(times))
    torch.testing.assert_close(
        fit_logistic(features, outcome, weight=times.double()), repeated, atol=1e-10, rtol=0
    )
    nothing = fit_logistic(features, outcome, weight=torch.zeros(80), centre=torch.arange(F))
    torch.testing.assert_close(nothing, torch.tensor([0.0, 1, 2, 3, 0]).double())  # what the penalty draws to


def test_shapes_that_do_not_fit_are_a_sentence() -> None:
    for features, outcome in ((torch.ones(3), torch.ones(3)), (torch.ones(3, 1), torch.ones(2))):
        with pytest.raises(InputError, match="one outcome per row"):
            fit_logistic(features, outcome)
    with pytest.raises(InputError, match="n at least 1"):
        fit_logistic(torch.ones(0, 2), torch.ones(0))


def test_folds_keep_groups_together_in_equal_numbers() -> None:
    group = torch.arange(50).repeat_interleave(3)
    fold = folds_of(group)
    assert all(len(fold[group == g].unique()) == 1 for g in range(50))
    assert fold.bincount().tolist() == [30] * 5
    assert torch.equal(fold, folds_of(group, generator=torch.Generator().manual_seed(0)))
    assert not torch.equal(fold, folds_of(group, generator=torch.Generator().manual_seed(1)))
    assert len(folds_of(torch.arange(3)).unique()) == 3  # fewer groups than folds: as many folds


def test_cross_fitting_shows_every_fit_the_other_folds_only() -> None:
    rows, fold = torch.arange(10.0), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1, 2, 2])
    seen_together = []

    def fit(seen: Tensor):
        seen_together.append(seen)
        return lambda others: 100 * rows[seen].sum() + others

    values = cross_fit(rows, fold, fit)
    assert torch.equal(torch.stack(seen_together), torch.stack([fold != number for number in range(3)]))
    expected = [100 * float(rows[fold != fold[i]].sum()) + i for i in range(10)]
    assert values.tolist() == expected
    alone = cross_fit(rows, torch.zeros(10), lambda seen: lambda others: others + seen.sum())
    assert alone.tolist() == (rows + 10).tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_fit_on_the_device_is_that_on_the_cpu() -> None:
    features, outcome = problem(3)
    centre, lower = torch.full((F,), 0.1, dtype=torch.double), torch.zeros(F, dtype=torch.double)
    expected = fit_logistic(features, outcome, centre=centre, lower=lower)
    found = fit_logistic(features.cuda(), outcome.cuda(), centre=centre.cuda(), lower=lower.cuda())
    assert found.is_cuda
    torch.testing.assert_close(found.cpu(), expected)
