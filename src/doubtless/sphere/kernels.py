"""Similarities of every image with every class proxy, both distributions on the sphere.

Each takes images (batch, dim) and proxies (classes, dim) and returns (batch, classes), higher is more alike.
Two von Mises-Fisher distributions need their cosine alone; a non-isotropic proxy needs ‖K_c z‖² and K_c z·K_c μ_c,
which are the products ``(z∘z)(K_c∘K_c)ᵀ`` and ``z (K_c²μ_c)ᵀ``: nothing here is (batch, classes, dim).

Kirchhof, Roth, Akata, Kasneci 2022: "A Non-isotropic Probabilistic Take on Proxy-based Deep Metric Learning".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.sphere.bessel import log_normalizer, log_normalizer_of_square, mean_resultant_length
from doubtless.sphere.distributions import NonIsotropicVonMisesFisher, VonMisesFisher

__all__ = ["bhattacharyya", "expected_likelihood", "kl_similarity", "log_likelihood"]

Proxy = VonMisesFisher | NonIsotropicVonMisesFisher


def expected_likelihood(
    image: VonMisesFisher, proxy: Proxy, *, samples: int = 5, generator: torch.Generator | None = None
) -> Tensor:
    """``log ∫ p_image p_proxy``: exact for von Mises-Fisher proxies, else over ``samples`` draws of each image.

    >>> image = VonMisesFisher(torch.eye(4)[:3], torch.full((3,), 10.0))
    >>> expected_likelihood(image, VonMisesFisher(torch.eye(4)[:2], torch.full((2,), 10.0))).shape
    torch.Size([3, 2])
    """
    _check(image, proxy, samples)
    dtype = image.direction.dtype
    if isinstance(proxy, VonMisesFisher):
        first, second = _log_constants(image, proxy)
        return (first + second - log_normalizer_of_square(image.dim, _squared_sum(image, proxy))).to(dtype)
    _, log_proxy = _sampled(image, proxy, samples, generator)
    return (log_proxy.logsumexp(0) - math.log(samples)).to(dtype)


def bhattacharyya(
    image: VonMisesFisher, proxy: Proxy, *, samples: int = 5, generator: torch.Generator | None = None
) -> Tensor:
    """``log ∫ √(p_image p_proxy)``, 0 for equal distributions; sampled where ``expected_likelihood`` is."""
    _check(image, proxy, samples)
    dtype = image.direction.dtype
    if isinstance(proxy, VonMisesFisher):
        first, second = _log_constants(image, proxy)
        middle = log_normalizer_of_square(image.dim, _squared_sum(image, proxy) / 4)
        return (0.5 * (first + second) - middle).to(dtype)
    points, log_proxy = _sampled(image, proxy, samples, generator)
    kappa = image.concentration.double()
    log_image = kappa * (points * image.direction).sum(-1).double() + log_normalizer(image.dim, kappa)
    root_ratio = 0.5 * (log_proxy - log_image.unsqueeze(-1))  # (samples, batch, classes)
    return (root_ratio.logsumexp(0) - math.log(samples)).to(dtype)


def kl_similarity(
    image: VonMisesFisher, proxy: Proxy, *, samples: int = 5, generator: torch.Generator | None = None
) -> Tensor:
    """``−KL(image ‖ proxy)``, 0 for equal distributions; sampled where ``expected_likelihood`` is."""
    _check(image, proxy, samples)
    dtype = image.direction.dtype
    kappa = image.concentration.double().unsqueeze(-1)  # (batch, 1)
    resultant = mean_resultant_length(image.dim, kappa)
    log_c = log_normalizer(image.dim, kappa)
    if isinstance(proxy, VonMisesFisher):
        _, second = _log_constants(image, proxy)
        along = kappa - proxy.concentration.double() * _cosine(image, proxy)
        return (second - log_c - resultant * along).to(dtype)
    _, log_proxy = _sampled(image, proxy, samples, generator)
    return (log_proxy.mean(0) - log_c - resultant * kappa).to(dtype)


def log_likelihood(image: VonMisesFisher, proxy: Proxy) -> Tensor:
    """Log-density of each proxy at the image's direction; the image's own concentration plays no part."""
    _check(image, proxy, samples=1)
    return _log_prob_of_all(image.direction, proxy).to(image.direction.dtype)


def _check(image: VonMisesFisher, proxy: Proxy, samples: int) -> None:
    if len(image.batch_shape) != 1 or len(proxy.batch_shape) != 1 or image.dim != proxy.dim:
        raise InputError(
            "Images must be (batch, dim) and proxies (classes, dim) of the same dim, got "
            f"{tuple(image.direction.shape)} and {tuple(proxy.direction.shape)}."
        )
    if samples < 1:
        raise InputError(f"The number of samples must be at least 1, got {samples}.")


def _cosine(image: VonMisesFisher, proxy: Proxy) -> Tensor:
    return (image.direction @ proxy.direction.to(image.direction).T).double()  # (batch, classes)


def _squared_sum(image: VonMisesFisher, proxy: VonMisesFisher) -> Tensor:
    """``‖κ₁μ₁+κ₂μ₂‖²`` from the cosine alone, (batch, classes); opposite directions may round to below 0."""
    first, second = image.concentration.double().unsqueeze(-1), proxy.concentration.double()
    return ((first - second).square() + 2 * first * second * (1 + _cosine(image, proxy))).clamp(min=0)


def _log_constants(image: VonMisesFisher, proxy: VonMisesFisher) -> tuple[Tensor, Tensor]:
    first = log_normalizer(image.dim, image.concentration.double()).unsqueeze(-1)  # (batch, 1)
    return first, log_normalizer(proxy.dim, proxy.concentration.double())  # (classes,)


def _log_prob_of_all(points: Tensor, proxy: Proxy) -> Tensor:
    """Log-density of every proxy at every point: (points, dim) → (points, classes), by matrix products."""
    direction = proxy.direction.to(points)
    if isinstance(proxy, VonMisesFisher):
        kappa = proxy.concentration.double()
        return kappa * (points @ direction.T).double() + log_normalizer(proxy.dim, kappa)
    squared_scale = proxy.scale.to(points).square()  # (classes, dim)
    squared_norm = (points.square() @ squared_scale.T).double()  # ‖K_c z‖², (points, classes)
    product = (points @ (squared_scale * direction).T).double()  # K_c z·K_c μ_c
    squared_concentration = (squared_scale * direction.square()).sum(-1).double()  # (classes,)
    constant = log_normalizer_of_square(proxy.dim, squared_concentration)
    log_determinant = proxy.scale.double().log().sum(-1)
    return constant + log_determinant + product * squared_norm.rsqrt() - proxy.dim / 2 * squared_norm.log()


def _sampled(
    image: VonMisesFisher, proxy: Proxy, samples: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Image samples (samples, batch, dim), and the proxies' log-densities there (samples, batch, classes)."""
    points = image.rsample((samples,), generator=generator)
    return points, _log_prob_of_all(points.flatten(0, 1), proxy).unflatten(0, points.shape[:2])
