"""Error evidence: how likely the first hit is wrong, a logistic regression whose weights are never negative.

Its inputs are ranks 1 − p of signals. A signal that is odder may raise the doubt and never lower it: so the
doubt can be told in parts, and a fit to few mistakes cannot learn that far hits are good ones.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from doubtless.errors import InputError

PENALTY = 1.0  # ½ · PENALTY · ‖weight − prior‖²: few mistakes stay near what is plausible, many decide
STEPS = 100
TOLERANCE = 1e-8
FOLDS = 5


def fit_weights(ranks: Tensor, wrong: Tensor, *, prior: Tensor | None = None) -> Tensor:
    """Weights (s + 1,), the intercept last, of ranks (n, s) for wrong (n,); projected Newton, float64.

    prior     (s,) weights that no mistakes at all would leave; None: 0

    >>> far = torch.tensor([[0.1], [0.2], [0.3], [3.0], [4.0], [5.0]], dtype=torch.double)
    >>> weights = fit_weights(far, torch.tensor([False, False, False, False, True, True]))
    >>> bool(weights[0] > 0)
    True
    >>> fit_weights(-far, torch.tensor([False, False, False, False, True, True]))[0]   # the wrong way round
    tensor(0., dtype=torch.float64)
    """
    if ranks.dim() != 2 or len(ranks) != len(wrong) or not len(wrong):
        raise InputError(
            f"error evidence needs ranks (n, s) and one outcome a query, got {tuple(ranks.shape)} and "
            f"{tuple(wrong.shape)}."
        )
    target = wrong.double()
    design = torch.cat([ranks.double(), torch.ones_like(target).unsqueeze(1)], dim=1)
    ridge = torch.full_like(design[0], PENALTY)
    ridge[-1] = 1e-6 * PENALTY  # one-sided outcomes end at large finite odds
    centre = torch.zeros_like(ridge)
    if prior is not None:
        centre[:-1] = prior
    found = torch.zeros_like(ridge)

    def cost(weights: Tensor) -> Tensor:
        odds = design @ weights
        return (softplus(odds) - target * odds).sum() + 0.5 * (ridge * (weights - centre).square()).sum()

    current = cost(found)
    for _ in range(STEPS):
        chance = torch.sigmoid(design @ found)
        gradient = design.T @ (chance - target) + ridge * (found - centre)
        free = (found > 0) | (gradient < 0)
        free[-1] = True
        step = _newton_step(design[:, free], chance, ridge[free], gradient[free])
        proposed, value = _search(cost, current, found, free, step)
        moved = float((proposed - found).abs().max())
        found, current = proposed, value
        if moved < TOLERANCE:
            break
    return found


def cross_fitted(
    ranks: Tensor, wrong: Tensor, *, prior: Tensor | None, groups: Tensor, generator: torch.Generator
) -> Tensor:
    """Log-odds (n,) of every query from a fit that saw none of its group: classes, where there are many."""
    names, group = groups.unique(return_inverse=True)
    folds = min(FOLDS, len(names))
    if folds < 2:
        return ranks @ (weights := fit_weights(ranks, wrong, prior=prior))[:-1] + weights[-1]
    fold_of = torch.arange(len(names))[torch.randperm(len(names), generator=generator)] % folds
    fold = fold_of.to(group.device)[group]
    odds = torch.zeros(len(wrong), dtype=torch.double)
    for number in range(folds):
        held = fold == number
        weights = fit_weights(ranks[~held], wrong[~held], prior=prior)
        odds[held] = ranks[held] @ weights[:-1] + weights[-1]
    return odds


def _newton_step(design: Tensor, chance: Tensor, ridge: Tensor, gradient: Tensor) -> Tensor:
    curvature = (design * (chance * (1 - chance)).unsqueeze(1)).T @ design + torch.diag(ridge)
    return torch.linalg.solve(curvature, gradient)


def _search(
    cost: Callable[[Tensor], Tensor], current: Tensor, found: Tensor, free: Tensor, step: Tensor
) -> tuple[Tensor, Tensor]:
    """The first of step, step/2, step/4, … that is no worse once negative weights are set to 0."""
    while True:
        proposed = found.clone()
        proposed[free] -= step
        proposed[:-1].clamp_min_(0)
        value = cost(proposed)
        if value <= current:
            return proposed, value
        step = step / 2
        if float(step.abs().max()) < TOLERANCE:
            return found, current
