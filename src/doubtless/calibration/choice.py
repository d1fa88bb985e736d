"""Conditional logit (McFadden 1974): which of several alternatives it is, from numbers that describe each of them.

P(l) = exp(weight · x_l) / Σ exp(weight · x_m) over the alternatives of one query. Fitted by Newton's method with a
ridge, in float64: a concave likelihood of a few weights, whatever number of alternatives there is. Some weights may
be bounded by 0, as in `doubtless.logistic`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.logistic import PENALTY, STEPS, TOLERANCE, first_no_worse, step_of_others


@dataclass(frozen=True, eq=False)
class ConditionalLogit:
    """weight · (x − mean)/scale, a utility per alternative.

    >>> table = torch.tensor([[[0.9], [0.4]], [[0.5], [0.7]], [[0.8], [0.1]], [[0.6], [0.5]]])
    >>> fitted = ConditionalLogit.fit(table, torch.ones(4, 2, dtype=torch.bool), torch.tensor([0, 1, 0, 1]))
    >>> bool(fitted.weight[0] > 0), fitted(table).shape
    (True, torch.Size([4, 2]))
    """

    mean: Tensor  # (F,)
    scale: Tensor  # (F,)
    weight: Tensor  # (F,)

    @classmethod
    def fit(
        cls, table: Tensor, there: Tensor, chosen: Tensor, *, rising: Tensor | None = None
    ) -> ConditionalLogit:
        """From alternatives (n, M, F), which of them exist (n, M), and which one it was (n,).

        rising   (F,) whether a weight is never negative; None: any may be
        """
        _check(table, there, chosen)
        table = table.double()
        values = table[there]
        mean, scale = values.mean(0), values.std(0, correction=0)
        scale = torch.where(scale > 0, scale, 1.0)
        standard = ((table - mean) / scale).masked_fill(~there.unsqueeze(2), 0.0)
        bound = torch.full_like(mean, -torch.inf)
        if rising is not None:
            bound = bound.masked_fill(rising, 0.0)
        return cls(mean, scale, _newton(standard, there, chosen, bound))

    def __call__(self, table: Tensor) -> Tensor:
        """Utilities (n, M) of alternatives (n, M, F), float64."""
        slope = self.weight / self.scale
        return table.double() @ slope - self.mean @ slope

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """What `from_tensors` needs."""
        return {f"{prefix}{name}": getattr(self, name) for name in ("mean", "scale", "weight")}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], prefix: str = "") -> ConditionalLogit:
        """The model whose `tensors` these are."""
        return cls(*(tensors[f"{prefix}{name}"] for name in ("mean", "scale", "weight")))


def shares(utility: Tensor, there: Tensor) -> Tensor:
    """exp(utility) over its sum, among alternatives that exist (n, M); all 0 where none does.

    >>> shares(torch.tensor([[0.0, 0.0, 9.0], [1.0, 1.0, 1.0]]), torch.tensor([[True, True, False], [False] * 3]))
    tensor([[0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 0.0000]])
    """
    smallest = torch.finfo(utility.dtype).min
    return utility.masked_fill(~there, smallest).softmax(1).masked_fill(~there, 0.0)


def _newton(table: Tensor, there: Tensor, chosen: Tensor, bound: Tensor) -> Tensor:
    """The weights (F,) of least −log P(chosen) + ½ · PENALTY · ‖weight‖², none below its bound (F,)."""
    taken = table[torch.arange(len(table), device=table.device), chosen]  # (n, F)
    flat = table.flatten(0, 1)
    ridge = PENALTY * torch.eye(table.shape[2], dtype=torch.double, device=table.device)

    def cost(weight: Tensor) -> Tensor:
        utility = (table @ weight).masked_fill(~there, -torch.inf)
        return (utility.logsumexp(1) - taken @ weight).sum() + 0.5 * PENALTY * weight @ weight

    weight = torch.zeros(table.shape[2], dtype=torch.double, device=table.device)
    current = cost(weight)
    for _ in range(STEPS):
        chance = shares(table @ weight, there)
        expected = (chance.unsqueeze(2) * table).sum(1)  # (n, F)
        gradient = (expected - taken).sum(0) + ridge @ weight
        curvature = (flat * chance.flatten().unsqueeze(1)).T @ flat - expected.T @ expected + ridge
        held = (weight <= bound) & (gradient >= 0)
        step = step_of_others(curvature, gradient, held)
        proposed, current = first_no_worse(cost, current, weight, step, bound)
        moved = float((proposed - weight).abs().max())
        weight = proposed
        if moved < TOLERANCE:
            break
    return weight


def _check(table: Tensor, there: Tensor, chosen: Tensor) -> None:
    if table.dim() != 3 or table.shape[:2] != there.shape or len(chosen) != len(table) or not len(table):
        raise InputError(
            "Conditional logit needs alternatives (n, M, F), which exist (n, M) and the chosen one (n,), n at "
            f"least 1, got shapes {tuple(table.shape)}, {tuple(there.shape)} and {tuple(chosen.shape)}."
        )
    if not bool(there.gather(1, chosen.unsqueeze(1)).all()):
        raise InputError("An alternative was chosen that does not exist; leave out queries without one.")
