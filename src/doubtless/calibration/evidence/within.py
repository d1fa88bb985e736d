"""What the items of a label have in common: a metric in which labels are round, and how near their items lie.

Two small statistics of a labelled gallery. Directions in which items of one label differ from each other say little
about the label, so distances are taken after dividing by them (the within-class covariance of Fisher 1936, shrunk
to a multiple of the identity as by Friedman 1989). And a label whose own items lie close together claims fewer
queries at a given similarity than one whose items are spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.errors import InputError

SHRINKAGE = 0.5
"""Of the within-label covariance towards a multiple of the identity."""
PRIOR_ITEMS = 4.0
"""Items' worth of belief that a label is as spread as labels are on average."""
SMALLEST = 1e-6
"""Deviation below which scores are held to be equal: a gallery of copies has no spread to divide by."""
ROUNDING = 1e-20
"""Of the vectors' squares: what of a variance is less than this is rounding."""


@dataclass(frozen=True, eq=False)
class WithinMetric:
    """(x − mean) · transform: vectors (…, D) in which items of one label vary alike in all directions.

    >>> generator = torch.Generator().manual_seed(0)
    >>> centre, noise = torch.randn(20, 2, generator=generator), torch.randn(200, 2, generator=generator)
    >>> label = torch.arange(200) % 20
    >>> metric = WithinMetric.fit(centre[label] + noise * torch.tensor([3.0, 0.3]), label, shrinkage=0.0)
    >>> metric(noise * torch.tensor([3.0, 0.3])).std(0).round(decimals=1)
    tensor([1., 1.])
    """

    mean: Tensor  # (D,)
    transform: Tensor  # (D, D)

    @classmethod
    def fit(cls, vectors: Tensor, label: Tensor, *, shrinkage: float = SHRINKAGE) -> WithinMetric:
        """From vectors (n, D) and their labels (n,); the plain metric where no label has two items that differ."""
        if not len(vectors) or len(vectors) != len(label):
            raise InputError(
                "A metric within labels needs one label per vector and a vector at least, got "
                f"{len(vectors)} vectors and {len(label)} labels."
            )
        mean = vectors.double().mean(0)
        centred = vectors.double() - mean
        members, place = torch.unique(label, return_inverse=True)
        sums = centred.new_zeros(len(members), centred.shape[1]).index_add_(0, place, centred)
        inside = centred - (sums / torch.bincount(place).unsqueeze(1))[place]
        covariance = inside.T @ inside / max(1, len(vectors) - len(members))
        if float(covariance.diagonal().mean()) <= ROUNDING * float(vectors.double().square().mean()):
            covariance = torch.zeros_like(covariance)  # copies: a mean of three is not always each of them
        return cls.of(mean, covariance, vectors.dtype, shrinkage=shrinkage)

    @classmethod
    def of(
        cls, mean: Tensor, covariance: Tensor, dtype: torch.dtype, *, shrinkage: float = SHRINKAGE
    ) -> WithinMetric:
        """From the mean (D,) of all items and their covariance (D, D) within labels, float64 both."""
        level = covariance.diagonal().mean()
        identity = torch.eye(len(covariance), dtype=torch.double, device=covariance.device)
        if not float(level) > 0:
            return cls(mean.to(dtype), identity.to(dtype))
        shrunk = (1 - shrinkage) * covariance + shrinkage * level * identity
        return cls(mean.to(dtype), _root_of_inverse(shrunk, float(level)).to(dtype))

    def __call__(self, vectors: Tensor) -> Tensor:
        """Vectors (…, D) in this metric, in which Euclidean distances count."""
        return (vectors - self.mean.to(vectors.dtype)) @ self.transform.to(vectors.dtype)

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """What `from_tensors` needs."""
        return {f"{prefix}mean": self.mean, f"{prefix}transform": self.transform}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], prefix: str = "") -> WithinMetric:
        """The metric whose `tensors` these are."""
        return cls(tensors[f"{prefix}mean"], tensors[f"{prefix}transform"])


