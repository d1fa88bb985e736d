"""The sampler's law against exact moments, and its derivatives against exact expectations."""

from __future__ import annotations

import math

import mpmath as mp
import pytest
import torch
from torch import Tensor

from doubtless.sphere import VonMisesFisher, mean_resultant_length
from doubtless.sphere.sampling import (
    _rate_by_quadrature,
    _rate_closed_form,
    cosine_rate,
    sample_around,
    sample_cosine,
)
from tests.reference.sphere_exact import exact

GRID = [
    (2, 0.0), (2, 0.5), (2, 50.0), (3, 3.0), (3, 1e5), (8, 5.0), (33, 40.0), (128, 50.0),
    (512, 20.0), (512, 400.0), (2048, 100.0), (65536, 3000.0),
]  # fmt: skip


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def standard_errors_off(samples: Tensor, truth: float) -> float:
    """How many standard errors the mean of (n,) lies from the truth."""
    return abs(samples.mean().item() - truth) / (samples.std().item() / math.sqrt(samples.numel()))


@pytest.mark.parametrize(("dim", "kappa"), GRID)
def test_first_two_moments_of_the_cosine(dim: int, kappa: float) -> None:
    cosine, sine = sample_cosine(dim, torch.full((40_000,), kappa, dtype=torch.float64), generator=seeded(1))
    _, resultant, variance = (float(x) for x in exact(dim, kappa))
    assert standard_errors_off(cosine, resultant) < 4
    assert standard_errors_off((cosine - resultant).square(), variance) < 4
    torch.testing.assert_close(cosine.square() + sine.square(), torch.ones_like(cosine))
    assert (sine >= 0).all()


