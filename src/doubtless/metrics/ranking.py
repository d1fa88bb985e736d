"""Items in the order of a score, equal scores as one group: what every rank metric is made of.

The rank metrics are written for weighted items. With all weights one they are the metric; with the counts of
a bootstrap replicate they are the metric of that replicate, a row of weights each, without sorting again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.errors import InputError


@dataclass(frozen=True)
class Ranking:
    """Positions in the order of a score, and where each group of equal scores ends."""

    order: Tensor  # (n,) positions
    ends: Tensor  # (g,) place in `order` of the last member of each group
    tied: bool

    @classmethod
    def of(cls, score: Tensor, *, descending: bool = False) -> Ranking:
        """Smallest first, or largest first. Infinite scores rank like any others; NaN is refused."""
        check_scores(score)
        values, order = score.sort(descending=descending, stable=True)
        last = torch.ones(len(values), dtype=torch.bool, device=values.device)
        last[:-1] = values[1:] != values[:-1]
        return cls(order, last.nonzero().squeeze(1), not bool(last.all()))

    @classmethod
    def unchecked(cls, score: Tensor) -> Ranking:
        """Smallest first, without a question to the device, which a GPU answers slowly.

        NaN is not refused. A group of m members is there m times: it adds what it has once, then nothing.
        """
        values, order = score.sort(stable=True)
        return cls(order, torch.searchsorted(values, values, right=True) - 1, True)

    def totals(self, weights: Tensor) -> Tensor:
        """Sum of the weights (…, n) down to the end of each group, (…, g)."""
        running = _taken(weights, self.order).cumsum(-1)
        return _taken(running, self.ends) if self.tied else running


def _taken(values: Tensor, places: Tensor) -> Tensor:
    """values[…, places]; a gather, which a CPU does several times faster than the same by an index."""
    return values.gather(-1, places.expand(*values.shape[:-1], len(places)))


def steps(totals: Tensor) -> Tensor:
    """What each group adds: the differences of running totals, (…, g)."""
    return totals.diff(dim=-1, prepend=torch.zeros_like(totals[..., :1]))


def before(totals: Tensor) -> Tensor:
    """The running total before each group, (…, g)."""
    return torch.cat([torch.zeros_like(totals[..., :1]), totals[..., :-1]], dim=-1)


def area_under_roc(positive: Tensor, negative: Tensor) -> Tensor:
    """Chance that a positive scores above a negative, ties counting half, (…).

    Both are running totals (…, g) over groups of rising score. NaN where one kind is missing.
    """
    below = before(negative) + steps(negative) / 2
    return (steps(positive) * below).sum(-1) / (positive[..., -1] * negative[..., -1])


def check_scores(score: Tensor, name: str = "uncertainty") -> None:
    """Refuses what cannot be ranked: NaN, no entries, more than one axis."""
    if score.dim() != 1 or not len(score):
        raise InputError(
            f"The {name} must be one number per item, shape (n,), got shape {tuple(score.shape)}."
        )
    if bool(score.isnan().any()):
        count = int(score.isnan().sum())
        raise InputError(
            f"The {name} has {count} NaN entries; numbers and infinities can be ranked, NaN cannot."
        )


def spearman(first: Tensor, second: Tensor) -> float:
    """Spearman's rank correlation of two (n,), equal values sharing their mean rank; NaN where one never varies.

    >>> round(spearman(torch.tensor([1.0, 2.0, 9.0]), torch.tensor([0.0, 5.0, 5.0])), 4)
    0.866
    """
    ranks = [_mean_ranks(values) for values in (first, second)]
    a, b = (rank - rank.mean() for rank in ranks)
    return float((a @ b) / (a.norm() * b.norm()))


def _mean_ranks(values: Tensor) -> Tensor:
    _, place, counts = values.double().unique(return_inverse=True, return_counts=True)
    ends = counts.cumsum(0).double()
    return (ends - (counts.double() - 1) / 2)[place]
