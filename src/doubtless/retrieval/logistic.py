"""Logistic regression by Newton's method, in float64: a few features, any number of rows, no library to answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.errors import InputError

PENALTY = 1.0
"""½ · PENALTY · ‖weight‖² of standardised features: keeps weights finite where the classes separate."""
STEPS = 50
TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Logistic:
    """Log-odds weight · (x − mean)/scale + bias.

    >>> rows = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> fitted = Logistic.fit(rows, torch.tensor([False, True, False, True]))
    >>> bool(fitted(rows).diff().gt(0).all())
    True
    """

    mean: Tensor  # (F,)
    scale: Tensor  # (F,)
    weight: Tensor  # (F,)
    bias: Tensor  # ()

    @classmethod
    def fit(cls, features: Tensor, right: Tensor, *, weight: Tensor | None = None) -> Logistic:
        """The penalised maximum-likelihood fit to features (n, F) and outcomes (n,), rows weighted."""
        if features.dim() != 2 or len(features) != len(right) or not len(right):
            raise InputError(
                "logistic regression needs features (n, F) and one outcome a row, got shapes "
                f"{tuple(features.shape)} and {tuple(right.shape)}."
            )
        features, target = features.double(), right.double()
        rows = torch.ones_like(target) if weight is None else weight.double()
        mean, scale = features.mean(0), features.std(0, correction=0)
        scale = torch.where(scale > 0, scale, 1.0)
        design = torch.cat([(features - mean) / scale, torch.ones_like(target).unsqueeze(1)], dim=1)
        found = _newton(design, target, rows)
        return cls(mean, scale, found[:-1], found[-1])

    def __call__(self, features: Tensor) -> Tensor:
        """Log-odds (…) of features (…, F), float64."""
        slope = self.weight / self.scale
        return features.double() @ slope + (self.bias - self.mean @ slope)

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """What `from_tensors` needs."""
        return {f"{prefix}{name}": getattr(self, name) for name in ("mean", "scale", "weight", "bias")}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], prefix: str = "") -> Logistic:
        return cls(*(tensors[f"{prefix}{name}"] for name in ("mean", "scale", "weight", "bias")))


def _newton(design: Tensor, target: Tensor, rows: Tensor) -> Tensor:
    """Coefficients (F + 1,), the bias last; halves a step that would make things worse.

    The bias is penalised a millionth as much as a weight, so that one-sided outcomes end at large finite odds.
    """
    ridge = torch.full((design.shape[1],), PENALTY, dtype=torch.double)
    ridge[-1] = PENALTY * 1e-6
    found = torch.zeros(design.shape[1], dtype=torch.double)

    def cost(coefficients: Tensor) -> Tensor:
        odds = design @ coefficients
        likelihood = rows @ (torch.nn.functional.softplus(odds) - target * odds)
        return likelihood + 0.5 * (ridge * coefficients.square()).sum()

    current = cost(found)
    for _ in range(STEPS):
        chance = torch.sigmoid(design @ found)
        gradient = design.T @ (rows * (chance - target)) + ridge * found
        curvature = (design * (rows * chance * (1 - chance)).unsqueeze(1)).T @ design + torch.diag(ridge)
        step = torch.linalg.solve(curvature, gradient)
        while True:
            proposed = cost(found - step)
            if proposed <= current or float(step.abs().max()) < TOLERANCE:
                break
            step = step / 2
        found, current = found - step, torch.minimum(proposed, current)
        if float(step.abs().max()) < TOLERANCE:
            break
    return found
