"""Tail probabilities: how rare a signal this large is among known queries, whatever the signal's scale.

For a sample x_1 … x_n of known queries and a value s

    p(s) = (#{x > s} + ½ #{x = s} + ½) / (n + 1),

the expectation of the conformal p-value over a fair order of ties (Vovk, Gammerman and Shafer, "Algorithmic
Learning in a Random World", 2005): for a value exchangeable with the sample P(p ≤ t) stays within 1/(n + 1) of t
where nothing ties. It sees the order of values only, so any rising transform of a signal gives the same p.

Beyond the largest of the sample there is no order left to count: there p falls from its floor ½/(n + 1) as an
exponential tail does whose mean excess is that of the sample's upper tenth. Strangers far out stay apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from doubtless.errors import InputError

UPPER = 0.1  # share of the sample that sets the scale of the tail beyond it
DEEPEST = 300.0  # −log p is cut here: float64 still tells exp(−300) from 0


class Tail:
    """The upper tail of one signal among known queries.

    >>> tail = Tail(torch.tensor([1.0, 2.0, 2.0, 3.0]))
    >>> tail.probability(torch.tensor([0.0, 2.0, 3.0]))
    tensor([0.9000, 0.5000, 0.2000], dtype=torch.float64)
    """

    def __init__(self, sample: Tensor) -> None:
        if sample.dim() != 1 or not len(sample):
            raise InputError(f"a tail needs one number a query, shape (n,), got {tuple(sample.shape)}.")
        if not bool(torch.isfinite(sample).all()):
            raise InputError("a tail needs finite numbers; the sample has NaN or infinite entries.")
        self.sample = sample.detach().double().sort().values
        self.scale = _mean_excess(self.sample)

    def __len__(self) -> int:
        return len(self.sample)

    def surprise(self, values: Tensor) -> Tensor:
        """−log p of every value, (n,) float64 on the values' device; +inf is as far out as can be."""
        values = values.detach().double().contiguous()
        sample = self.sample.to(values.device)
        greater = len(sample) - torch.searchsorted(sample, values, right=True)
        below = torch.searchsorted(sample, values)
        equal = (len(sample) - greater - below).double()
        inside = ((greater + 0.5 * equal + 0.5) / (len(sample) + 1)).log().neg()
        return (inside + self._beyond(values)).clamp_max(DEEPEST)

    def probability(self, values: Tensor) -> Tensor:
        """p of every value, (n,) float64."""
        return self.surprise(values).neg().exp()

    def _beyond(self, values: Tensor) -> Tensor:
        """What −log p grows by past the largest of the sample."""
        excess = (values - float(self.sample[-1])).clamp_min(0)
        if self.scale == 0:  # all known queries alike: what lies beyond has no scale to be measured by
            return torch.where(excess > 0, torch.full_like(excess, DEEPEST), excess)
        return excess / self.scale

    def tensors(self) -> dict[str, Tensor]:
        """What `from_tensors` takes."""
        return {"sample": self.sample.cpu()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        return cls(tensors["sample"])


def _mean_excess(ordered: Tensor) -> float:
    """Mean excess over the upper tenth's lower edge; of all above the least where the tenth is all one value."""
    upper = ordered[-max(1, round(UPPER * len(ordered))) - 1 :] if len(ordered) > 1 else ordered
    excess = float((upper - upper[0]).mean())
    return excess if excess > 0 else float((ordered - ordered[0]).mean())
