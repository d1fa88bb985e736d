"""E[z/‖z‖] against mpmath, brute-force integration over space, and samples."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.sphere import (
    debiased_resultant,
    mean_direction,
    mean_resultant_length,
    projected_gaussian_mean,
)
from doubtless.sphere.projected_gaussian import NOTHING, _first_nodes, _Gaussian, _nodes


def isotropic_resultant(dim: int, ratio: float) -> mpmath.mpf:
    """R for variance 1 in every direction and ‖m‖ = ratio: a confluent hypergeometric function."""
    half = mpmath.mpf(dim) / 2
    ratio = mpmath.mpf(ratio)
    front = mpmath.gamma(half + mpmath.mpf(1) / 2) / mpmath.gamma(half + 1) * ratio / mpmath.sqrt(2)
    return front * mpmath.hyp1f1(mpmath.mpf(1) / 2, half + 1, -(ratio**2) / 2)


@pytest.mark.parametrize("dim", [1, 2, 3, 8, 16, 128, 512, 2048])
@pytest.mark.parametrize("relative", [0.01, 0.3, 1.0, 5.0, 100.0, 1e5])
def test_equal_variances_have_a_closed_form(dim: int, relative: float) -> None:
    direction = torch.randn(dim, generator=torch.Generator().manual_seed(dim), dtype=torch.float64)
    direction /= direction.norm()
    with mpmath.workdps(60):
        ratio = relative * math.sqrt(dim)
        expected = isotropic_resultant(dim, ratio)
        length, complement = float(expected), float(1 - expected)
    found = mean_direction(
        0.3 * ratio * direction.unsqueeze(0), torch.full((1, 1), 0.09, dtype=torch.float64)
    )
    torch.testing.assert_close(found.mean[0], length * direction, rtol=1e-11, atol=1e-14)
    assert float(found.resultant[0]) == pytest.approx(length, rel=1e-12)
    assert float(found.complement[0]) == pytest.approx(complement, rel=3e-7, abs=1e-50)


def integrated_over_space(m: np.ndarray, v: np.ndarray) -> np.ndarray:
    """E[z/‖z‖] in three dimensions, over radius, polar angle and azimuth."""
    cosine, cosine_weight = np.polynomial.legendre.leggauss(80)
    azimuth = (np.arange(160) + 0.5) * 2 * np.pi / 160
    node, node_weight = np.polynomial.legendre.leggauss(160)
    end = np.sqrt((m**2).sum()) + 9 * np.sqrt(v.max())
    radius, radius_weight = (node + 1) * end / 2, node_weight * end / 2
    sine = np.sqrt(1 - cosine**2)[:, None]
    unit = np.stack(
        [sine * np.cos(azimuth), sine * np.sin(azimuth), np.broadcast_to(cosine[:, None], (80, 160))], -1
    )
    exponent = -0.5 * ((radius[:, None, None, None] * unit - m) ** 2 / v).sum(-1)  # (radius, polar, azimuth)
    density = np.exp(exponent) / np.sqrt((2 * np.pi) ** 3 * v.prod())
    shell = np.einsum("r,rpa->pa", radius_weight * radius**2, density)
    return np.einsum("p,pa,pac->c", cosine_weight * 2 * np.pi / 160, shell, unit)


@pytest.mark.parametrize(
    ("m", "v"),
    [
        ([1.0, -0.5, 0.3], [0.4, 1.0, 0.2]),
        ([0.1, 0.0, 0.2], [1.0, 0.3, 0.5]),
        ([2.0, 1.0, 0.0], [0.3, 0.3, 2.0]),
    ],
)
def test_unequal_variances_against_integration_over_space(m: list[float], v: list[float]) -> None:
    expected = integrated_over_space(np.array(m), np.array(v))
    found = projected_gaussian_mean(
        torch.tensor([m], dtype=torch.float64), torch.tensor([v], dtype=torch.float64)
    )
    np.testing.assert_allclose(found[0].numpy(), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dim", [2, 4, 20])
@pytest.mark.parametrize("ratio", [1e-2, 1e-6, 1e-12])
def test_one_large_variance_among_tiny_ones(dim: int, ratio: float) -> None:
    """The integrand then stays level over many orders of magnitude of t."""
    m = [math.sqrt(ratio) * (k + 1) for k in range(dim)]
    v = [1.0] + [ratio] * (dim - 1)

    def integrand(s: mpmath.mpf) -> mpmath.mpf:  # t = eˢ, for the second coordinate
        t2 = mpmath.exp(2 * s)
        exponent = sum(
            mpmath.log(1 + 2 * t2 * b) / 2 + t2 * a * a / (1 + 2 * t2 * b) for a, b in zip(m, v, strict=True)
        )
        return m[1] / (1 + 2 * t2 * v[1]) * mpmath.exp(s - exponent)

    expected = 2 / mpmath.sqrt(mpmath.pi) * mpmath.quad(integrand, list(range(-30, 31, 3)))
    found = projected_gaussian_mean(
        torch.tensor([m], dtype=torch.float64), torch.tensor([v], dtype=torch.float64)
    )
    assert float(found[0, 1]) == pytest.approx(float(expected), rel=1e-10)


def a_problem(dim: int, relative: float = 1.0, rows: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(dim)
    location = relative * torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    return location, torch.exp(torch.randn(rows, dim, generator=generator, dtype=torch.float64))


@pytest.mark.parametrize("dim", [3, 16, 128, 512, 2048])
def test_unequal_variances_against_samples(dim: int) -> None:
    location, variance = (tensor.float() for tensor in a_problem(dim))
    generator = torch.Generator().manual_seed(7)
    draws, total = 100_000 if dim < 2048 else 30_000, torch.zeros(dim, dtype=torch.float64)
    for _ in range(draws // 5000):
        z = location + variance.sqrt() * torch.randn(5000, dim, generator=generator)
        total += torch.nn.functional.normalize(z).double().sum(0)
    mean = projected_gaussian_mean(location, variance)[0].double()
    # ‖error‖² of a mean of unit vectors is (1 − R²)/draws on average; nine times that is three standard
    # deviations where one direction has it all.
    error = (total / draws - mean).square().sum() * draws / (1 - mean.square().sum())
    assert error < 9
    length = debiased_resultant((total / draws).norm(), draws)
    assert float(length) == pytest.approx(float(mean.norm()), abs=5e-3)


@pytest.mark.parametrize(("dim", "tolerance"), [(128, 5e-3), (512, 5e-4), (2048, 5e-5)])
@pytest.mark.parametrize("relative", [0.1, 1.0, 5.0])
def test_series_is_near_the_quadrature(dim: int, tolerance: float, relative: float) -> None:
    location, variance = a_problem(dim, relative, rows=20)
    exact = mean_direction(location, variance)
    series = mean_direction(location, variance, method="series")
    assert ((series.mean - exact.mean).norm(dim=1) / exact.resultant).max() < tolerance
    equal = torch.full_like(variance, 0.7)
    exact = projected_gaussian_mean(location, equal)
    series_mean = projected_gaussian_mean(location, equal, method="series")
    assert ((series_mean - exact).norm(dim=1) / exact.norm(dim=1)).max() < 1e-4


@pytest.mark.parametrize("dim", [1, 2, 3, 40])
@pytest.mark.parametrize("method", ["quadrature", "series"])
def test_no_variance_gives_the_direction_and_no_location_gives_zero(dim: int, method: str) -> None:
    location = torch.randn(3, dim, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    certain = mean_direction(location, torch.zeros_like(location), method=method)
    torch.testing.assert_close(certain.mean, torch.nn.functional.normalize(location), rtol=1e-13, atol=1e-13)
    assert certain.complement.count_nonzero() == 0
    lost = mean_direction(torch.zeros_like(location), torch.ones_like(location), method=method)
    assert lost.mean.count_nonzero() == 0
    assert torch.equal(lost.complement, torch.ones(3, dtype=torch.float64))
    nothing = mean_direction(torch.zeros_like(location), torch.zeros_like(location), method=method)
    assert nothing.mean.count_nonzero() == 0


@pytest.mark.parametrize("method", ["quadrature", "series"])
@pytest.mark.parametrize("scale", [1e-150, 1e-15, 1e15, 1e150])
def test_scale_does_not_matter(scale: float, method: str) -> None:
    location, variance = a_problem(20, rows=4)
    expected = mean_direction(location, variance, method=method)
    found = mean_direction(scale * location, scale * (scale * variance), method=method)
    torch.testing.assert_close(found.mean, expected.mean, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(found.complement, expected.complement, rtol=1e-9, atol=0)


def test_float32_keeps_its_type_and_float64_accuracy() -> None:
    location, variance = (tensor.float() for tensor in a_problem(64, 3.0, rows=5))
    found = projected_gaussian_mean(location, variance)
    assert found.dtype == torch.float32
    exact = projected_gaussian_mean(location.double(), variance.double())
    assert torch.equal(found, exact.float())


@pytest.mark.parametrize("dim", [3, 700])
def test_rows_do_not_depend_on_each_other(dim: int) -> None:
    """Chunks of rows, and rows that need more nodes than their neighbours."""
    location, variance = a_problem(dim, rows=60)
    variance[7, 1:] *= 1e-9
    together = projected_gaussian_mean(location, variance)
    alone = torch.cat([projected_gaussian_mean(location[i : i + 1], variance[i : i + 1]) for i in range(60)])
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-14)
    assert projected_gaussian_mean(location[:0], variance[:0]).shape == (0, dim)


def test_complement_has_no_seam_where_its_formula_changes() -> None:
    """1 − R is proportional to a small variance, on both sides of 1e-7."""
    location = torch.randn(1, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    variances = torch.logspace(-30, -6, 200, dtype=torch.float64)
    found = mean_direction(location.expand(200, -1), variances.unsqueeze(1)).complement
    assert bool((found[1:] > found[:-1]).all())
    torch.testing.assert_close(found / variances, (found[0] / variances[0]).expand(200), rtol=1e-5, atol=0)


def test_variance_along_the_direction_does_not_hide_the_little_across_it() -> None:
    location = torch.tensor([[3.0, 0.0, 0.0]], dtype=torch.float64)
    variance = torch.tensor([[1e-9, 1e-25, 3e-25]], dtype=torch.float64)
    for scale in (1.0, 1e-140, 1e155):
        found = mean_direction(scale * location, scale * (scale * variance))
        torch.testing.assert_close(
            found.complement, torch.tensor([0.5 * 4e-25 / 9]).double(), rtol=1e-6, atol=0
        )
        torch.testing.assert_close(found.inverse_concentration, found.complement, rtol=1e-12, atol=0)


@pytest.mark.parametrize("dim", [1, 2, 3, 16, 512])
def test_inverse_concentration_is_that_of_the_same_mean(dim: int) -> None:
    location, variance = a_problem(dim, 2.0, rows=20)
    found = mean_direction(location, variance)
    concentration = found.inverse_concentration.reciprocal()
    resultant = torch.tanh(concentration) if dim == 1 else mean_resultant_length(dim, concentration)
    torch.testing.assert_close(resultant, found.resultant, rtol=1e-9, atol=0)


@pytest.mark.parametrize("dim", [2, 3, 8, 33, 64, 128, 512, 2048])
def test_alike_variances_need_the_first_nodes_only(dim: int) -> None:
    """Another pass costs a GPU another wait."""
    location, variance = a_problem(dim, 1e-3, rows=10)
    gaussian = _Gaussian.of(location, variance.pow(0.5))
    added, last = _nodes(gaussian, 0, _first_nodes(dim))
    assert bool((last <= NOTHING * added.norm(dim=1)).all())


def test_debiased_resultant_is_unbiased_in_its_square() -> None:
    location, variance = a_problem(8, 0.5)
    truth = mean_direction(location, variance).resultant[0]
    noise = torch.randn(20_000, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lengths = torch.nn.functional.normalize(location + variance.sqrt() * noise, dim=-1).mean(1).norm(dim=1)
    squared = (5 * lengths.square() - 1) / 4
    assert float(squared.mean()) == pytest.approx(float(truth**2), abs=5 * float(squared.std()) / 141)
    assert lengths.square().mean() > truth**2 + 0.1  # what it corrects
    torch.testing.assert_close(debiased_resultant(lengths, 5), squared.clamp_min(0).sqrt())


def test_wrong_input_gets_a_sentence() -> None:
    with pytest.raises(InputError, match="accepted: auto, quadrature, series"):
        projected_gaussian_mean(torch.ones(2, 3), torch.ones(2, 3), method="exact")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"\(2, 1\) or \(2, 3\), got \(3,\)"):
        projected_gaussian_mean(torch.ones(2, 3), torch.ones(3))
    with pytest.raises(InputError, match="at least 2, got 1"):
        debiased_resultant(torch.ones(2), 1)
