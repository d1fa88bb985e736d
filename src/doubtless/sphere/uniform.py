"""The uniform distribution on the unit sphere, the prior of a von Mises-Fisher distribution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints

from doubtless.sphere.bessel import log_normalizer
from doubtless.sphere.sampling import sample_uniform

__all__ = ["HypersphericalUniform", "unit_vector"]


class _UnitVector(constraints.Constraint):
    """A last axis of length one, to rounding."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        """Whether vectors (..., dim) have length one, (...)."""
        return (torch.linalg.vector_norm(value, dim=-1) - 1).abs() < 1e-3


unit_vector = _UnitVector()


class HypersphericalUniform(Distribution):
    """The uniform distribution on the unit sphere of R^dim.

    >>> HypersphericalUniform(3).log_prob(torch.eye(3))
    tensor([-2.5310, -2.5310, -2.5310])
    """

    arg_constraints = {}
    support = unit_vector
    has_rsample = True

    def __init__(
        self,
        dim: int,
        batch_shape: Sequence[int] = (),
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        validate_args: bool = True,
    ) -> None:
        self.dim = dim
        self._log_density = log_normalizer(dim, torch.zeros((), dtype=dtype, device=device))
        super().__init__(Size(batch_shape), Size([dim]), validate_args=validate_args)

    def expand(
        self, batch_shape: Sequence[int], _instance: Distribution | None = None
    ) -> HypersphericalUniform:
        """The same distribution in a larger batch."""
        log_density = self._log_density
        return HypersphericalUniform(
            self.dim, batch_shape, dtype=log_density.dtype, device=log_density.device
        )

    @property
    def mean(self) -> Tensor:
        """0 in every coordinate, (..., dim)."""
        return self._log_density.new_zeros(self._extended_shape())

    @property
    def variance(self) -> Tensor:
        """1/dim of every coordinate, (..., dim)."""
        return self._log_density.new_full(self._extended_shape(), 1 / self.dim)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density, (...), of unit vectors (..., dim): everywhere the same."""
        if self._validate_args:
            self._validate_sample(value)
        shape = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        return self._log_density.expand(shape)

    def entropy(self) -> Tensor:
        """The logarithm of the sphere's area, (...)."""
        return -self._log_density.expand(self.batch_shape)

    def rsample(
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Unit samples (*sample_shape, ..., dim)."""
        shape = self._extended_shape(Size(sample_shape))
        like = self._log_density
        return sample_uniform(shape, dtype=like.dtype, device=like.device, generator=generator)
