"""Mean and covariance of a von Mises-Fisher distribution as three numbers, exact at every concentration.

With ``u ~ vMF(μ, κ)`` on the unit sphere of R^D, ``A = A_D(κ)``:

    E u = A μ,      Cov u = α (I − μμᵀ) + ν μμᵀ,      α = A/κ across the mean direction, ν = dA/dκ along it.

Written as ``ν = α + β``, ``β = A_D (A_{D+2} − A_D)``, the variance along the mean loses all its digits at
large κ: there it is (D−1)/(2κ²), the difference of two numbers near 1/κ. Here it is the derivative of Debye's
expansion, brought down to small orders by ``dA_{v−1}/dκ = (2v − κ² dA_v/dκ) Q_{v−1}²``, a sum of positive
terms in effect, so its *relative* error stays small.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from doubtless.sphere.bessel import LARGEST_CONCENTRATION, LOG_DEBYE, _check_dim, _start_order, log_normalizer

__all__ = ["SphereMoments", "kl_to_uniform", "sphere_moments"]


class SphereMoments(NamedTuple):
    """Of a von Mises-Fisher distribution, float64, each of the shape of the concentrations."""

    resultant: Tensor
    """A = ‖E u‖."""
    across: Tensor
    """α: variance in every direction across the mean; 1/D at κ = 0."""
    along: Tensor
    """ν: variance along the mean direction; 1/D at κ = 0."""


def sphere_moments(dim: int, concentration: Tensor) -> SphereMoments:
    """Resultant, variance across and variance along the mean direction, differentiable once.

    >>> sphere_moments(3, torch.tensor([0.0])).along
    tensor([0.3333], dtype=torch.float64)
    """
    _check_dim(dim)
    kappa = concentration.double().clamp(max=LARGEST_CONCENTRATION)
    return SphereMoments(*_Moments.apply(kappa, dim))


def kl_to_uniform(concentration: Tensor, moments: SphereMoments, *, dim: int) -> Tensor:
    """``KL(vMF(μ, κ) ‖ uniform) = κ A + log C_D(κ) − log C_D(0)``, float64, from moments that are known already.

    >>> kappa = torch.tensor([0.0])
    >>> kl_to_uniform(kappa, sphere_moments(3, kappa), dim=3)
    tensor([0.], dtype=torch.float64)
    """
    kappa = concentration.double().clamp(max=LARGEST_CONCENTRATION)
    result: Tensor = _KlToUniform.apply(kappa, moments.resultant.detach(), moments.along.detach(), dim)
    return result


class _Moments(torch.autograd.Function):
    """A, α and ν. Their derivatives: ν, β/κ and ``−2Aν − (D−1) β/κ``."""

    @staticmethod
    def forward(ctx: Any, kappa: Tensor, dim: int) -> tuple[Tensor, Tensor, Tensor]:
        squared = kappa * kappa
        start, steps = _start_order(dim / 2)
        ratio, along = _debye_ratio_and_slope(start, kappa)
        next_ratio = ratio
        for step in range(steps + 1):  # one step more than needed, for Q_{D+2} beside Q_D
            next_ratio, twice_order = ratio, 2 * (start - step)
            ratio = 1 / (twice_order + squared * ratio)
            along = (twice_order - squared * along) * ratio * ratio
        resultant = kappa * ratio
        if ctx.needs_input_grad[0]:
            # β/κ: each form where it keeps its digits
            turn = torch.where(kappa > dim, (along - ratio) / kappa, resultant * (next_ratio - ratio))
            ctx.save_for_backward(along, turn, -2 * resultant * along - (dim - 1) * turn)
        return resultant, ratio, along

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        of_resultant, of_across, of_along = ctx.saved_tensors
        return grads[0] * of_resultant + grads[1] * of_across + grads[2] * of_along, None


class _KlToUniform(torch.autograd.Function):
    """Its derivative in κ is ``κ ν``."""

    @staticmethod
    def forward(ctx: Any, kappa: Tensor, resultant: Tensor, along: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(kappa * along)
        return kappa * resultant + log_normalizer(dim, kappa) - _log_density_of_uniform(dim)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (slope,) = ctx.saved_tensors
        return grads[0] * slope, None, None, None


def _debye_ratio_and_slope(order: float, x: Tensor) -> tuple[Tensor, Tensor]:
    """``r/x`` and ``dr/dx`` of ``r = I_{v+1}(x)/I_v(x)`` at a large order."""
    powers, coefficients = _debye_table(order, x.device)
    root = torch.sqrt(x * x + order * order)
    p, inverse = order / root, 1 / root
    series = p.unsqueeze(-1).pow(powers) @ coefficients  # (..., 2): (p d/dp) of the series, once and twice
    outside, curvature = 0.5 + series[..., 0], series[..., 1]
    along = (x * inverse).square()
    slope = p / (order + root) + inverse**2 * ((along - p * p) * outside + along * curvature)
    return 1 / (root + order) - outside * inverse**2, slope


@lru_cache(maxsize=64)
def _log_density_of_uniform(dim: int) -> float:
    return float(log_normalizer(dim, torch.zeros((), dtype=torch.float64)))


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # the table outlives the call, whatever mode that is in
@torch.no_grad()
def _debye_table(order: float, device: torch.device) -> tuple[Tensor, Tensor]:
    """Powers of p (15,), and the coefficients (15, 2) of the first and second Euler derivative of the series."""
    rows, columns = LOG_DEBYE.shape
    powers = torch.arange(1, 3 * rows + 1, dtype=torch.float64)
    series = torch.zeros_like(powers)
    for k, row in enumerate(LOG_DEBYE.tolist(), start=1):
        for j in range(min(columns, k + 1)):
            series[k + 2 * j - 1] += row[j] * order**-k
    coefficients = torch.stack([powers * series, powers.square() * series], dim=1)
    return powers.to(device), coefficients.to(device)
