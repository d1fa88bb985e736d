"""Metric and background of a labelled sample, and of the same without a fold of it, from sums that are made once.

Leaving out a fifth of the items changes sums by those of that fifth. Fitted anew, every fold would multiply all the
others' vectors again, which was most of what a calibration cost.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.calibration.evidence.background import Background
from doubtless.calibration.evidence.within import WithinMetric

LOST = 1e-9
"""Of the variance of all items: what within labels is less than this is what subtracting left over."""


@dataclass(frozen=True, eq=False)
class SampleSums:
    """Sums over vectors, less the whole sample's mean, which keeps their digits."""

    origin: Tensor  # (D,) float64
    count: Tensor  # (L,) items of each label
    total: Tensor  # (L, D) float64, of each label's
    square: Tensor  # (D, D) float64, of all items' products with themselves

    @classmethod
    def of(cls, vectors: Tensor, place: Tensor, labels: int, origin: Tensor) -> SampleSums:
        """Of vectors (n, D) whose labels are numbered (n,) from 0 to `labels`."""
        centred = vectors.double() - origin
        total = centred.new_zeros(labels, centred.shape[1]).index_add_(0, place, centred)
        return cls(origin, place.bincount(minlength=labels), total, centred.T @ centred)

    def without(self, other: SampleSums) -> SampleSums:
        """Of the items that are not among the other's."""
        return SampleSums(
            self.origin, self.count - other.count, self.total - other.total, self.square - other.square
        )

    def background(self) -> Background:
        """As `Background.fit`."""
        items = int(self.count.sum())
        shift = self.total.sum(0) / items
        return Background(self.origin + shift, self.square / items - torch.outer(shift, shift))

    def metric(self, dtype: torch.dtype) -> WithinMetric | None:
        """As `WithinMetric.fit`; None where labels' items hardly differ, for which sums are not exact enough."""
        items, there = int(self.count.sum()), self.count > 0
        means = self.total[there] / self.count[there].double().sqrt().unsqueeze(1)
        covariance = (self.square - means.T @ means) / max(1, items - int(there.sum()))
        if not float(covariance.diagonal().mean()) > LOST * float(self.square.diagonal().mean()) / items:
            return None
        return WithinMetric.of(self.origin + self.total.sum(0) / items, covariance, dtype)


@dataclass(frozen=True, eq=False)
class LabelledVectors:
    """A labelled sample and its sums."""

    vectors: Tensor  # (n, D)
    label: Tensor  # (n,)
    place: Tensor  # (n,) labels, numbered from 0
    sums: SampleSums

    @classmethod
    def of(cls, vectors: Tensor, label: Tensor) -> LabelledVectors:
        """From vectors (n, D) and their labels (n,)."""
        members, place = label.unique(return_inverse=True)
        sums = SampleSums.of(vectors, place, len(members), vectors.double().mean(0))
        return cls(vectors, label, place, sums)

    def fitted(self, left_out: Tensor | None = None) -> tuple[WithinMetric, Background]:
        """Metric and background of all items, or of those that are not left out (n,)."""
        sums = self.sums
        if left_out is not None:
            some = SampleSums.of(self.vectors[left_out], self.place[left_out], len(sums.count), sums.origin)
            sums = sums.without(some)
        metric = sums.metric(self.vectors.dtype)
        if metric is None:
            kept = slice(None) if left_out is None else ~left_out
            metric = WithinMetric.fit(self.vectors[kept], self.label[kept])
        return metric, sums.background()
