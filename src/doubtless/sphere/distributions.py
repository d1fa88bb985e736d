"""Distributions on the unit sphere as ``torch.distributions``: von Mises-Fisher and its non-isotropic form.

The non-isotropic form is that of Kirchhof, Roth, Akata, Kasneci (2022), with the normaliser that makes it integrate
to one: z has it when ``Kz/‖Kz‖`` is von Mises-Fisher around ``Kμ/‖Kμ‖`` with concentration ``‖Kμ‖``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Size, Tensor
from torch.distributions import Distribution, constraints
from torch.distributions.kl import register_kl

from doubtless.errors import InputError
from doubtless.sphere.bessel import (
    inverse_mean_resultant_length,
    log_normalizer,
    log_normalizer_of_square,
    mean_resultant_length,
    resultant_over_concentration,
)
from doubtless.sphere.sampling import sample_around
from doubtless.sphere.uniform import HypersphericalUniform, unit_vector

__all__ = ["NonIsotropicVonMisesFisher", "VonMisesFisher"]

MONTE_CARLO_SAMPLES = 4096

finite_nonnegative = constraints.half_open_interval(0.0, math.inf)


class VonMisesFisher(Distribution):
    """``p(z) = C_D(κ) exp(κ μ·z)`` on the unit sphere: direction μ (..., dim), concentration κ (...).

    >>> image = VonMisesFisher(torch.eye(3)[:2], torch.tensor([0.0, 5.0]))
    >>> image.mean.shape, image.log_prob(torch.eye(3)[:2])
    (torch.Size([2, 3]), tensor([-2.5310, -0.2284]))
    >>> image.rsample((7,), generator=torch.Generator().manual_seed(0)).shape
    torch.Size([7, 2, 3])
    """

    arg_constraints = {"direction": unit_vector, "concentration": finite_nonnegative}
    support = unit_vector
    has_rsample = True

    def __init__(self, direction: Tensor, concentration: Tensor, *, validate_args: bool = True) -> None:
        dim = _sphere_dim(direction)
        batch_shape = _broadcast(direction.shape[:-1], concentration.shape, "concentration")
        self.direction = direction.expand(*batch_shape, dim)  # (..., dim)
        self.concentration = concentration.expand(batch_shape)  # (...)
        self.dim = dim
        try:
            super().__init__(batch_shape, Size([dim]), validate_args=validate_args)
        except ValueError as error:
            raise InputError(
                "A von Mises-Fisher distribution needs directions of length 1 and finite concentrations of at "
                f"least 0. {error}"
            ) from error

    @classmethod
    def fit(cls, samples: Tensor, *, corrected: bool = True) -> VonMisesFisher:
        """Fits one distribution per column to unit samples (samples, ..., dim).

        The mean's length R̄ of n samples is biased upward, so ``corrected`` takes ``R̄² = (n R̄_n² − 1)/(n − 1)``,
        0 if negative; otherwise this is maximum likelihood.
        """
        count = len(samples)
        if samples.dim() < 2 or count < 2:
            raise InputError(
                f"Fitting needs at least 2 samples (samples, ..., dim), got {tuple(samples.shape)}."
            )
        mean = samples.detach().double().mean(0)  # (..., dim)
        length = torch.linalg.vector_norm(mean, dim=-1)
        resultant = length
        if corrected:
            resultant = ((count * length.square() - 1) / (count - 1)).clamp(min=0).sqrt()
        concentration = inverse_mean_resultant_length(samples.shape[-1], resultant)
        if not bool(torch.isfinite(concentration).all()):
            raise InputError(
                "The samples are all the same point (or not of length 1): their concentration is infinite."
            )
        somewhere = torch.zeros_like(mean)
        somewhere[..., 0] = 1  # κ is 0 where the mean vanishes, so any direction is right
        safe = torch.where(length > 0, length, 1).unsqueeze(-1)
        direction = torch.where((length > 0).unsqueeze(-1), mean / safe, somewhere)
        return cls(direction.to(samples), concentration.to(samples))

    def expand(self, batch_shape: Sequence[int], _instance: Distribution | None = None) -> VonMisesFisher:
        """The same distributions in a larger batch."""
        shape = Size(batch_shape)
        direction = self.direction.expand(*shape, self.dim)
        return VonMisesFisher(direction, self.concentration.expand(shape), validate_args=False)

    @property
    def resultant(self) -> Tensor:
        """``‖E z‖ = A_D(κ)``, (...)."""
        return mean_resultant_length(self.dim, self.concentration)

    @property
    def mean(self) -> Tensor:
        """``E z``, (..., dim), shorter than 1."""
        return self.resultant.unsqueeze(-1) * self.direction

    @property
    def mode(self) -> Tensor:
        """The direction, (..., dim), where the density is largest."""
        return self.direction

    @property
    def variance(self) -> Tensor:
        """Variance of each coordinate: the diagonal of ``αI + βμμᵀ``, α = A_D/κ, β = 1 − A_D² − Dα."""
        kappa = self.concentration.double()
        alpha = resultant_over_concentration(self.dim, kappa)
        beta = 1 - mean_resultant_length(self.dim, kappa).square() - self.dim * alpha
        return (alpha.unsqueeze(-1) + beta.unsqueeze(-1) * self.direction.square()).to(self.direction)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density, (...), of unit vectors (..., dim)."""
        if self._validate_args:
            self._validate_sample(value)
        cosine = (value * self.direction).sum(-1).double()
        kappa = self.concentration.double()
        return (kappa * cosine + log_normalizer(self.dim, kappa)).to(self.direction.dtype)

    def entropy(self) -> Tensor:
        """``−E log p(z)``, (...)."""
        kappa = self.concentration.double()
        entropy = -log_normalizer(self.dim, kappa) - kappa * mean_resultant_length(self.dim, kappa)
        return entropy.to(self.concentration.dtype)

    def rsample(
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Unit samples (*sample_shape, ..., dim), differentiable in direction and concentration."""
        shape = self._extended_shape(Size(sample_shape))
        return sample_around(
            self.direction.expand(shape), self.concentration.expand(shape[:-1]), generator=generator
        )


class NonIsotropicVonMisesFisher(Distribution):
    """``p(z) = C_D(‖Kμ‖) exp(Kz·Kμ/‖Kz‖) |K| / ‖Kz‖^D``: direction μ (..., dim), scale (..., dim), K = diag(scale).

    ``scale = κ`` in every coordinate is ``VonMisesFisher(direction, κ)``. Mean and entropy have no closed form:
    they are averages over 4,096 samples of a generator with a fixed seed.

    >>> proxy = NonIsotropicVonMisesFisher(torch.eye(3)[0], torch.full((3,), 5.0))
    >>> proxy.log_prob(torch.eye(3)[0])
    tensor(-0.2284)
    """

    arg_constraints = {"direction": unit_vector, "scale": constraints.independent(constraints.positive, 1)}
    support = unit_vector
    has_rsample = True

    def __init__(self, direction: Tensor, scale: Tensor, *, validate_args: bool = True) -> None:
        dim = _sphere_dim(direction)
        if scale.dim() < 1 or scale.shape[-1] != dim:
            raise InputError(
                f"The scale must end in the direction's dimension {dim}, got {tuple(scale.shape)}."
            )
        batch_shape = _broadcast(direction.shape[:-1], scale.shape[:-1], "scale")
        self.direction = direction.expand(*batch_shape, dim)  # (..., dim)
        self.scale = scale.expand(*batch_shape, dim)  # (..., dim)
        self.dim = dim
        try:
            super().__init__(batch_shape, Size([dim]), validate_args=validate_args)
        except ValueError as error:
            raise InputError(
                "A non-isotropic von Mises-Fisher distribution needs directions of length 1 and scales above 0. "
                f"{error}"
            ) from error

    @classmethod
    def fit(cls, samples: Tensor, *, steps: int = 200) -> NonIsotropicVonMisesFisher:
        """Maximum likelihood for unit samples (samples, dim), by L-BFGS from the isotropic fit.

        Needs clearly more samples than dimensions: there is one scale for each.
        """
        if samples.dim() != 2 or len(samples) <= samples.shape[-1]:
            raise InputError(
                f"Fitting needs (samples, dim) with more samples than dimensions, got {tuple(samples.shape)}."
            )
        points = samples.detach().double()
        start = VonMisesFisher.fit(points)
        location = start.direction.clone().requires_grad_()
        log_scale = (
            start.concentration.clamp(min=1e-3).log().expand(samples.shape[-1]).clone().requires_grad_()
        )
        optimizer = torch.optim.LBFGS([location, log_scale], max_iter=steps, line_search_fn="strong_wolfe")

        def current() -> NonIsotropicVonMisesFisher:
            direction = location / torch.linalg.vector_norm(location)
            return cls(direction, log_scale.exp(), validate_args=False)

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = -current().log_prob(points).mean()
            loss.backward()
            return loss

        with torch.enable_grad():
            optimizer.step(closure)
        best = current()
        return cls(best.direction.detach().to(samples), best.scale.detach().to(samples))

    def expand(
        self, batch_shape: Sequence[int], _instance: Distribution | None = None
    ) -> NonIsotropicVonMisesFisher:
        """The same distributions in a larger batch."""
        shape = (*batch_shape, self.dim)
        return NonIsotropicVonMisesFisher(
            self.direction.expand(shape), self.scale.expand(shape), validate_args=False
        )

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density, (...), of unit vectors (..., dim)."""
        if self._validate_args:
            self._validate_sample(value)
        scaled, scaled_direction = (self.scale * value).double(), (self.scale * self.direction).double()
        squared = scaled.square().sum(-1)  # ‖Kz‖²
        cosine = (scaled * scaled_direction).sum(-1) * squared.rsqrt()
        constant = log_normalizer_of_square(self.dim, scaled_direction.square().sum(-1))
        log_determinant = self.scale.double().log().sum(-1)
        return (constant + cosine + log_determinant - self.dim / 2 * squared.log()).to(self.direction.dtype)

    def rsample(
        self, sample_shape: Sequence[int] = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Unit samples (*sample_shape, ..., dim), differentiable in direction and scale."""
        shape = self._extended_shape(Size(sample_shape))
        turned = self._turned().rsample(sample_shape, generator=generator)
        stretched = turned / self.scale.expand(shape)
        return stretched / torch.linalg.vector_norm(stretched, dim=-1, keepdim=True)

    @property
    def mean(self) -> Tensor:
        """``E z``, (..., dim), the average of 4,096 samples."""
        return self._fixed_samples().mean(0)

    def entropy(self) -> Tensor:
        """``H(y) − log|K| − D E log‖K⁻¹y‖`` with y ~ vMF(Kμ/κ, κ), κ = ‖Kμ‖: only the last term is sampled."""
        turned = self._turned()
        # z = K⁻¹y/‖K⁻¹y‖, hence ‖K⁻¹y‖ = 1/‖Kz‖
        log_stretch = -0.5 * (self.scale * self._fixed_samples()).square().sum(-1).double().log().mean(0)
        log_determinant = self.scale.double().log().sum(-1)
        entropy = turned.entropy().double() - log_determinant - self.dim * log_stretch
        return entropy.to(self.direction.dtype)

    def _turned(self) -> VonMisesFisher:
        """The isotropic distribution of ``Kz/‖Kz‖``."""
        scaled = self.scale * self.direction
        concentration = torch.linalg.vector_norm(scaled, dim=-1)
        return VonMisesFisher(scaled / concentration.unsqueeze(-1), concentration, validate_args=False)

    def _fixed_samples(self) -> Tensor:
        generator = torch.Generator(self.direction.device).manual_seed(0)
        return self.rsample((MONTE_CARLO_SAMPLES,), generator=generator)  # (samples, ..., dim)


def _sphere_dim(direction: Tensor) -> int:
    if direction.dim() < 1 or direction.shape[-1] < 2:
        raise InputError(f"Directions must be (..., dim) with dim at least 2, got {tuple(direction.shape)}.")
    return direction.shape[-1]


def _broadcast(rows: Size, other: Size, name: str) -> Size:
    try:
        return torch.broadcast_shapes(rows, other)
    except RuntimeError as error:
        raise InputError(
            f"Directions are a batch of {tuple(rows)}, but the {name} of {tuple(other)}."
        ) from error


@register_kl(VonMisesFisher, VonMisesFisher)
def _kl_von_mises_fisher(p: VonMisesFisher, q: VonMisesFisher) -> Tensor:
    """``log C(κ₁) − log C(κ₂) + A(κ₁)(κ₁ − κ₂ μ₁·μ₂)``."""
    first, second = p.concentration.double(), q.concentration.double()
    cosine = (p.direction * q.direction).sum(-1).double()
    constants = log_normalizer(p.dim, first) - log_normalizer(p.dim, second)
    return (constants + mean_resultant_length(p.dim, first) * (first - second * cosine)).to(p.direction.dtype)


@register_kl(VonMisesFisher, HypersphericalUniform)
def _kl_uniform(p: VonMisesFisher, q: HypersphericalUniform) -> Tensor:
    """``κ A(κ) + log C(κ) − log C(0)``."""
    kappa = p.concentration.double()
    negative_entropy = kappa * mean_resultant_length(p.dim, kappa) + log_normalizer(p.dim, kappa)
    return (negative_entropy - log_normalizer(p.dim, torch.zeros_like(kappa))).to(p.direction.dtype)
