"""The von Mises-Fisher normaliser and mean resultant length, correct in any dimension.

The density of a von Mises-Fisher distribution on the unit sphere of R^D is ``C_D(κ) exp(κ μ·z)`` with

    log C_D(κ) = (D/2−1) log κ − (D/2) log 2π − log I_{D/2−1}(κ),      A_D(κ) = I_{D/2}(κ) / I_{D/2−1}(κ) = ‖E z‖.

Both are smooth functions of κ² (``I_v(κ)/κ^v`` is even), so that is what is computed and differentiated here:
κ = 0 is an ordinary point, and a norm ‖κ₁μ₁+κ₂μ₂‖ need not be square-rooted before its gradient is taken.
The Bessel functions come from the logarithm of Debye's expansion (Abramowitz & Stegun 9.7.7) at large orders; small
orders start at a large one and recur downward on ratios, which is stable.

The inverse of A_D is κ = R G_D(R²)/(1−R²) with a G_D that is smooth on [0, 1] and nearly constant (Sra 2012 takes
D − R²), so a few Chebyshev coefficients a dimension, found once, hold it to the last digits.

All arithmetic is in float64, whatever the input; the result has the input's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from doubtless.errors import InputError

__all__ = [
    "inverse_concentration",
    "inverse_mean_resultant_length",
    "log_normalizer",
    "log_normalizer_of_square",
    "mean_resultant_length",
    "resultant_over_concentration",
]

# log Σ_k u_k(p) v^−k = Σ_k v^−k Σ_j c_kj p^(k+2j): row k−1 holds c_k0, c_k1, … for k = 1 … 5.
LOG_DEBYE = torch.tensor(
    [
        [1 / 8, -5 / 24, 0, 0, 0, 0],
        [1 / 16, -3 / 8, 5 / 16, 0, 0, 0],
        [25 / 384, -531 / 640, 221 / 128, -1105 / 1152, 0, 0],
        [13 / 128, -71 / 32, 531 / 64, -339 / 32, 565 / 128, 0],
        [1073 / 5120, -50049 / 7168, 186821 / 4608, -44899 / 512, 82825 / 1024, -82825 / 3072],
    ],
    dtype=torch.float64,
)
SMALLEST_DEBYE_ORDER = 32  # the first neglected term is at most 0.04 / 32^6 = 4e-11
LARGEST_CONCENTRATION = 1e100  # stands for +inf: its square is still a number, and A_D is 1 to the last bit
CPU_BLOCK = 2**16  # values worked on at a time: every intermediate of a block stays in the cache
CHEBYSHEV_NODES = 64  # D = 2 needs them all; from D = 16 on the last two thirds are nothing
CHEBYSHEV_ROWS = {"cpu": 2**13, "cuda": 2**19}  # values worked on at a time, each with all its polynomials
NEWTON_STEPS = 4  # Sra's start is a few per cent off: three steps reach the last bits, the fourth is margin


def log_normalizer(dim: int, concentration: Tensor) -> Tensor:
    """``log C_D(κ)`` of the von Mises-Fisher density on the unit sphere of R^dim, any shape, smooth at κ = 0.

    >>> log_normalizer(3, torch.tensor([0.0, 2.0]))  # −log 4π, and log(κ / 4π sinh κ)
    tensor([-2.5310, -3.1262])
    """
    _check_dim(dim)
    kappa = concentration.double().clamp(max=LARGEST_CONCENTRATION)
    return _log_normalizer(dim, kappa * kappa).to(concentration.dtype)


def log_normalizer_of_square(dim: int, squared_concentration: Tensor) -> Tensor:
    """``log C_D(√s)`` for ``s = κ²``: the form to use when κ is a norm, since the gradient at 0 is finite."""
    _check_dim(dim)
    return _log_normalizer(dim, squared_concentration.double()).to(squared_concentration.dtype)


def mean_resultant_length(dim: int, concentration: Tensor) -> Tensor:
    """``A_D(κ) = ‖E z‖`` of a von Mises-Fisher distribution, in [0, 1); 1 at κ = inf.

    >>> mean_resultant_length(3, torch.tensor([0.0, 2.0]))  # coth κ − 1/κ
    tensor([0.0000, 0.5373])
    """
    _check_dim(dim)
    kappa = concentration.double().clamp(max=LARGEST_CONCENTRATION)
    return (kappa * _ratio(dim, kappa * kappa)).to(concentration.dtype)


def resultant_over_concentration(dim: int, concentration: Tensor) -> Tensor:
    """``A_D(κ)/κ``, the variance across the mean direction; 1/D at κ = 0.

    >>> resultant_over_concentration(3, torch.tensor([0.0, 2.0]))
    tensor([0.3333, 0.2687])
    """
    _check_dim(dim)
    kappa = concentration.double().clamp(max=LARGEST_CONCENTRATION)
    return _ratio(dim, kappa * kappa).to(concentration.dtype)


def inverse_mean_resultant_length(dim: int, resultant: Tensor) -> Tensor:
    """The concentration κ with ``A_D(κ) = R``, to 1e-10 of itself.

    R = 0 (or below) gives 0; R = 1 (or above) gives inf, with gradient 0.

    >>> inverse_mean_resultant_length(3, torch.tensor([0.0, 0.5, 1.0]))
    tensor([0.0000, 1.7968,    inf])
    """
    _check_dim(dim)
    kappa: Tensor = _InverseResultant.apply(resultant.double(), dim)
    return kappa.to(resultant.dtype)


@torch.no_grad()
def inverse_concentration(dim: int, resultant: Tensor, complement: Tensor) -> Tensor:
    """1/κ with ``A_D(κ) = R``, from R in [0, 1] and 1 − R, both float64: neither end loses digits. No gradient.

    >>> inverse_concentration(3, torch.ones(1).double(), torch.tensor([1e-30]).double())  # R rounds to 1
    tensor([1.0000e-30], dtype=torch.float64)
    """
    _check_dim(dim)
    return complement * (1 + resultant) / (resultant * _inverse_scale(dim, resultant))


def _check_dim(dim: int) -> None:
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 2:
        raise InputError(
            f"The dimension of a sphere's space must be a whole number of at least 2, got {dim!r}."
        )


def _log_normalizer(dim: int, squared: Tensor) -> Tensor:
    result: Tensor = _LogNormalizer.apply(squared, dim)
    return result


def _ratio(dim: int, squared: Tensor) -> Tensor:
    result: Tensor = _Ratio.apply(squared, dim)
    return result


class _LogNormalizer(torch.autograd.Function):
    """``log C_D(√s)``, float64; its derivative in s is ``−½ A_D(κ)/κ``."""

    @staticmethod
    def forward(ctx: Any, squared: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(squared)
        ctx.dim = dim
        return (
            _in_blocks(_scaled_log_bessel, dim / 2 - 1, squared).add_(dim / 2 * math.log(2 * math.pi)).neg_()
        )

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (squared,) = ctx.saved_tensors
        return -0.5 * grads[0] * _ratio(ctx.dim, squared), None


class _Ratio(torch.autograd.Function):
    """``Q_D(s) = A_D(κ)/κ``, float64; ``dQ_D/ds = ½ Q_D (Q_{D+2} − Q_D)``, so it is differentiable without end."""

    @staticmethod
    def forward(ctx: Any, squared: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(squared)
        ctx.dim = dim
        return _in_blocks(_bessel_ratio, dim / 2 - 1, squared)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (squared,) = ctx.saved_tensors
        ratio, next_ratio = _ratio(ctx.dim, squared), _ratio(ctx.dim + 2, squared)
        return 0.5 * grads[0] * ratio * (next_ratio - ratio), None


class _InverseResultant(torch.autograd.Function):
    """κ with ``A_D(κ) = R``, float64: ``R G(R²)/(1−R²)``."""

    @staticmethod
    def forward(ctx: Any, resultant: Tensor, dim: int) -> Tensor:
        inside = resultant.clamp(0, 1)
        scale = _inverse_scale(dim, inside)
        room = (1 - inside) * (1 + inside)
        if ctx.needs_input_grad[0]:
            slope = _inverse_scale(dim, inside, slope=True)
            derivative = (scale * (1 + inside * inside) / room + inside * slope) / room
            ctx.save_for_backward(torch.where(resultant >= 1, 0, derivative))
        return inside * scale / room  # R = 1 divides by 0: inf

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (derivative,) = ctx.saved_tensors
        return grads[0] * derivative, None


def _inverse_scale(dim: int, resultant: Tensor, *, slope: bool = False) -> Tensor:
    """``G = κ(1−R²)/R`` for R in [0, 1], or dG/dR: ``Σ_k c_k T_k(2R²−1)``, where ``T_k = cos 2k·arccos R``."""
    device = resultant.device
    frequencies, coefficients = _inverse_table(dim, device)

    def evaluate(block: Tensor) -> Tensor:
        angle = block.acos().unsqueeze(-1)
        if slope:
            return (angle * frequencies).sin_().matmul(coefficients * frequencies) / angle.squeeze(-1).sin()
        return (angle * frequencies).cos_().matmul(coefficients)

    rows = CHEBYSHEV_ROWS.get(device.type, CHEBYSHEV_ROWS["cpu"])
    if resultant.numel() <= rows:
        return evaluate(resultant)
    blocks = resultant.reshape(-1).split(rows)
    return torch.cat([evaluate(block) for block in blocks]).view(resultant.shape)


@lru_cache(maxsize=256)
@torch.inference_mode(False)  # the table outlives the call, whatever mode that is in
@torch.no_grad()
def _inverse_table(dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """2k and c_k, (K,) each, of ``G(R²) = Σ_k c_k T_k(2R²−1)``, from its values at the Chebyshev nodes."""
    index = torch.arange(CHEBYSHEV_NODES, dtype=torch.float64)
    angle = (index + 0.5) * (math.pi / 2 / CHEBYSHEV_NODES)  # arccos R
    resultant, complement = angle.cos(), 2 * (angle / 2).sin().square()
    kappa = _solve(dim, resultant, complement)
    values = kappa * complement * (1 + resultant) / resultant  # (K,)
    coefficients = torch.cos(2 * index.unsqueeze(1) * angle) @ values * (2 / CHEBYSHEV_NODES)
    coefficients[0] /= 2
    count = int((coefficients.abs() > 1e-14 * coefficients[0]).nonzero().max()) + 1
    return (2 * index[:count]).to(device), coefficients[:count].to(device)


def _solve(dim: int, resultant: Tensor, complement: Tensor) -> Tensor:
    """κ with ``A_D(κ) = R`` for R and 1 − R inside (0, 1), by Newton's method."""
    kappa = resultant * (dim - resultant * resultant) / (complement * (1 + resultant))  # Sra 2012, eq. 4
    for _ in range(NEWTON_STEPS):
        rest, slope = _complement_and_slope(dim / 2 - 1, kappa)
        from_below = kappa * _bessel_ratio(dim / 2 - 1, kappa * kappa) - resultant
        # Near R = 1 the difference of the complements keeps the digits that A_D − R loses.
        excess = torch.where(resultant < 0.5, from_below, complement - rest)
        kappa = (kappa - excess / slope).clamp_(min=0)
    return kappa


