"""Normaliser, mean resultant length and its inverse against 40-digit arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from doubtless.errors import InputError
from doubtless.sphere import (
    inverse_mean_resultant_length,
    log_normalizer,
    log_normalizer_of_square,
    mean_resultant_length,
    resultant_over_concentration,
)
from doubtless.sphere.bessel import CHEBYSHEV_ROWS, CPU_BLOCK, LOG_DEBYE, inverse_concentration
from tests.reference.sphere_exact import by_quadrature, by_series, exact, exact_inverse

DIMS = [2, 3, 4, 5, 8, 31, 33, 64, 65, 66, 67, 128, 512, 2048, 10001, 65536]
CONCENTRATIONS = [0, 1e-9, 1e-3, 0.5, 1, 3, 10, 20, 60, 100, 300, 1e3, 1e4, 1e5, 1e6]
BOUND = {torch.float64: 1e-9, torch.float32: 1e-5}


def off(value: float, truth: mp.mpf) -> float:
    """Error relative to max(1, |value|)."""
    assert math.isfinite(value)
    return float(abs(mp.mpf(value) - truth) / max(1, abs(truth)))


def derivative(value: Tensor, variable: Tensor, *, create_graph: bool = False) -> Tensor:
    return torch.autograd.grad(value.sum(), variable, create_graph=create_graph)[0]


def test_the_two_oracles_agree() -> None:
    for dim, kappa in [(2, 0.5), (3, 1e6), (66, 20.0), (512, 400.0), (2048, 100.0), (65536, 3e4)]:
        for series, quadrature in zip(by_series(dim, kappa), by_quadrature(dim, kappa), strict=True):
            with mp.workdps(40):
                assert abs(series - quadrature) / abs(series) < 1e-20


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("dim", DIMS)
def test_values_and_gradients(dim: int, dtype: torch.dtype) -> None:
    kappa = torch.tensor(CONCENTRATIONS, dtype=dtype, requires_grad=True)
    log_c, resultant = log_normalizer(dim, kappa), mean_resultant_length(dim, kappa)
    log_c_slope, resultant_slope = derivative(log_c, kappa), derivative(resultant, kappa)
    over = resultant_over_concentration(dim, kappa)
    assert log_c.dtype == resultant.dtype == over.dtype == dtype
    for i, rounded in enumerate(kappa.tolist()):
        true_log_c, true_resultant, true_slope = exact(dim, rounded)
        true_over = true_resultant / rounded if rounded else mp.mpf(1) / dim
        assert off(log_c[i].item(), true_log_c) < BOUND[dtype], rounded
        assert off(log_c_slope[i].item(), -true_resultant) < BOUND[dtype], rounded
        assert off(resultant[i].item(), true_resultant) < BOUND[dtype], rounded
        assert off(resultant_slope[i].item(), true_slope) < BOUND[dtype], rounded
        assert off(over[i].item(), true_over) < BOUND[dtype], rounded


@settings(max_examples=60, deadline=None)
@given(dim=st.integers(2, 65536), log_kappa=st.floats(-6, 6))
def test_values_anywhere_in_the_range(dim: int, log_kappa: float) -> None:
    kappa = torch.tensor(10.0**log_kappa, dtype=torch.float64)
    true_log_c, true_resultant, _ = by_quadrature(dim, kappa.item())
    assert off(log_normalizer(dim, kappa).item(), true_log_c) < 1e-9
    assert off(mean_resultant_length(dim, kappa).item(), true_resultant) < 1e-9


@pytest.mark.parametrize("dim", [2, 3, 16, 66, 512, 65536])
def test_inverse_value_and_gradient(dim: int) -> None:
    kappas = torch.tensor([1e-6, 0.1, 1, 20, 400, 1e4, 1e6], dtype=torch.float64)
    resultant = mean_resultant_length(dim, kappas).requires_grad_()
    inverse = inverse_mean_resultant_length(dim, resultant)
    slope = derivative(inverse, resultant)
    for i, rounded in enumerate(resultant.tolist()):
        truth = exact_inverse(dim, rounded, kappas[i].item())
        assert off(inverse[i].item(), truth) < 1e-9
        assert off(slope[i].item(), 1 / exact(dim, truth)[2]) < 1e-9


@settings(max_examples=60, deadline=None)
@given(dim=st.one_of(st.integers(2, 20), st.integers(2, 65536)), log_kappa=st.floats(-6, 12))
def test_inverse_concentration_anywhere_in_the_range(dim: int, log_kappa: float) -> None:
    with mp.workdps(40):
        kappa = mp.mpf(10) ** log_kappa
        _, resultant, _ = by_quadrature(dim, kappa)
        both = torch.tensor([float(resultant), float(1 - resultant)], dtype=torch.float64)
    assert inverse_concentration(dim, both[0], both[1]).item() == pytest.approx(float(1 / kappa), rel=1e-10)


def test_inverse_concentration_where_the_resultant_rounds_to_one_or_is_almost_zero() -> None:
    for dim in (2, 3, 66, 2048):
        rest = torch.tensor([0.0, 1e-300, 1e-30, 1e-17], dtype=torch.float64)
        certain = inverse_concentration(dim, 1 - rest, rest)  # 1 − A_D = (D−1)/2κ
        torch.testing.assert_close(certain, 2 * rest / (dim - 1), rtol=1e-10, atol=0)
        faint = torch.tensor([0.0, 1e-300, 1e-30, 1e-17], dtype=torch.float64)
        torch.testing.assert_close(  # A_D = κ/D
            inverse_concentration(dim, faint, 1 - faint), 1 / (dim * faint), rtol=1e-10, atol=0
        )


@pytest.mark.parametrize("dim", [2, 3, 128, 2048])
def test_inverse_in_float32(dim: int) -> None:
    resultant = torch.tensor([0.001, 0.05, 0.5, 0.9, 0.999], dtype=torch.float32)
    inverse = inverse_mean_resultant_length(dim, resultant)
    assert inverse.dtype == torch.float32
    for value, rounded in zip(inverse.tolist(), resultant.tolist(), strict=True):
        assert off(value, exact_inverse(dim, rounded, value)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("dim", [2, 3, 512, 65536])
def test_inverse_at_its_ends(dim: int, dtype: torch.dtype) -> None:
    resultant = torch.tensor([-1e-7, 0.0, 1.0, 1 + 1e-6], dtype=dtype, requires_grad=True)
    inverse = inverse_mean_resultant_length(dim, resultant)
    assert inverse.tolist() == [0, 0, math.inf, math.inf]
    slope = derivative(inverse, resultant)
    torch.testing.assert_close(slope, torch.tensor([dim, dim, 0, 0], dtype=dtype))
    largest_below_one = torch.nextafter(torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype))
    assert inverse_mean_resultant_length(dim, largest_below_one).isfinite()


def test_infinite_concentration_is_the_limit() -> None:
    kappa = torch.tensor(math.inf, dtype=torch.float64, requires_grad=True)
    for dim in (2, 512):
        assert mean_resultant_length(dim, kappa).item() == 1
        assert derivative(mean_resultant_length(dim, kappa), kappa).item() == 0
        assert log_normalizer(dim, kappa).item() < -1e99


@pytest.mark.parametrize("dim", [2, 3, 17, 70, 512])
def test_autograd_in_first_and_second_order(dim: int) -> None:
    kappa = torch.tensor([[0.0, 0.3], [2.0, 30.0]], dtype=torch.float64, requires_grad=True)
    for function in (
        log_normalizer,
        log_normalizer_of_square,
        mean_resultant_length,
        resultant_over_concentration,
    ):
        assert torch.autograd.gradcheck(lambda x, f=function: f(dim, x), kappa)
        assert torch.autograd.gradgradcheck(lambda x, f=function: f(dim, x), kappa)
    resultant = torch.tensor([0.05, 0.3, 0.8], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda r: inverse_mean_resultant_length(dim, r), resultant)


def test_square_form_is_the_same_function_with_a_finite_gradient_at_zero() -> None:
    squared = torch.tensor([0.0, 4.0, 1e4], dtype=torch.float64, requires_grad=True)
    value = log_normalizer_of_square(64, squared)
    torch.testing.assert_close(value, log_normalizer(64, squared.sqrt()), rtol=1e-15, atol=0)
    slope = derivative(value, squared)
    assert slope[0].item() == pytest.approx(-0.5 / 64, rel=1e-12)


def test_resultant_grows_and_stays_below_one() -> None:
    kappa = torch.logspace(-3, 6, 500, dtype=torch.float64)
    for dim in (2, 64, 67, 2048):
        resultant = mean_resultant_length(dim, kappa)
        assert (resultant.diff() > 0).all()
        assert (resultant < 1).all()


@pytest.mark.parametrize("dim", [1, 0, -3, 2.0, True])
def test_dimension_must_be_a_whole_number_from_two(dim: int) -> None:
    with pytest.raises(InputError, match="at least 2"):
        log_normalizer(dim, torch.ones(1))


def test_empty_and_scalar_shapes() -> None:
    assert log_normalizer(5, torch.ones(0, 3)).shape == (0, 3)
    assert mean_resultant_length(5, torch.ones(())).shape == ()
    assert inverse_mean_resultant_length(5, torch.ones(0)).shape == (0,)


def test_long_inputs_are_worked_on_in_blocks_without_a_seam() -> None:
    kappa = torch.linspace(0, 900, 2 * CPU_BLOCK + 6, dtype=torch.float64).view(2, -1).T.requires_grad_()
    for function in (log_normalizer, mean_resultant_length):
        value = function(40, kappa)
        slope = derivative(value, kappa)
        for row in (0, CPU_BLOCK // 2, CPU_BLOCK // 2 + 1, CPU_BLOCK + 2):
            short = kappa[row].detach().requires_grad_()
            torch.testing.assert_close(value[row], function(40, short), rtol=1e-14, atol=0)
            torch.testing.assert_close(slope[row], derivative(function(40, short), short), rtol=1e-13, atol=0)


def test_long_inputs_are_inverted_in_blocks_without_a_seam() -> None:
    rows = CHEBYSHEV_ROWS["cpu"]
    resultant = torch.linspace(0.01, 0.99, 2 * rows + 6, dtype=torch.float64).view(2, -1).T.requires_grad_()
    inverse = inverse_mean_resultant_length(12, resultant)
    slope = derivative(inverse, resultant)
    assert inverse.shape == resultant.shape
    for row in (0, rows // 2, rows // 2 + 1, rows + 2):
        short = resultant[row].detach().requires_grad_()
        alone = inverse_mean_resultant_length(12, short)
        torch.testing.assert_close(inverse[row], alone, rtol=1e-13, atol=0)
        torch.testing.assert_close(slope[row], derivative(alone, short), rtol=1e-12, atol=0)


def debye_polynomials(count: int) -> list[list[Fraction]]:
    """u_0 … u_count by u_{k+1} = ½p²(1−p²)u_k' + ⅛∫(1−5p²)u_k (Abramowitz & Stegun 9.3.10), lowest power first."""
    polynomials = [[Fraction(1)]]
    for _ in range(count):
        last = polynomials[-1]
        following = [Fraction(0)] * (len(last) + 3)
        for power, coefficient in enumerate(last):
            following[power + 1] += coefficient * power / 2 + coefficient / (8 * (power + 1))
            following[power + 3] -= coefficient * power / 2 + 5 * coefficient / (8 * (power + 3))
        polynomials.append(following)
    return polynomials


