"""Isotonic regression as a table: the best rising function from a score to a probability.

Pool-adjacent-violators (Barlow et al. 1972), fitted once; applied as a search in the table and one line between
two entries, so that nothing of the fitting is needed to answer. Centred (Oron and Flournoy 2017), every flat step
becomes one entry at its centre of mass: the function then rises between the centres of its first and last step,
and scores that differ keep different probabilities, which a threshold needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.errors import InputError


@dataclass(frozen=True, eq=False)
class Isotonic:
    """A rising table; between two entries a straight line, beyond the ends the end's value.

    >>> rising = Isotonic.fit(torch.tensor([0.0, 1.0, 2.0, 3.0]), torch.tensor([0.0, 1.0, 0.0, 1.0]))
    >>> rising(torch.tensor([-5.0, 1.0, 1.5, 9.0])).tolist()
    [0.0, 0.5, 0.5, 1.0]
    """

    score: Tensor  # (m,) float64, rising
    value: Tensor  # (m,) float64, not falling

    @classmethod
    def fit(
        cls,
        score: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        centred: bool = False,
        never_certain: bool = False,
    ) -> Isotonic:
        """The rising function nearest to `target` (n,) in weighted squares at `score` (n,); ties share a value.

        centred         one entry a step, at its centre of mass, instead of its two ends
        never_certain   one item that is wrong is added at the highest score and one that is right at the
                        lowest: a run of m right answers at the top is then worth m/(m+1), never 1
        """
        _check(score, target)
        score, target = score.double(), target.double()
        weight = torch.ones_like(score) if weight is None else weight.double()
        if never_certain:
            score = torch.cat([score, score.max().view(1), score.min().view(1)])
            target = torch.cat([target, target.new_tensor([0.0, 1.0])])
            weight = torch.cat([weight, weight.new_ones(2)])
        places, group = torch.unique(score, return_inverse=True)  # rising
        mass = torch.zeros_like(places).scatter_add_(0, group, weight)
        mean = torch.zeros_like(places).scatter_add_(0, group, weight * target) / mass
        value = _pooled(mean, mass)
        if centred:
            return cls(*_centres(places, value, mass))
        kept = _ends_of_steps(value)
        return cls(places[kept], value[kept])

    def __call__(self, score: Tensor) -> Tensor:
        """Values of any scores, in their shape, float64."""
        where = score.double().contiguous()
        right = torch.searchsorted(self.score, where).clamp(1, max(1, len(self.score) - 1))
        right = right.clamp_max(len(self.score) - 1)
        left = (right - 1).clamp_min(0)
        span = self.score[right] - self.score[left]
        step = torch.where(span > 0, (where - self.score[left]) / span, 1.0).clamp(0, 1)
        return torch.lerp(self.value[left], self.value[right], step)

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """What `from_tensors` needs."""
        return {f"{prefix}score": self.score, f"{prefix}value": self.value}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], prefix: str = "") -> Isotonic:
        return cls(tensors[f"{prefix}score"], tensors[f"{prefix}value"])


def _pooled(mean: Tensor, mass: Tensor) -> Tensor:
    from scipy.optimize import isotonic_regression

    return torch.from_numpy(isotonic_regression(mean.numpy(), weights=mass.numpy()).x).double()


def _centres(places: Tensor, value: Tensor, mass: Tensor) -> tuple[Tensor, Tensor]:
    """Mean score and value of each run of equal values."""
    levels, step = torch.unique_consecutive(value, return_inverse=True)
    total = torch.zeros_like(levels).scatter_add_(0, step, mass)
    return torch.zeros_like(levels).scatter_add_(0, step, mass * places) / total, levels


def _ends_of_steps(value: Tensor) -> Tensor:
    """Where a run of equal values begins or ends; what lies inside the run adds nothing to the table."""
    changes = value[1:] != value[:-1]
    edge = torch.ones(1, dtype=torch.bool)
    return torch.cat([edge, changes]) | torch.cat([changes, edge])


def _check(score: Tensor, target: Tensor) -> None:
    if score.dim() != 1 or score.shape != target.shape or not len(score):
        raise InputError(
            "isotonic regression needs one target a score, at least one of each, got shapes "
            f"{tuple(score.shape)} and {tuple(target.shape)}."
        )
    if not bool(torch.isfinite(score.double()).all()) or not bool(torch.isfinite(target.double()).all()):
        raise InputError("isotonic regression needs finite scores and targets, got NaN or infinite entries.")
