"""Mean and variance of squared distances, and of their difference in a triplet, between random embeddings.

Warburg, Jørgensen, Civera and Hauberg, *Bayesian Triplet Loss: Uncertainty Quantification in Image Retrieval*
(2021), eq. 11 and 12, the latter with its two wrong signs put right; the von Mises-Fisher moments are exact
instead of those of a Gaussian. Every variance here is written as a sum of terms that cannot be negative, so
nothing cancels, whatever the orders of magnitude. All arithmetic is in float64; results have the dtype of the
input.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.sphere.moments import SphereMoments, sphere_moments


class Gaussians(NamedTuple):
    """Independent Gaussians: location (..., D); variance (..., 1), the same in every dimension, or (..., D)."""

    location: Tensor
    variance: Tensor


class VonMisesFishers(NamedTuple):
    """On the unit sphere: direction (..., D), unit vectors; concentration (...)."""

    direction: Tensor
    concentration: Tensor


class Moments(NamedTuple):
    """Mean and variance, one of each a row, (...)."""

    mean: Tensor
    variance: Tensor


class Triple(NamedTuple):
    """A quantity of the images a, p, n of a triplet, or of its sides ap, an, pn."""

    first: Tensor
    second: Tensor
    third: Tensor


Distributions = Gaussians | VonMisesFishers


def triplet_moments(anchor: Distributions, positive: Distributions, negative: Distributions) -> Moments:
    """Mean and variance of τ = ‖a − p‖² − ‖a − n‖²: below 0 where the anchor is nearer to the positive.

    All three Gaussian or all three von Mises-Fisher; leading axes broadcast.

    >>> point = Gaussians(torch.zeros(1, 2), torch.full((1, 1), 0.5))
    >>> triplet_moments(point, point, point)  # 4 σ⁴ D + 8 σ⁴ D
    Moments(mean=tensor([0.]), variance=tensor([6.]))
    """
    if isinstance(anchor, Gaussians):
        if isinstance(positive, Gaussians) and isinstance(negative, Gaussians):
            return _gaussian_triplet(anchor, positive, negative)
    elif isinstance(positive, VonMisesFishers) and isinstance(negative, VonMisesFishers):
        return _sphere_triplet(anchor, positive, negative)
    raise _of_two_families(anchor, positive, negative)


def distance_moments(query: Distributions, neighbour: Distributions) -> Moments:
    """Mean and variance of ‖q − x‖² row by row: what a found neighbour's distance is, and how sure that is.

    >>> query = Gaussians(torch.zeros(1, 2), torch.ones(1, 1))
    >>> distance_moments(query, Gaussians(torch.ones(1, 2), torch.ones(1, 1)))
    Moments(mean=tensor([6.]), variance=tensor([32.]))
    """
    if isinstance(query, Gaussians) and isinstance(neighbour, Gaussians):
        squared = (query.location.double() - neighbour.location.double()).square()  # (..., D)
        total = (query.variance.double() + neighbour.variance.double()).expand_as(squared)
        mean = (squared + total).sum(-1)
        return _in(query.location.dtype, Moments(mean, (2 * total * (total + 2 * squared)).sum(-1)))
    if isinstance(query, Gaussians) or isinstance(neighbour, Gaussians):
        raise _of_two_families(query, neighbour)
    dtype, dim = query.direction.dtype, query.direction.shape[-1]
    cosine = (query.direction.double() * neighbour.direction.double()).sum(-1)
    q, x = (sphere_moments(dim, images.concentration) for images in (query, neighbour))
    variance = _along(q.resultant, x, cosine) + _along(x.resultant, q, cosine) + _trace(q, x, cosine, dim=dim)
    return _in(dtype, Moments(2 - 2 * q.resultant * x.resultant * cosine, 4 * variance))


def isotropic_triplet_moments(squared_distances: Triple, variances: Triple, *, dim: int) -> Moments:
    """The Gaussian moments where each image has one variance: from the distances of the means alone, (...).

    With ``M_ij = d_ij + D(σ_i² + σ_j²)``:
    ``E τ = M_ap − M_an``,  ``Var τ = 4 [σ_a² M_pn + Σ_{i=p,n} σ_i² (d_ai + ½Dσ_i²)]``.
    """
    (d_ap, d_an, d_pn), (a, p, n) = squared_distances, variances
    mean = d_ap - d_an + dim * (p - n)
    at_anchor = a * (d_pn + dim * (p + n))
    return Moments(mean, 4 * (at_anchor + p * (d_ap + dim / 2 * p) + n * (d_an + dim / 2 * n)))


def sphere_triplet_moments(
    cosines: Triple, images: tuple[SphereMoments, SphereMoments, SphereMoments], *, dim: int
) -> Moments:
    """The von Mises-Fisher moments from the cosines of the three sides, (...), and each image's own moments.

    ``τ = 2 u_a·(u_n − u_p)``. With ``w = u_n − u_p``, independent of u_a:
    ``Var(u_a·w) = E u_aᵀ Cov(w) E u_a + E wᵀ Cov(u_a) E w + tr Cov(u_a) Cov(w)``.
    """
    a, p, n = images
    c_ap, c_an, c_pn = cosines
    along = n.resultant * c_an - p.resultant * c_ap  # E w along the anchor's mean direction
    length = (n.resultant - p.resultant).square() + 2 * n.resultant * p.resultant * (1 - c_pn).clamp_min(0)
    across = (length - along.square()).clamp_min(0)  # E w across it, squared
    total = a.across * across + a.along * along.square()
    for other, cosine in ((p, c_ap), (n, c_an)):
        total = total + _along(a.resultant, other, cosine) + _trace(a, other, cosine, dim=dim)
    return Moments(2 * a.resultant * along, 4 * total)


def _gaussian_triplet(anchor: Gaussians, positive: Gaussians, negative: Gaussians) -> Moments:
    """Eq. 11 and 12 dimension by dimension, corrected and sorted into squares."""
    mu_a, mu_p, mu_n = (images.location.double() for images in (anchor, positive, negative))
    a, p, n = (images.variance.double().expand_as(images.location) for images in (anchor, positive, negative))
    d_ap, d_an, d_pn = (mu_a - mu_p).square(), (mu_a - mu_n).square(), (mu_p - mu_n).square()
    # ‖a−p‖² − ‖a−n‖² = (p − n)·(p + n − 2a): a difference of near-equal distances keeps its digits
    mean = ((mu_p - mu_n) * (mu_p + mu_n - 2 * mu_a) + p - n).sum(-1)
    variance = 4 * (a * (d_pn + p + n) + p * (d_ap + p / 2) + n * (d_an + n / 2)).sum(-1)
    return _in(anchor.location.dtype, Moments(mean, variance))


def _sphere_triplet(anchor: VonMisesFishers, positive: VonMisesFishers, negative: VonMisesFishers) -> Moments:
    dtype, dim = anchor.direction.dtype, anchor.direction.shape[-1]
    mu_a, mu_p, mu_n = (images.direction.double() for images in (anchor, positive, negative))
    cosines = Triple((mu_a * mu_p).sum(-1), (mu_a * mu_n).sum(-1), (mu_p * mu_n).sum(-1))
    a, p, n = (sphere_moments(dim, images.concentration) for images in (anchor, positive, negative))
    return _in(dtype, sphere_triplet_moments(cosines, (a, p, n), dim=dim))


def _of_two_families(*images: Distributions) -> InputError:
    got = ", ".join(type(one).__name__ for one in images)
    return InputError(f"All must be Gaussians or all VonMisesFishers, got {got}.")


def _along(resultant: Tensor, other: SphereMoments, cosine: Tensor) -> Tensor:
    """``E uᵀ Cov(v) E u``: the variance of v along u's mean."""
    squared = cosine.square().clamp_max(1)
    return resultant.square() * (other.across * (1 - squared) + other.along * squared)


def _trace(u: SphereMoments, v: SphereMoments, cosine: Tensor, *, dim: int) -> Tensor:
    """``tr Cov(u) Cov(v)``."""
    squared = cosine.square().clamp_max(1)
    mixed = (u.across * v.along + v.across * u.along) * (1 - squared)
    return u.across * v.across * (dim - 2 + squared) + mixed + u.along * v.along * squared


def _in(dtype: torch.dtype, moments: Moments) -> Moments:
    return Moments(moments.mean.to(dtype), moments.variance.to(dtype))
