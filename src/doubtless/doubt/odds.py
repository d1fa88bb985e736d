"""The odds that an answer is wrong: a logistic regression over ranks of signals, no weight negative."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from doubtless.logistic import cross_fit, fit_logistic, folds_of


def error_weights(ranks: Tensor, wrong: Tensor, *, prior: Tensor | None = None) -> Tensor:
    """Weights (s + 1,), the intercept last, of ranks (n, s) for "the first hit is wrong" (n,), none negative.

    A signal that is odder may raise the doubt and never lower it: so the doubt can be told in parts, and a fit to
    few mistakes cannot learn that far hits are good ones. `prior` (s,) are the weights no mistakes would leave.
    """
    return fit_logistic(ranks, wrong, centre=prior, lower=torch.zeros(ranks.shape[1]))


def unseen_odds(
    ranks: Tensor, wrong: Tensor, *, prior: Tensor | None, groups: Tensor, generator: torch.Generator
) -> Tensor:
    """Log-odds (n,) of every query from weights that saw none of its group (n,)."""

    def fit(seen: Tensor) -> Callable[[Tensor], Tensor]:
        weights = error_weights(ranks[seen], wrong[seen], prior=prior)
        return lambda others: others @ weights[:-1] + weights[-1]

    return cross_fit(ranks, folds_of(groups, generator=generator), fit)


def mean_shift(odds: Tensor, expected: float) -> float:
    """What to add to log-odds (n,) so that their mean probability is `expected`; bisection."""
    low, high = -40.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if float(torch.sigmoid(odds + middle).mean()) < expected else (low, middle)
    return low