@pytest.mark.parametrize(
    ("dim", "kappa", "count"), [(3, 4.0, 20_000), (512, 20.0, 2_000), (2048, 100.0, 500)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_mean_cosine_of_samples_is_the_mean_resultant_length(
    dim: int, kappa: float, count: int, dtype: torch.dtype
) -> None:
    direction = torch.randn(dim, dtype=dtype, generator=seeded(2))
    image = VonMisesFisher(direction / direction.norm(), torch.tensor(kappa, dtype=dtype))
    samples = image.rsample((count,), generator=seeded(3))
    assert samples.dtype == dtype
    torch.testing.assert_close(samples.norm(dim=-1), torch.ones(count, dtype=dtype))
    assert standard_errors_off((samples @ image.direction).double(), float(exact(dim, kappa)[1])) < 4
    # Across the mean direction the law is symmetric: any fixed direction there has mean 0 and variance A/κ.
    other = torch.randn(dim, dtype=dtype, generator=seeded(4))
    other = other - (other @ image.direction) * image.direction
    across = (samples @ (other / other.norm())).double()
    assert standard_errors_off(across, 0) < 4
    assert standard_errors_off(across.square(), float(exact(dim, kappa)[1]) / kappa) < 4


def test_law_of_the_cosine_in_three_dimensions() -> None:
    # F(w) = (e^κw − e^−κ) / (e^κ − e^−κ): Kolmogorov's distance stays below its 0.1 % quantile
    kappa, count = 3.0, 50_000
    cosine, _ = sample_cosine(3, torch.full((count,), kappa, dtype=torch.float64), generator=seeded(5))
    ordered = cosine.sort().values
    theory = (torch.exp(kappa * ordered) - math.exp(-kappa)) / (2 * math.sinh(kappa))
    empirical = torch.arange(1, count + 1, dtype=torch.float64) / count
    assert (theory - empirical).abs().max().item() < 1.95 / math.sqrt(count)


def test_same_generator_same_samples_and_rows_of_their_own() -> None:
    concentration = torch.tensor([[0.0, 1.0, 10.0], [100.0, 1e3, 1e6]])
    image = VonMisesFisher(torch.eye(5)[0], concentration)
    first, again = image.rsample((4,), generator=seeded(7)), image.rsample((4,), generator=seeded(7))
    assert first.shape == (4, 2, 3, 5)
    assert torch.equal(first, again)
    assert not torch.equal(first, image.rsample((4,), generator=seeded(8)))
    assert (first[:, 1, 2, 0] > 0.99).all()
    assert image.rsample(generator=seeded(7)).shape == (2, 3, 5)


def test_a_concentration_that_is_not_a_number_shows() -> None:
    kappa = torch.tensor([1.0, math.nan])
    samples = sample_around(torch.eye(4)[:2], kappa, generator=seeded(0))
    assert samples[0].isfinite().all()
    assert samples[1].isnan().all()


def exact_rate(dim: int, kappa: float, w: float) -> float:
    """(dw/dκ)/(1−w²) at fixed quantile, straight from dw/dκ = ∫_{−1}^w (A − v) p(v) dv / p(w)."""
    resultant = exact(dim, kappa)[1]
    half = mp.mpf(dim - 3) / 2

    def relative_density(v: mp.mpf) -> mp.mpf:
        return mp.exp(kappa * (v - w) + half * (mp.log1p(-v * v) - mp.log1p(-(mp.mpf(w) ** 2))))

    integral = mp.quad(lambda v: (resultant - v) * relative_density(v), mp.linspace(-1, w, 9))
    return float(integral / (1 - mp.mpf(w) ** 2))


@pytest.mark.parametrize(
    ("dim", "kappa", "cosines", "bound"),
    [
        (2, 0.7, [-0.99, 0.0, 0.6, 0.999], 1e-7),
        (3, 3.0, [-0.9, 0.1, 0.67, 0.95], 1e-8),
        (3, 0.0, [-0.9, 0.0, 0.5], 1e-8),
        (8, 30.0, [0.5, 0.89, 0.97], 1e-8),
        (31, 10.0, [-0.2, 0.3, 0.6], 1e-8),
        (63, 20.0, [-0.1, 0.3, 0.6], 1e-8),
        (64, 20.0, [-0.1, 0.3, 0.6], 1e-4),
        (64, 200.0, [0.8, 0.86, 0.9], 1e-4),
        (512, 20.0, [-0.05, 0.04, 0.13], 1e-6),
    ],
)
def test_rate_of_the_cosine(dim: int, kappa: float, cosines: list[float], bound: float) -> None:
    w = torch.tensor(cosines, dtype=torch.float64)
    rate = cosine_rate(dim, torch.full_like(w, kappa), w)
    truth = [exact_rate(dim, kappa, c) for c in cosines]
    torch.testing.assert_close(rate, torch.tensor(truth, dtype=torch.float64), rtol=bound, atol=0)


def test_rate_is_finite_at_the_poles_and_at_large_concentration() -> None:
    w = torch.tensor([-1.0, 1.0, 1 - 1e-12, 0.9999], dtype=torch.float64)
    for dim in (2, 3, 63, 64, 2048):
        for kappa in (0.0, 1.0, 1e4, 1e6):
            assert cosine_rate(dim, torch.full_like(w, kappa), w).isfinite().all()


def test_both_forms_of_the_rate_agree_where_they_meet() -> None:
    for dim, bound in [(64, 1e-4), (512, 1e-6)]:
        for ratio in (0.01, 0.1, 0.3, 1.0, 3.0, 10.0):
            kappa = torch.full((2000,), ratio * dim, dtype=torch.float64)
            cosine, _ = sample_cosine(dim, kappa, generator=seeded(10))
            closed, quadrature = (
                _rate_closed_form(dim, kappa, cosine),
                _rate_by_quadrature(dim, kappa, cosine),
            )
            torch.testing.assert_close(closed, quadrature, rtol=bound, atol=0)


def per_sample_gradient(dim: int, kappa: float, count: int, power: int) -> Tensor:
    """Gradient of w^power in κ for every sample, (count,)."""
    concentration = torch.full((count,), kappa, dtype=torch.float64, requires_grad=True)
    cosine, _ = sample_cosine(dim, concentration, generator=seeded(11))
    return torch.autograd.grad(cosine.pow(power).sum(), concentration)[0]


@pytest.mark.parametrize(
    ("dim", "kappa"), [(2, 2.0), (3, 3.0), (16, 8.0), (63, 100.0), (64, 10.0), (512, 20.0)]
)
def test_gradient_in_concentration_is_that_of_the_exact_expectation(dim: int, kappa: float) -> None:
    step = 1e-3 * kappa
    (_, below, _), (_, above, _) = exact(dim, kappa - step), exact(dim, kappa + step)
    # E w = A_D(κ) and E w² = 1 − (D−1) A_D(κ)/κ
    linear = float((above - below) / (2 * step))
    square = float(-(dim - 1) * (above / (kappa + step) - below / (kappa - step)) / (2 * step))
    assert standard_errors_off(per_sample_gradient(dim, kappa, 30_000, 1), linear) < 4
    assert standard_errors_off(per_sample_gradient(dim, kappa, 30_000, 2), square) < 4


@pytest.mark.parametrize(("dim", "kappa"), [(3, 3.0), (40, 12.0), (100, 30.0)])
def test_gradient_of_a_linear_function_through_rsample(dim: int, kappa: float) -> None:
    # f(z) = a·z has E f = A_D(κ) a·μ, with μ = e/‖e‖ and κ = ‖e‖ for an embedding e
    count = 20_000
    slope = torch.randn(dim, dtype=torch.float64, generator=seeded(12))
    embedding = torch.randn(dim, dtype=torch.float64, generator=seeded(13))
    embedding = kappa * embedding / embedding.norm()

    def expectation(e: Tensor) -> float:
        return (mean_resultant_length(dim, e.norm()) * (slope @ e) / e.norm()).item()

    rows = embedding.expand(count, dim).clone().requires_grad_()
    norm = rows.norm(dim=-1)
    samples = VonMisesFisher(rows / norm.unsqueeze(-1), norm).rsample(generator=seeded(14))
    gradients = torch.autograd.grad((samples @ slope).sum(), rows)[0]  # (count, dim)
    for coordinate in range(3):
        step = torch.zeros(dim, dtype=torch.float64)
        step[coordinate] = 1e-4
        difference = (expectation(embedding + step) - expectation(embedding - step)) / 2e-4
        assert standard_errors_off(gradients[:, coordinate], difference) < 4


def test_differentiating_the_proposal_alone_is_biased() -> None:
    dim, kappa = 3, torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    cosine, _ = sample_cosine(dim, kappa.detach().expand(200_000), generator=seeded(15))
    centre = 2 * kappa / (dim - 1 + torch.sqrt((dim - 1) ** 2 + 4 * kappa**2))
    t = ((cosine - centre) / (1 - centre * cosine)).detach()  # the accepted proposals
    naive = torch.autograd.grad(((centre + t) / (1 + centre * t)).mean(), kappa)[0].item()
    assert naive / float(exact(dim, 3.0)[2]) == pytest.approx(0.70, abs=0.01)


def published_cosine(dim: int, kappa: float, count: int) -> Tensor:
    """Ulrich's rejection with ``b = (D−1)/(4κ)``, the limit for κ ≫ D, its other constants exact."""
    n = dim - 1
    b, a = n / (4 * kappa), (n + 2 * kappa + math.hypot(2 * kappa, n)) / 4
    constant = 4 * a * b / (1 + b) - n * math.log(n)
    generator, half = seeded(16), torch.full((count,), n / 2, dtype=torch.float64)
    first, second = torch._standard_gamma(half, generator), torch._standard_gamma(half, generator)
    beta = first / (first + second)
    t = 2 * a * b / (1 - (1 - b) * beta)
    uniform = torch.rand(count, dtype=torch.float64, generator=generator)
    accepted = n * t.log() - t + constant >= uniform.log()
    return ((1 - (1 + b) * beta) / (1 - (1 - b) * beta))[accepted]


@pytest.mark.parametrize(
    ("dim", "kappa", "published", "right"), [(512, 20.0, -0.73, 0.039), (128, 50.0, 0.22, 0.345)]
)
def test_the_published_sampler_is_wrong_where_it_was_used(
    dim: int, kappa: float, published: float, right: float
) -> None:
    assert published_cosine(dim, kappa, 50_000).mean().item() == pytest.approx(published, abs=0.01)
    ours, _ = sample_cosine(dim, torch.full((20_000,), kappa, dtype=torch.float64), generator=seeded(17))
    assert ours.mean().item() == pytest.approx(right, abs=0.002)