def _in_blocks(function: Callable[[float, Tensor], Tensor], order: float, squared: Tensor) -> Tensor:
    if squared.device.type != "cpu" or squared.numel() <= CPU_BLOCK:
        return function(order, squared)
    blocks = squared.reshape(-1).split(CPU_BLOCK)
    return torch.cat([function(order, block) for block in blocks]).view(squared.shape)


def _start_order(order: float) -> tuple[float, int]:
    """An order large enough for Debye's expansion, and how many steps down lead back to ``order``."""
    steps = max(0, math.ceil(SMALLEST_DEBYE_ORDER - order))
    return order + steps, steps


def _debye_series(order: float, p: Tensor, *, euler: int = 0) -> Tensor:
    """``(p d/dp)^euler Σ_k v^−k Σ_j c_kj p^(k+2j)`` by Horner's rule; ``euler`` 0 is the series itself."""
    rows, columns = LOG_DEBYE.shape
    coefficients = [0.0] * (3 * rows + 1)  # of p^0 … p^15, the order folded in
    for k, row in enumerate(LOG_DEBYE.tolist(), start=1):
        for j in range(min(columns, k + 1)):
            power = k + 2 * j
            coefficients[power] += row[j] * order**-k * float(power) ** euler
    total = torch.full_like(p, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total.mul_(p).add_(coefficient)
    return total


def _scaled_log_bessel(order: float, squared: Tensor) -> Tensor:
    """``log I_v(x) − v log x`` for x² given."""
    start, steps = _start_order(order)
    root = (squared + start * start).sqrt_()
    total = root.log().mul_(-0.5).add_(_debye_series(start, start / root)).add_(root)
    scale = root + start
    total.sub_(scale.log().mul_(order)).sub_(0.5 * math.log(2 * math.pi))
    if steps:
        # log I_{v−1} − (v−1) log x = log I_v − v log x + log(2v + x² Q_v); the scale keeps the product a number.
        ratio, product = _debye_ratio(start, squared), torch.ones_like(squared)
        for step in range(steps):
            denominator = squared.mul(ratio).add_(2 * (start - step))
            product.mul_(denominator).div_(scale)
            ratio = denominator.reciprocal_()
        total.add_(product.log_())
    return total


def _debye_ratio(order: float, squared: Tensor) -> Tensor:
    """``I_{v+1}(x) / (x I_v(x))`` for a large order: the derivative of Debye's expansion."""
    root = (squared + order * order).sqrt_()
    return 1 / (root + order) - (0.5 + _debye_series(order, order / root, euler=1)) / (root * root)


def _bessel_ratio(order: float, squared: Tensor) -> Tensor:
    """``I_{v+1}(x) / (x I_v(x))`` for x² given: 1/(2v+2) at 0."""
    start, steps = _start_order(order)
    ratio = _debye_ratio(start, squared)
    for step in range(steps):
        ratio = squared.mul(ratio).add_(2 * (start - step)).reciprocal_()
    return ratio


def _complement_and_slope(order: float, x: Tensor) -> tuple[Tensor, Tensor]:
    """``1 − r`` and ``dr/dx`` of ``r = I_{v+1}(x)/I_v(x)``, both with small *relative* error, also for large x."""
    start, steps = _start_order(order)
    squared = x * x
    root = (squared + start * start).sqrt_()
    p, inverse = start / root, 1 / root
    outside = 0.5 + _debye_series(start, p, euler=1)
    curvature = _debye_series(start, p, euler=2)
    along = (x * inverse).square()  # κ²/(v²+κ²); p² is the other part of 1
    complement = (start + start**2 / (root + x)) / (start + root) + x * inverse**2 * outside
    slope = p / (start + root) + inverse**2 * ((along - p * p) * outside + along * curvature)
    ratio = _debye_ratio(start, squared)
    for step in range(steps):
        twice_order = 2 * (start - step)
        ratio = 1 / (twice_order + squared * ratio)
        complement = (twice_order - x * complement) * ratio
        slope = (twice_order - squared * slope) * ratio * ratio
    return complement, slope
