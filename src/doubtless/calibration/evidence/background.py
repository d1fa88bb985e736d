"""How similar a query is to the gallery as a whole: mean and deviation of its cosines with all items.

A photo that resembles everything a little has a high first score whatever it shows, and one that stands out a low
one: what a score is worth is seen against those of a cohort (T-norm, Auckenthaler, Carey and Lloyd-Thomas 2000).
Here the cohort is every item. Mean and deviation of cosines follow from the first two moments of the items, so no
item is looked at when a query is asked: they cost as much as one more label, in a gallery of any size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Background:
    """The first two moments of a gallery's vectors.

    >>> items = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    >>> mean, deviation = Background.fit(items)(torch.tensor([[1.0, 0.0]]))
    >>> mean.tolist(), deviation.tolist()
    ([0.5], [0.5])
    """

    mean: Tensor  # (D,) float64: what is converted at every query costs more than what is kept
    covariance: Tensor  # (D, D) float64

    @classmethod
    def fit(cls, vectors: Tensor) -> Background:
        """From vectors (n, D)."""
        mean = vectors.double().mean(0)
        centred = vectors.double() - mean
        return cls(mean, centred.T @ centred / len(vectors))

    def __call__(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation (n,) of the products of queries (n, D) with all items, float64."""
        query = query.double()
        variance = torch.linalg.vecdot(query @ self.covariance, query)
        return query @ self.mean, variance.clamp_min(0).sqrt()

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """What `from_tensors` needs."""
        return {f"{prefix}mean": self.mean, f"{prefix}covariance": self.covariance}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], prefix: str = "") -> Background:
        """The background whose `tensors` these are."""
        return cls(tensors[f"{prefix}mean"], tensors[f"{prefix}covariance"])
