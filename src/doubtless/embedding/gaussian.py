"""Gaussians with diagonal covariance in the raw embedding space: PFE, HIB, Bayesian triplet, DVML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.embedding.base import Embedding, check_gaussian
from doubtless.errors import InputError
from doubtless.sphere import projected_gaussian_mean


class GaussianEmbedding(Embedding):
    """Location (n, D) and variance (n, 1), the same in every dimension, or (n, D).

    Distances are those of the raw space: E‖z − w‖² = ‖μ − ν‖² + tr Σ + tr Σ'.
    """

    family: ClassVar[str] = "gaussian"
    item_axes: ClassVar[Mapping[str, int]] = {"location": 0, "variance": 0}
    is_unit: ClassVar[bool] = False

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        check_gaussian(parameters["location"], parameters["variance"])

    @property
    def variance(self) -> Tensor:
        """(n, D), also where one number per item was given."""
        return self._parameters["variance"].expand_as(self.location)

    @property
    def total_variance(self) -> Tensor:
        """tr Σ, (n,)."""
        return self.variance.sum(-1)

    @property
    def uncertainty(self) -> Tensor:
        """tr Σ: how far, squared, the embedding is expected to lie from its mean."""
        return self.total_variance

    @property
    def resultant(self) -> Tensor:
        """‖E z/‖z‖‖, exact."""
        return self._once(
            "resultant", lambda: projected_gaussian_mean(self.location, self.variance).norm(dim=-1)
        )

    def sample(self, n: int, *, generator: torch.Generator | None = None, raw: bool = False) -> Tensor:
        """n draws (n, items, D), independent between items: unit vectors, or with `raw` in the space itself."""
        return draw_gaussian(self.location, self.variance, n, generator=generator, raw=raw)

    def _scaled(self, scale: float) -> Self:
        return self._with(self._parameters | {"variance": scaled_up(self._parameters["variance"], scale)})

    def sample_scaled(
        self, n: int, scales: Sequence[float], *, generator: torch.Generator
    ) -> Iterator[Tensor]:
        """Unit draws (n, items, D) of `scaled` at each scale in turn, from the same noise."""
        return draw_gaussian_scaled(self.location, self.variance, n, scales, generator=generator)

    def expected_squared_distance(self, other: Embedding) -> Tensor:
        """E‖z − w‖² in the raw space, row by row, (n,)."""
        self._must_be_comparable(other)
        assert isinstance(other, GaussianEmbedding)
        if len(self) != len(other):
            raise InputError(f"Row by row needs equal lengths, got {len(self)} and {len(other)} items.")
        return (self.location - other.location).square().sum(-1) + self.total_variance + other.total_variance

    def pairwise_expected_squared_distance(self, other: Embedding) -> Tensor:
        """E‖z − w‖² in the raw space of every pair, (n, m)."""
        self._must_be_comparable(other)
        assert isinstance(other, GaussianEmbedding)
        squared = self.location.square().sum(-1) + self.total_variance  # (n,) E‖z‖²
        others = other.location.square().sum(-1) + other.total_variance  # (m,)
        return (squared[:, None] + others - 2 * self.location @ other.location.T).clamp_min(0)


def draw_gaussian(
    location: Tensor, variance: Tensor, n: int, *, generator: torch.Generator | None, raw: bool
) -> Tensor:
    """n draws (n, items, D) from independent Gaussians, normalised unless `raw`."""
    draws = location + variance.sqrt() * _noise(location, n, generator)  # (n, items, D)
    return draws if raw else normalize(draws, dim=-1)


def draw_gaussian_scaled(
    location: Tensor, variance: Tensor, n: int, scales: Sequence[float], *, generator: torch.Generator
) -> Iterator[Tensor]:
    """Unit draws (n, items, D) with the variance times each of several scales, from the same noise."""
    noise = _noise(location, n, generator)
    for scale in scales:
        yield normalize(location + scaled_up(variance, scale).sqrt() * noise, dim=-1)


def scaled_up(values: Tensor, scale: float) -> Tensor:
    """Values times a scale, finite all the same."""
    return (values * scale).clamp_max(torch.finfo(values.dtype).max)


def _noise(location: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    shape = (n, *location.shape)
    return torch.randn(shape, generator=generator, dtype=location.dtype, device=location.device)