def _root_of_inverse(covariance: Tensor, level: float) -> Tensor:
    """A matrix R with R Rᵀ = covariance⁻¹, by Cholesky; by eigenvectors, cut off, where that is singular."""
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if not bool(failed) and float(factor.diagonal().amin()) ** 2 >= SMALLEST * level:
        identity = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        return torch.linalg.solve_triangular(factor, identity, upper=False).T
    variance, axes = torch.linalg.eigh(covariance)
    return (axes * variance.clamp_min(SMALLEST * level).rsqrt()) @ axes.T


@dataclass(frozen=True, eq=False)
class LabelSpread:
    """How similar an item of a label is to the nearest other one of it: mean and deviation, drawn to all labels'.

    >>> spread = LabelSpread.fit(torch.tensor([0.9, 0.9, 0.5]), torch.tensor([0, 0, 1]))
    >>> mean, deviation = spread.of(torch.tensor([[0, 1, 7]]))
    >>> bool(mean[0, 0] > mean[0, 2] > mean[0, 1])       # label 7 was never seen: as labels are on average
    True
    """

    count: Tensor  # (L,) items that have another of their label among their hits
    total: Tensor  # (L,) of their scores
    square: Tensor  # (L,) of their scores, less the mean of all, squared
    mean: Tensor  # () of all labels' items
    deviation: Tensor  # ()

    @classmethod
    def fit(cls, nearest: Tensor, label: Tensor) -> LabelSpread:
        """From each item's best score (n,) with another one of its label (n,); −inf where it found none."""
        there = nearest.isfinite() & (label >= 0)
        value, code = nearest[there].double(), label[there]
        size = int(label.max()) + 1 if len(label) else 0
        mean = value.mean() if len(value) else value.new_zeros(())
        apart = (value - mean).square()
        deviation = (apart.mean() if len(value) else apart.new_zeros(())).sqrt().clamp_min(SMALLEST)
        zeros = value.new_zeros(size)
        return cls(
            zeros.index_add(0, code, torch.ones_like(value)),
            zeros.index_add(0, code, value),
            zeros.index_add(0, code, apart),
            mean,
            deviation,
        )

    def of(self, label: Tensor, *, without: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        """Mean and deviation (n, m) for labels (n, m).

        without   a label (n,) and a score (n,) per row that is taken out first: a query's own, which must not
                  speak of itself; −inf takes nothing out
        """
        known = (label >= 0) & (label < len(self.count))
        code = torch.where(known, label, 0)
        count, total, square = (
            torch.where(known, values[code], 0.0)
            if len(values)
            else torch.zeros_like(label, dtype=torch.double)
            for values in (self.count, self.total, self.square)
        )
        if without is not None:
            own, value = without
            value = value.double().unsqueeze(1)
            leaves = (label == own.unsqueeze(1)) & value.isfinite() & known
            value = torch.where(leaves, value, 0.0)
            count, total = count - leaves.double(), total - value
            square = square - torch.where(leaves, (value - self.mean).square(), 0.0)
        weight = count + PRIOR_ITEMS
        shift = (total - count * self.mean) / weight  # of the label's mean from all labels'
        variance = (square.clamp_min(0) + PRIOR_ITEMS * self.deviation.square()) / weight - shift.square()
        return self.mean + shift, variance.clamp_min(SMALLEST**2).sqrt()

    def tensors(self, prefix: str = "") -> dict[str, Tensor]:
        """What `from_tensors` needs."""
        return {f"{prefix}{name}": getattr(self, name) for name in SPREAD}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], prefix: str = "") -> LabelSpread:
        """The spread whose `tensors` these are."""
        return cls(*(tensors[f"{prefix}{name}"] for name in SPREAD))


SPREAD = ("count", "total", "square", "mean", "deviation")