def test_table_is_the_logarithm_of_debye_s_series() -> None:
    # If S = Σ u_k v^−k and log S = Σ d_k v^−k, then k u_k = Σ_j j d_j u_{k−j}.
    count = len(LOG_DEBYE)
    debye = debye_polynomials(count)
    log_debye: list[list[Fraction]] = [[]]
    for k in range(1, count + 1):
        total = [k * c for c in debye[k]]
        for j in range(1, k):
            for a, left in enumerate(log_debye[j]):
                for b, right in enumerate(debye[k - j]):
                    total[a + b] -= j * left * right
        log_debye.append([c / k for c in total])
        expected = [float(log_debye[k][k + 2 * j]) for j in range(k + 1)]
        assert LOG_DEBYE[k - 1, : k + 1].tolist() == pytest.approx(expected, rel=1e-15)
        assert not LOG_DEBYE[k - 1, k + 1 :].any()


@pytest.mark.parametrize(
    ("dim", "kappa", "published", "nats"),
    [
        (512, 400.0, 868 - 0.0002662 * 400 - 0.0009685 * 400**2, 27),
        (128, 200.0, 127 - 0.01909 * 200 - 0.003355 * 200**2, 41),
    ],
)
def test_the_published_quadratic_is_off_by_dozens_of_nats(
    dim: int, kappa: float, published: float, nats: float
) -> None:
    ours = log_normalizer(dim, torch.tensor(kappa, dtype=torch.float64)).item()
    assert off(ours, exact(dim, kappa)[0]) < 1e-12
    assert abs(published - ours) == pytest.approx(nats, abs=1)
