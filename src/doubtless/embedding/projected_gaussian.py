"""Gaussians pushed onto the unit sphere: z ~ N(location, variance), u = z/‖z‖. LAM's predictive."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from doubtless.embedding.base import Embedding
from doubtless.embedding.gaussian import check_gaussian, draw_gaussian

CERTAIN = 1e-6
"""Below this 1 − R, κ comes from its expansion, wrong by about CERTAIN², instead of from R."""


class ProjectedGaussianEmbedding(Embedding):
    """Location (n, D) and variance (n, 1) or (n, D) of z; every answer is about u = z/‖z‖, without samples.

    >>> sure = ProjectedGaussianEmbedding({"location": torch.eye(3), "variance": torch.full((3, 1), 1e-6)})
    >>> sure.uncertainty                                   # 1/κ of the von Mises-Fisher with the same mean
    tensor([1.0000e-06, 1.0000e-06, 1.0000e-06])
    """

    family: ClassVar[str] = "projected-gaussian"
    item_axes: ClassVar[Mapping[str, int]] = {"location": 0, "variance": 0}

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        check_gaussian(parameters["location"], parameters["variance"])

    @property
    def variance(self) -> Tensor:
        """Of z, (n, D), also where one number an item was given."""
        return self._parameters["variance"].expand_as(self.location)

    @property
    def direction(self) -> Tensor:
        """E u / ‖E u‖, (n, D); zero where the mean is."""
        return self._moments.direction

    @property
    def resultant(self) -> Tensor:
        """R = ‖E u‖, (n,), exact."""
        return self._moments.resultant.to(self.dtype)

    @property
    def concentration(self) -> Tensor:
        """κ with A_D(κ) = R, (n,): of the von Mises-Fisher distribution with the same mean. inf at R = 1."""
        return self._once("concentration", self._inverse_uncertainty)

    @property
    def uncertainty(self) -> Tensor:
        """1/κ, (n,): 0 without variance, inf where all directions are alike (location 0)."""
        return self._once("uncertainty", lambda: self._uncertainty().to(self.dtype))

    @property
    def total_deviation(self) -> Tensor:
        """Sum of the standard deviations of z, (n,): what the published code of LAM scores with."""
        return self.variance.sqrt().sum(-1)

    def sample(self, n: int, *, generator: torch.Generator | None = None, raw: bool = False) -> Tensor:
        """n exact draws (n, items, D), independent between items; with `raw` of z, else of u."""
        return draw_gaussian(self.location, self.variance, n, generator=generator, raw=raw)

    @property
    def _moments(self) -> _Moments:
        return self._once("moments", self._compute_moments)

    def _compute_moments(self) -> _Moments:
        from doubtless.sphere import mean_direction

        found = mean_direction(self.location, self.variance)
        length = found.resultant.unsqueeze(1)
        direction = torch.where(length > 0, found.mean / length, 0.0)
        return _Moments(direction.to(self.dtype), found.resultant, found.complement)

    def _inverse_uncertainty(self) -> Tensor:
        return self._uncertainty().reciprocal().to(self.dtype)

    def _uncertainty(self) -> Tensor:
        """1/κ in float64."""
        from doubtless.sphere import inverse_mean_resultant_length

        dim, rest = self.dim, self._moments.complement
        if dim == 1:  # two points: A(κ) = tanh κ
            return 2 / (torch.log(2 - rest) - torch.log(rest))
        # 1 − A_D(κ) = (D−1)/2κ − (D−1)(D−3)/8κ² + …, solved for 1/κ: R itself has lost 1 − R there.
        certain = 2 * rest / ((dim - 1) - (dim - 3) * rest / 2)
        exact = inverse_mean_resultant_length(dim, self._moments.resultant).reciprocal()
        return torch.where(rest < CERTAIN, certain, exact)


class _Moments(NamedTuple):
    """What one quadrature gives; the lengths stay in float64, where 1 and nearly 1 still differ."""

    direction: Tensor  # (n, D)
    resultant: Tensor  # (n,)
    complement: Tensor  # (n,), 1 − R
