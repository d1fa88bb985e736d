"""Moments of τ for von Mises-Fisher embeddings against draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from doubtless.losses import triplet_moments
from doubtless.losses.triplet_moments import VonMisesFishers
from doubtless.sphere import VonMisesFisher
from doubtless.sphere.sampling import sample_cosine
from tests.reference.triplets import estimate


def von_mises_fishers(dim: int) -> list[VonMisesFishers]:
    generator = torch.Generator().manual_seed(0)
    common = torch.randn(1, dim, generator=generator, dtype=torch.float64)
    directions = common + torch.randn(3, dim, generator=generator, dtype=torch.float64)
    kappa = dim * torch.tensor([2.0, 0.5, 0.1], dtype=torch.float64)
    unit = directions / directions.norm(dim=-1, keepdim=True)
    return [VonMisesFishers(unit[i : i + 1], kappa[i : i + 1]) for i in range(3)]


def draw(image: VonMisesFishers, count: int, generator: torch.Generator) -> Tensor:
    one = VonMisesFisher(image.direction.float(), image.concentration.float(), validate_args=False)
    return one.rsample((count,), generator=generator)[:, 0]


@pytest.mark.parametrize("dim", [2, 8, 128])
def test_moments_are_those_of_draws(dim: int) -> None:
    a, p, n = von_mises_fishers(dim)
    generator = torch.Generator().manual_seed(1)

    def tau(count: int) -> Tensor:
        anchor, positive, negative = (draw(image, count, generator) for image in (a, p, n))
        return (anchor - positive).square().sum(-1) - (anchor - negative).square().sum(-1)

    sampled = estimate(tau, *((1_000_000, 200_000) if dim <= 8 else (100_000, 20_000)))
    mean, variance = triplet_moments(a, p, n)
    assert sampled.misses_mean(float(mean)) < 4
    assert sampled.misses_variance(float(variance)) < 4


def test_moments_are_those_of_draws_in_2048_dimensions() -> None:
    """Only the anchor is drawn in full: of the others what counts is the cosine to it, drawn exactly.

    With ``u = wμ + √(1−w²) v``, v uniform across μ: ``u·a = w μ·a + √(1−w²) √(1−(μ·a)²) t``, t a coordinate
    of v.
    """
    dim, (a, p, n) = 2048, von_mises_fishers(2048)
    generator, rng = torch.Generator().manual_seed(1), np.random.default_rng(1)

    def cosine_to(anchor: Tensor, image: VonMisesFishers) -> Tensor:
        along = anchor.double() @ image.direction[0]
        cosine, sine = sample_cosine(dim, image.concentration.expand(len(anchor)), generator=generator)
        normal = rng.standard_normal(len(anchor))
        coordinate = normal / np.sqrt(normal**2 + rng.chisquare(dim - 2, len(anchor)))
        return cosine * along + sine * (1 - along.square()).sqrt() * torch.from_numpy(coordinate)

    def tau(count: int) -> Tensor:
        anchor = draw(a, count, generator)
        return 2 * (cosine_to(anchor, n) - cosine_to(anchor, p))

    sampled = estimate(tau, 100_000, 2_000)
    mean, variance = triplet_moments(a, p, n)
    assert sampled.misses_mean(float(mean)) < 4
    assert sampled.misses_variance(float(variance)) < 4
