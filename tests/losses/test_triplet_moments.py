"""Moments of τ and of distances against draws, against moments written out, and at the ends of the scale."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.losses import triplet_moments
from doubtless.losses.triplet_moments import (
    Gaussians,
    Triple,
    VonMisesFishers,
    distance_moments,
    isotropic_triplet_moments,
)
from tests.reference.triplets import Estimate, equation_12, estimate

DIMS = [2, 8, 128, 2048]


def draws_for(dim: int) -> tuple[int, int]:
    return (1_000_000, 100_000) if dim <= 8 else (100_000, max(500, 2_000_000 // dim))


def gaussians(dim: int, *, isotropic: bool, seed: int = 0) -> list[Gaussians]:
    """Around one place away from the origin, where the wrong signs of eq. 12 do not average out."""
    generator = torch.Generator().manual_seed(seed)
    axes = 1 if isotropic else dim
    return [
        Gaussians(
            (1 + torch.randn(1, dim, generator=generator, dtype=torch.float64)) / dim**0.5,
            (0.2 + torch.rand(1, axes, generator=generator, dtype=torch.float64)) / dim,
        )
        for _ in range(3)
    ]


def von_mises_fishers(dim: int, concentrations: tuple[float, ...], seed: int = 0) -> list[VonMisesFishers]:
    generator = torch.Generator().manual_seed(seed)
    common = torch.randn(1, dim, generator=generator, dtype=torch.float64)
    found = []
    for kappa in concentrations:
        direction = common + torch.randn(1, dim, generator=generator, dtype=torch.float64)
        found.append(
            VonMisesFishers(direction / direction.norm(dim=-1, keepdim=True), torch.tensor([kappa]).double())
        )
    return found


def tau(a: Tensor, p: Tensor, n: Tensor) -> Tensor:
    return (a - p).square().sum(-1) - (a - n).square().sum(-1)


def gaussian_estimate(images: list[Gaussians], dim: int) -> Estimate:
    rng = np.random.default_rng(1)  # twice as fast as torch's on one core

    def sample(image: Gaussians, count: int) -> Tensor:
        noise = torch.from_numpy(rng.standard_normal((count, dim), dtype=np.float32))
        return torch.addcmul(image.location.float(), image.variance.float().sqrt(), noise)

    return estimate(lambda count: tau(*(sample(image, count) for image in images)), *draws_for(dim))


@pytest.mark.parametrize("dim", DIMS)
def test_gaussian_moments_are_those_of_draws_and_equation_12_is_not(dim: int) -> None:
    images = gaussians(dim, isotropic=dim != 8)  # one variance an image, and one a dimension
    sampled = gaussian_estimate(images, dim)
    mean, variance = triplet_moments(*images)
    assert sampled.misses_mean(float(mean)) < 4
    assert sampled.misses_variance(float(variance)) < 4
    means = tuple(image.location for image in images)
    printed = equation_12(means, tuple(image.variance.expand(1, dim) for image in images))  # type: ignore[arg-type]
    assert sampled.misses_variance(float(printed)) > 4


@pytest.mark.parametrize("dim", [2, 8])
def test_distance_moments_are_those_of_draws(dim: int) -> None:
    generator = torch.Generator().manual_seed(2)
    query, neighbour, _ = gaussians(dim, isotropic=False)

    def squared(count: int) -> Tensor:
        noise = torch.randn(2, count, dim, generator=generator, dtype=torch.float64)
        a, b = (
            image.location + image.variance.sqrt() * part
            for image, part in zip((query, neighbour), noise, strict=True)
        )
        return (a - b).square().sum(-1)

    sampled = estimate(squared, 200_000, 50_000)
    mean, variance = distance_moments(query, neighbour)
    assert sampled.misses_mean(float(mean)) < 4
    assert sampled.misses_variance(float(variance)) < 4


@pytest.mark.parametrize("dim", [2, 3, 8])
def test_sphere_moments_from_covariances_written_out(dim: int) -> None:
    """By covariances αI + βμμᵀ of von Mises-Fisher distributions, which are exact at moderate concentrations."""
    a, p, n = von_mises_fishers(dim, (3.0, 0.0, 20.0), seed=3)
    mean_a, mean_p, mean_n = (of_image(image)[0] for image in (a, p, n))
    cov_a, cov_p, cov_n = (of_image(image)[1] for image in (a, p, n))
    w, cov_w = mean_n - mean_p, cov_n + cov_p
    mean, variance = triplet_moments(a, p, n)
    torch.testing.assert_close(mean[0], 2 * mean_a @ w)
    expected = mean_a @ cov_w @ mean_a + w @ cov_a @ w + (cov_a @ cov_w).trace()
    torch.testing.assert_close(variance[0], 4 * expected)
    pair = distance_moments(a, n)
    torch.testing.assert_close(pair.mean[0], 2 - 2 * mean_a @ mean_n)
    expected = mean_a @ cov_n @ mean_a + mean_n @ cov_a @ mean_n + (cov_a @ cov_n).trace()
    torch.testing.assert_close(pair.variance[0], 4 * expected)


def of_image(image: VonMisesFishers) -> tuple[Tensor, Tensor]:
    from doubtless.sphere import mean_resultant_length

    dim, mu = image.direction.shape[-1], image.direction[0]
    length = mean_resultant_length(dim, image.concentration)[0]
    alpha = length / image.concentration[0] if image.concentration[0] > 0 else torch.tensor(1 / dim).double()
    beta = 1 - length**2 - dim * alpha
    return length * mu, alpha * torch.eye(dim, dtype=torch.float64) + beta * torch.outer(mu, mu)


def test_one_variance_an_image_is_the_same_in_every_form() -> None:
    images = gaussians(5, isotropic=True)
    plain = triplet_moments(*images)
    spread = triplet_moments(*(Gaussians(i.location, i.variance.expand(1, 5)) for i in images))
    a, p, n = (image.location for image in images)
    sides = Triple(*((x - y).square().sum(-1) for x, y in ((a, p), (a, n), (p, n))))
    by_sides = isotropic_triplet_moments(sides, Triple(*(i.variance[:, 0] for i in images)), dim=5)
    for other in (spread, by_sides):
        torch.testing.assert_close(other, plain)


def test_the_anchor_need_not_be_known_as_such() -> None:
    """Swapping positive and negative turns τ around."""
    for a, p, n in (gaussians(4, isotropic=False), von_mises_fishers(4, (1.0, 10.0, 100.0))):
        there, back = triplet_moments(a, p, n), triplet_moments(a, n, p)
        torch.testing.assert_close(there.mean, -back.mean)
        torch.testing.assert_close(there.variance, back.variance)


@pytest.mark.parametrize("dim", [2, 31, 2047])
@pytest.mark.parametrize("same", [True, False])
def test_variance_on_the_sphere_is_positive_at_every_concentration(dim: int, same: bool) -> None:
    """Also where all three directions are one and only terms of order κ⁻² are left."""
    kappa = torch.logspace(-6, 12, 37, dtype=torch.float64)
    direction = torch.nn.functional.normalize(torch.randn(3, 1, dim, dtype=torch.float64), dim=-1)
    if same:
        direction = direction[:1].expand(3, 1, dim)
    images = [VonMisesFishers(one.expand(37, dim), kappa) for one in direction]
    variance = triplet_moments(*images).variance
    assert (variance > 0).all()
    if same:  # u = √(1−‖x‖²) μ + x, x ~ N(0, I/κ) across μ: τ = ‖x_a − x_p‖² − ‖x_a − x_n‖², as for Gaussians
        expected = 12 * (dim - 1) / kappa[-6:].square()
        torch.testing.assert_close(variance[-6:], expected, rtol=1e-3, atol=0)


def test_families_do_not_mix() -> None:
    gaussian, sphere = gaussians(4, isotropic=True)[0], von_mises_fishers(4, (1.0,))[0]
    for images in ((gaussian, gaussian, sphere), (sphere, gaussian, sphere)):
        with pytest.raises(InputError, match="all VonMisesFishers, got"):
            triplet_moments(*images)
    with pytest.raises(InputError, match="got VonMisesFishers, Gaussians"):
        distance_moments(sphere, gaussian)


def test_precision_of_the_input_is_that_of_the_output() -> None:
    for images in (gaussians(6, isotropic=True), von_mises_fishers(6, (1.0, 2.0, 3.0))):
        single = [type(image)(image[0].float(), image[1].float()) for image in images]
        found, exact = triplet_moments(*single), triplet_moments(*images)
        assert found.mean.dtype == found.variance.dtype == torch.float32
        torch.testing.assert_close(found.mean.double(), exact.mean, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found.variance.double(), exact.variance, rtol=1e-5, atol=0)


def test_gradcheck() -> None:
    torch.manual_seed(0)
    mu = [torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    var = [torch.rand(3, 1, dtype=torch.float64).add(0.1).requires_grad_() for _ in range(3)]

    def of_gaussians(*values: Tensor) -> tuple[Tensor, ...]:
        return tuple(triplet_moments(*(Gaussians(m, v) for m, v in zip(values[:3], values[3:], strict=True))))

    def of_sphere(*values: Tensor) -> tuple[Tensor, ...]:
        unit = [torch.nn.functional.normalize(value, dim=-1) for value in values[:3]]
        kappa = [10 * value[:, 0] for value in values[3:]]
        return tuple(triplet_moments(*(VonMisesFishers(u, k) for u, k in zip(unit, kappa, strict=True))))

    assert torch.autograd.gradcheck(of_gaussians, (*mu, *var))
    assert torch.autograd.gradcheck(of_sphere, (*mu, *var))
