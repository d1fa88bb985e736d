"""The Bayesian triplet loss: how improbable it is that the anchor is nearer to the positive than to the negative.

Warburg, Jørgensen, Civera and Hauberg, *Bayesian Triplet Loss: Uncertainty Quantification in Image Retrieval*
(2021), eq. 6 to 8 and 13. With the moments of τ = ‖a − p‖² − ‖a − n‖² (`triplet_moments`), taken to be
Gaussian,

    loss = −log Φ((−m − E τ)/√Var τ) + s · [KL(a ‖ prior) + KL(p ‖ prior) + KL(n ‖ prior)].

Priors: N(0, I/D) for Gaussians, which has nearly unit length; uniform on the sphere for von Mises-Fisher.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from doubtless.losses.gaussian_triplet_step import gaussian_triplet_step
from doubtless.losses.triplet import AnyMining, Triplets, mined_triplets, squared_distances
from doubtless.losses.triplet_moments import (
    Distributions,
    Gaussians,
    Moments,
    Triple,
    VonMisesFishers,
    isotropic_triplet_moments,
    sphere_triplet_moments,
    triplet_moments,
)
from doubtless.sphere.moments import SphereMoments, kl_to_uniform, sphere_moments

OneFamily = TypeVar("OneFamily", bound=Distributions)


def bayesian_triplet_loss(
    anchor: Distributions,
    positive: Distributions,
    negative: Distributions,
    *,
    margin: float,
    kl_scale: float = 1e-6,
) -> Tensor:
    """Negative log-likelihood of each triplet plus its scaled divergences from the prior, (...).

    Leading axes broadcast: an anchor (t, 1, D) with negatives (t, 5, D) gives (t, 5). Computed in float64
    between input and result, so that gradients stay finite from certain to hopeless triplets.

    >>> a, p, n = (Gaussians(torch.tensor([[x]]), torch.tensor([[0.1]])) for x in (0.0, 0.5, 2.0))
    >>> bayesian_triplet_loss(a, p, n, margin=0.0) < bayesian_triplet_loss(a, n, p, margin=0.0)
    tensor([True])
    """
    dtype = anchor[0].dtype
    images = (_double(anchor), _double(positive), _double(negative))
    loss = triplet_nll(triplet_moments(*images), margin=margin)
    if kl_scale:
        loss = loss + kl_scale * (kl_to_prior(images[0]) + kl_to_prior(images[1]) + kl_to_prior(images[2]))
    return loss.to(dtype)


def batch_bayesian_triplet_loss(
    images: Distributions,
    labels: Tensor,
    *,
    margin: float,
    mining: AnyMining = "skewed",
    kl_scale: float = 1e-6,
    triplets: Triplets | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The loss over triplets of a batch, their mean: those given, or one for every ordered pair of one label.

    The divergence is three times its mean over the batch, every image counting alike. Needs one variance an
    image; from the matrix of distances alone, never (triplets, D). Negatives are drawn (`skewed` to the near
    ones, or `random`): with the hardest, nearly all triplets are within the margin, and then a larger
    variance is always better, whatever the image.

    images: Gaussians with location (batch, D) and variance (batch, 1), or von Mises-Fisher; labels (batch,).

    >>> images = Gaussians(torch.randn(4, 8), torch.full((4, 1), 0.1))
    >>> batch_bayesian_triplet_loss(images, torch.tensor([0, 0, 1, 1]), margin=0.1).shape
    torch.Size([])
    """
    if isinstance(images, Gaussians) and triplets is None:
        return gaussian_triplet_step(
            images.location,
            images.variance,
            labels,
            margin=margin,
            mining=mining,
            kl_scale=kl_scale,
            generator=generator,
        )
    dtype, dim = images[0].dtype, images[0].shape[-1]
    batch = _double(images)
    points = batch[0]
    if isinstance(batch, Gaussians):
        assert triplets is not None
        pairs, chosen = squared_distances(points), triplets
        variances = Triple(*chosen.of_images(batch.variance.squeeze(-1)))
        moments = isotropic_triplet_moments(Triple(*chosen.of_pairs(pairs)), variances, dim=dim)
        divergence = kl_to_prior(batch) if kl_scale else None
    else:
        pairs = points @ points.T
        chosen = triplets or mined_triplets(-pairs, labels, mining, generator=generator)
        own = sphere_moments(dim, batch.concentration)
        a, p, n = (SphereMoments(*rows.unbind(-1)) for rows in chosen.of_images(torch.stack(own, -1)))
        moments = sphere_triplet_moments(Triple(*chosen.of_pairs(pairs)), (a, p, n), dim=dim)
        divergence = kl_to_uniform(batch.concentration, own, dim=dim) if kl_scale else None
    loss = chosen.mean(triplet_nll(moments, margin=margin))
    return (loss if divergence is None else loss + 3 * kl_scale * divergence.mean()).to(dtype)


def triplet_nll(moments: Moments, *, margin: float) -> Tensor:
    """−log Φ((−m − E τ)/√Var τ), (...); at a variance of 0 its limit, 0 or inf, with gradient 0.

    >>> triplet_nll(Moments(torch.tensor([-1.0, 1.0]), torch.tensor([0.0, 1e-12])), margin=0.5)
    tensor([0.0000e+00, 1.1250e+12])
    """
    result: Tensor = _TripletNll.apply(moments.mean, moments.variance, margin)
    return result


def kl_to_prior(images: Distributions) -> Tensor:
    """Divergence of each image from its prior, N(0, I/D) or uniform on the sphere, (...).

    >>> kl_to_prior(Gaussians(torch.zeros(1, 4), torch.full((1, 1), 0.25)))
    tensor([0.])
    """
    dim = images[0].shape[-1]
    if isinstance(images, VonMisesFishers):
        return kl_to_uniform(images.concentration, sphere_moments(dim, images.concentration), dim=dim).to(
            images.direction.dtype
        )
    scaled = dim * images.variance  # against the prior's variance 1/D
    of_variance = (scaled - 1 - scaled.log()).sum(-1) * (dim / images.variance.shape[-1])
    return 0.5 * (of_variance + dim * images.location.square().sum(-1))


class _TripletNll(torch.autograd.Function):
    """Its derivatives: ``h/√V`` and ``h z/(2V)`` with ``h = φ(z)/Φ(z)``.

    torch's own derivative of log_ndtr takes the difference of log Φ and −z²/2, which far out is the
    difference of two equal numbers; the scaled complementary error function gives h to the last digits
    everywhere.
    """

    @staticmethod
    def forward(ctx: Any, mean: Tensor, variance: Tensor, margin: float) -> Tensor:
        deviation, short = variance.sqrt(), -margin - mean
        certain = variance == 0
        # τ = −m for certain is no violation short of the margin, but none beyond it either: it does not hold
        z = (short / deviation).masked_fill(certain & (short == 0), -math.inf)
        if any(ctx.needs_input_grad[:2]):
            slope = math.sqrt(2 / math.pi) / torch.special.erfcx(z * -math.sqrt(0.5)) / deviation
            both = torch.stack((slope, slope * z / (2 * deviation)))
            ctx.save_for_backward(both.masked_fill(certain, 0))
        return -torch.special.log_ndtr(z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (slopes,) = ctx.saved_tensors
        of_mean, of_variance = (grads[0] * slopes).unbind()
        return of_mean, of_variance, None


def _double(images: OneFamily) -> OneFamily:
    return type(images)(images[0].double(), images[1].double())
