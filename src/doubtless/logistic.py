"""Penalised logistic regression by Newton's method, and fits that never see the rows they speak of.

A few features, any number of rows, float64. Coefficients may have lower bounds: projected Newton (Bertsekas 1982)
holds those at their bound that would leave it and takes Newton's step in the others.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from doubtless.errors import InputError

PENALTY = 1.0
"""½ · PENALTY · ‖weight − centre‖²: keeps weights finite where the outcomes separate."""
PENALTY_OF_INTERCEPT = 1e-6 * PENALTY
"""Hardly any, and enough that one-sided outcomes end at large finite odds."""
STEPS = 100
TOLERANCE = 1e-9
ROUNDING = 1e-13
FOLDS = 5

Cost = Callable[[Tensor], Tensor]
Predict = Callable[[Tensor], Tensor]
"""Rows (m, …) → their values (m,)."""


def fit_logistic(
    features: Tensor,
    outcome: Tensor,
    *,
    weight: Tensor | None = None,
    centre: Tensor | None = None,
    lower: Tensor | None = None,
) -> Tensor:
    """Coefficients (F + 1,), the intercept last, of log-odds features · coefficients for outcomes (n,).

    weight   (n,) of the rows; None: 1
    centre   (F,) what the penalty draws the coefficients of features (n, F) to; None: 0
    lower    (F,) bounds they never fall below; None: there are none

    >>> far = torch.tensor([[0.1], [0.2], [0.3], [3.0], [4.0], [5.0]])
    >>> wrong = torch.tensor([False, False, False, False, True, True])
    >>> bool(fit_logistic(far, wrong)[0] > 0), bool(fit_logistic(-far, wrong)[0] < 0)
    (True, True)
    >>> fit_logistic(-far, wrong, lower=torch.zeros(1))[0]
    tensor(0., dtype=torch.float64)
    """
    _check(features, outcome)
    target = outcome.double()
    rows = torch.ones_like(target) if weight is None else weight.double()
    design = torch.cat([features.double(), torch.ones_like(target).unsqueeze(1)], dim=1)  # (n, F + 1)
    like = design.new_empty(design.shape[1])
    ridge = _with_intercept(None, like, PENALTY, PENALTY_OF_INTERCEPT)
    around = _with_intercept(centre, like, 0.0, 0.0)
    bound = _with_intercept(lower, like, -torch.inf, -torch.inf)

    def cost(coefficients: Tensor) -> Tensor:
        odds = design @ coefficients
        penalty = 0.5 * (ridge * (coefficients - around).square()).sum()
        return rows @ (softplus(odds) - target * odds) + penalty

    coefficients = torch.zeros_like(bound).maximum(bound)
    current = cost(coefficients)
    for _ in range(STEPS):
        chance = torch.sigmoid(design @ coefficients)
        gradient = design.T @ (rows * (chance - target)) + ridge * (coefficients - around)
        curvature = (design * (rows * chance * (1 - chance)).unsqueeze(1)).T @ design + torch.diag(ridge)
        held = (coefficients <= bound) & (gradient >= 0)
        step = step_of_others(curvature, gradient, held)
        proposed, current = first_no_worse(cost, current, coefficients, step, bound)
        moved = float((proposed - coefficients).abs().max())
        coefficients = proposed
        if moved < TOLERANCE:
            break
    return coefficients


def folds_of(group: Tensor, *, folds: int = FOLDS, generator: torch.Generator | None = None) -> Tensor:
    """A fold (m,) for every row: equal groups (m,) in one, groups dealt at random in equal numbers.

    Without a generator groups are dealt with seed 0.

    >>> fold = folds_of(torch.tensor([7, 7, 8, 8, 9]), folds=3)
    >>> bool(fold[0] == fold[1]), bool(fold[2] == fold[3]), sorted(fold.unique().tolist())
    (True, True, [0, 1, 2])
    """
    members, place = torch.unique(group, return_inverse=True)
    generator = torch.Generator().manual_seed(0) if generator is None else generator
    dealt = torch.arange(len(members))[torch.randperm(len(members), generator=generator)] % folds
    return dealt.to(place.device)[place]


def cross_fit(rows: Tensor, fold: Tensor, fit: Callable[[Tensor], Predict]) -> Tensor:
    """Values (m,) of rows (m, …), each from a fit that saw nothing of its fold (m,).

    fit   which rows may be seen, (m,) bool → values of any others. Where there is one fold only, it sees all

    >>> rows = torch.tensor([1.0, 2.0, 6.0])
    >>> cross_fit(rows, torch.tensor([0, 0, 1]), lambda seen: lambda others: rows[seen].mean().expand(len(others)))
    tensor([6.0000, 6.0000, 1.5000], dtype=torch.float64)
    """
    numbers = fold.unique().tolist()
    if len(numbers) < 2:
        return fit(torch.ones_like(fold, dtype=torch.bool))(rows).double()
    values = torch.empty(len(rows), dtype=torch.double)
    for number in numbers:
        held = fold == number
        values[held] = fit(~held)(rows[held]).double()
    return values


def _with_intercept(values: Tensor | None, like: Tensor, default: float, intercept: float) -> Tensor:
    """Values (F + 1,) of the coefficients and, last, of the intercept."""
    whole = torch.full_like(like, default)
    if values is not None:
        whole[:-1] = values
    whole[-1] = intercept
    return whole


def step_of_others(curvature: Tensor, gradient: Tensor, held: Tensor) -> Tensor:
    """Newton's step in the coefficients that are not held, 0 in those that are, (F + 1,)."""
    together = held.unsqueeze(0) | held.unsqueeze(1)
    curvature = curvature.masked_fill(together, 0.0) + torch.diag(held.double())
    return torch.linalg.solve(curvature, gradient.masked_fill(held, 0.0))


def first_no_worse(
    cost: Cost, current: Tensor, coefficients: Tensor, step: Tensor, bound: Tensor
) -> tuple[Tensor, Tensor]:
    """The first of step, step/2, step/4, … that costs no more once within the bounds, and what it costs.

    Costs that differ by rounding only count as equal: close to the minimum they cannot tell how good a step is.
    """
    while True:
        proposed = (coefficients - step).maximum(bound)
        value = cost(proposed)
        if value <= current + ROUNDING * current.abs():
            return proposed, value
        step = step / 2
        if float(step.abs().max()) < TOLERANCE:
            return coefficients, current


def _check(features: Tensor, outcome: Tensor) -> None:
    if features.dim() != 2 or len(features) != len(outcome) or not len(outcome):
        raise InputError(
            "Logistic regression needs features (n, F) and one outcome per row, n at least 1, got shapes "
            f"{tuple(features.shape)} and {tuple(outcome.shape)}."
        )
