"""Gaussians pushed onto the unit sphere: z ~ N(location, variance), u = z/‖z‖. LAM's predictive."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor

from doubtless.embedding.base import Embedding, check_gaussian, check_matrix
from doubtless.embedding.gaussian import draw_gaussian, draw_gaussian_scaled, scaled_up
from doubtless.sphere.projected_gaussian import UnitMoments, unit_moments

CHECKED_LATER = frozenset({"cuda"})
"""Devices on which values are looked at with the first answer: to look is to wait for the network to be through."""


class ProjectedGaussianEmbedding(Embedding):
    """Location (n, D) and variance (n, 1) or (n, D) of z; every answer is about u = z/‖z‖, without samples.

    >>> sure = ProjectedGaussianEmbedding({"location": torch.eye(3), "variance": torch.full((3, 1), 1e-6)})
    >>> sure.uncertainty                                   # 1/κ of the von Mises-Fisher with the same mean
    tensor([1.0000e-06, 1.0000e-06, 1.0000e-06])

    On a GPU nothing waits for the device until an answer is asked for: NaN and negative variances are refused then.
    """

    family: ClassVar[str] = "projected-gaussian"
    item_axes: ClassVar[Mapping[str, int]] = {"location": 0, "variance": 0}

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        location, variance = parameters["location"], parameters["variance"]
        if not all(_is_checked_later(value) for value in parameters.values()):
            super().__init__(parameters)
            check_gaussian(location, variance)
            return
        super().__init__({})
        self._parameters.update(parameters)
        check_matrix("location", location)
        if tuple(variance.shape) not in {(len(location), 1), tuple(location.shape)}:
            check_gaussian(location, variance)  # says what is wrong

    @property
    def variance(self) -> Tensor:
        """Of z, (n, D), also where one number per item was given."""
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
        return self._once(
            "concentration", lambda: self._moments.inverse_concentration.reciprocal().to(self.dtype)
        )

    @property
    def uncertainty(self) -> Tensor:
        """1/κ, (n,): 0 without variance, inf where all directions are alike (location 0)."""
        return self._moments.uncertainty

    @property
    def total_deviation(self) -> Tensor:
        """Sum of the standard deviations of z, (n,): what the published code of LAM scores with."""
        self._refuse_if_invalid()
        return self.variance.sqrt().sum(-1)

    def sample(self, n: int, *, generator: torch.Generator | None = None, raw: bool = False) -> Tensor:
        """n exact draws (n, items, D), independent between items; with `raw` of z, else of u."""
        self._refuse_if_invalid()
        return draw_gaussian(self.location, self.variance, n, generator=generator, raw=raw)

    def _scaled(self, scale: float) -> Self:
        return self._with(self._parameters | {"variance": scaled_up(self._parameters["variance"], scale)})

    def sample_scaled(
        self, n: int, scales: Sequence[float], *, generator: torch.Generator
    ) -> Iterator[Tensor]:
        """Unit draws (n, items, D) of `scaled` at each scale in turn, from the same noise."""
        self._refuse_if_invalid()
        return draw_gaussian_scaled(self.location, self.variance, n, scales, generator=generator)

    @property
    def _moments(self) -> UnitMoments:
        """What one quadrature gives; it refuses what the constructor has not looked at."""
        return self._once("moments", lambda: unit_moments(self.location, self.variance))

    def _refuse_if_invalid(self) -> None:
        """Looks at the values where the constructor has not."""
        if not len(self) or not _is_checked_later(self.location):
            return
        variance = self._parameters["variance"]
        largest, lowest, highest = torch.stack((self.location.abs().amax(), *variance.aminmax())).tolist()
        # A NaN is neither at least 0 nor below infinity.
        if not (largest < math.inf and lowest >= 0 and highest < math.inf):
            super().__init__(self._parameters)  # says what is not finite
            check_gaussian(self.location, variance)  # or which is negative


def _is_checked_later(value: Tensor) -> bool:
    return torch.is_tensor(value) and value.is_floating_point() and value.device.type in CHECKED_LATER
