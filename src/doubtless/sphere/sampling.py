"""Samples of a von Mises-Fisher distribution with exact path derivatives.

A sample is ``wμ + √(1−w²) v`` with v uniform on the sphere across μ and w, the cosine to μ, of density
∝ ``exp(κw) (1−w²)^((D−3)/2)``. The cosine is drawn by the rejection scheme of Ulrich (1984) and Wood (1994).
With ``x = 2κ/(D−1+√((D−1)²+4κ²))`` and t a coordinate of a uniform point of the sphere, the scheme reads

    propose w = (x+t)/(1+xt),    accept with log-probability (D−1) [y/(1+y) − log(1+y)],  y = xt.

A rejection step has no derivative, and differentiating the proposal alone is biased. What is right is the
derivative of a sample that keeps its quantile: ``dw/dκ = −(∂F/∂κ)/p(w)``, F the distribution function of w
(Figurnov, Mohamed, Mnih 2018).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from doubtless.sphere.bessel import mean_resultant_length

__all__ = ["sample_around", "sample_cosine", "sample_uniform"]

PROPOSALS = 4  # a round: at least 65 % are accepted, so under 2 % of samples wait for another round
ROUNDS = 64
SMALL_BATCH = 2**13  # rows: up to here all proposals are drawn at once, without waiting to see who needs more
SURELY_ENOUGH = 32  # 0.35^32 = 3e-15
CLOSED_FORM_DIM = 64  # from here on the closed form of dw/dκ is right to 1e-4 (at 32: to 3e-4)
TAIL_DROP = 43.0  # exp(−43): where the quadrature of dw/dκ ends
QUADRATURE_CHUNK = 2**15

_nodes, _weights = np.polynomial.legendre.leggauss(64)
NODES = torch.from_numpy((_nodes + 1) / 2)  # Gauss-Legendre on [0, 1]
WEIGHTS = torch.from_numpy(_weights / 2)


def sample_uniform(
    shape: torch.Size,
    *,
    dtype: torch.dtype,
    device: torch.device,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Uniform points of the unit sphere, ``shape`` (..., dim)."""
    normal = torch.randn(shape, dtype=dtype, device=device, generator=generator)
    return normal / torch.linalg.vector_norm(normal, dim=-1, keepdim=True)


def sample_around(
    direction: Tensor, concentration: Tensor, *, generator: torch.Generator | None = None
) -> Tensor:
    """One von Mises-Fisher sample a row: (..., dim), (...) → (..., dim), differentiable in both arguments."""
    cosine, sine = sample_cosine(direction.shape[-1], concentration, generator=generator)  # (...)
    normal = torch.randn(direction.shape, dtype=direction.dtype, device=direction.device, generator=generator)
    across = normal - (normal * direction).sum(-1, keepdim=True) * direction
    across = across / torch.linalg.vector_norm(across, dim=-1, keepdim=True)
    return cosine.unsqueeze(-1).to(direction) * direction + sine.unsqueeze(-1).to(direction) * across


def sample_cosine(
    dim: int, concentration: Tensor, *, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the angle to the mean direction, one a concentration, float64, differentiable in it."""
    kappa = concentration.double()
    with torch.no_grad():
        cosine, sine = _rejection(dim, kappa.reshape(-1), generator)
    attached: tuple[Tensor, Tensor] = _AtFixedQuantile.apply(
        kappa, cosine.view_as(kappa), sine.view_as(kappa), dim
    )
    return attached


def _rejection(dim: int, kappa: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Draws (n,) until every row has an accepted proposal; a row that never gets one (κ is NaN) is NaN.

    A batch of a training step gets all its proposals at once, so that nothing waits for the device; a row stays
    without an accepted one with a probability of 3e-15 and keeps its first.
    """
    n = dim - 1
    root = torch.hypot(2 * kappa, torch.full_like(kappa, n))
    centre, one_minus_centre_squared = 2 * kappa / (n + root), 2 * n / (n + root)
    if kappa.numel() <= SMALL_BATCH:
        t, _ = _proposals(dim, centre, SURELY_ENOUGH, generator)
        return _moved(centre, one_minus_centre_squared, t)
    cosine, sine = torch.full_like(kappa, torch.nan), torch.full_like(kappa, torch.nan)
    waiting = torch.arange(kappa.numel(), device=kappa.device)
    for _ in range(ROUNDS):
        if waiting.numel() == 0:
            break
        t, found = _proposals(dim, centre[waiting], PROPOSALS, generator)
        done = waiting[found]
        cosine[done], sine[done] = _moved(centre[done], one_minus_centre_squared[done], t[found])
        waiting = waiting[~found]
    return cosine, sine


def _proposals(
    dim: int, centre: Tensor, count: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """The first accepted t of `count` proposals a row, and whether there is one: (rows,) each."""
    uniform = torch.rand(
        3, count, centre.numel(), dtype=torch.float64, device=centre.device, generator=generator
    )
    t = _sphere_coordinate(dim, uniform[0], uniform[1])  # (proposals, rows)
    y = centre * t
    accepted = uniform[2].log() < (dim - 1) * (y / (1 + y) - y.log1p())
    first = accepted.byte().argmax(0, keepdim=True)  # (1, rows)
    return t.gather(0, first)[0], accepted.any(0)


def _moved(centre: Tensor, one_minus_centre_squared: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and sine of the proposal that t stands for."""
    denominator = 1 + centre * t
    sine = (one_minus_centre_squared * (1 - t * t)).sqrt() / denominator
    return (centre + t) / denominator, sine


def _sphere_coordinate(dim: int, first: Tensor, second: Tensor) -> Tensor:
    """A coordinate of a uniform point of the sphere: its plane's radius² is Beta(1, (D−2)/2), its angle uniform."""
    angle = torch.cos(2 * math.pi * second)
    return angle if dim == 2 else torch.sqrt(-torch.expm1(first.log() * (2 / (dim - 2)))) * angle


class _AtFixedQuantile(torch.autograd.Function):
    """Hands on cosine and sine, and gives the concentration the derivative of a sample of fixed quantile."""

    @staticmethod
    def forward(ctx: Any, kappa: Tensor, cosine: Tensor, sine: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(kappa, cosine, sine)
        ctx.dim = dim
        return cosine.clone(), sine.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        kappa, cosine, sine = ctx.saved_tensors
        rate = cosine_rate(ctx.dim, kappa, cosine)
        # dw/dκ = (1−w²) rate, and d√(1−w²)/dκ = −w √(1−w²) rate has no pole at w = ±1.
        return rate * sine * (grads[0] * sine - grads[1] * cosine), None, None, None


def cosine_rate(dim: int, kappa: Tensor, cosine: Tensor) -> Tensor:
    """``(dw/dκ) / (1−w²)`` at fixed quantile of the cosine w."""
    if dim >= CLOSED_FORM_DIM:
        return _rate_closed_form(dim, kappa, cosine)
    pairs = zip(
        kappa.reshape(-1).split(QUADRATURE_CHUNK), cosine.reshape(-1).split(QUADRATURE_CHUNK), strict=True
    )
    return torch.cat([_rate_by_quadrature(dim, k, w) for k, w in pairs]).view_as(kappa)


def _rate_closed_form(dim: int, kappa: Tensor, w: Tensor) -> Tensor:
    """First two terms of an expansion in 1/D."""
    n = dim - 1
    e = 2 / (n + torch.hypot(2 * kappa, torch.full_like(kappa, n)))
    x = kappa * e
    q = 1 + x * w
    second = e * e * x * ((1 + 3 * x * x) * w + 3 * x + x**3) / (q**3 * (1 + x * x) ** 2)
    return e / q + second


def _rate_by_quadrature(dim: int, kappa: Tensor, cosine: Tensor) -> Tensor:
    """``∫ |tanh t − A_D| exp(ψ(t) − ψ(s)) dt`` over the tail beyond ``s = atanh w`` on w's own side of the mean.

    ``ψ(t) = κ tanh t − (D−1) log cosh t`` is the log-density of t; nodes are at ``t = s ± L y²``.
    """
    n, mean = dim - 1, mean_resultant_length(dim, kappa)
    edge = 1 - 2**-53
    s = torch.atanh(cosine.clamp(-edge, edge))
    side = torch.where(cosine >= mean, 1.0, -1.0).to(s)

    def drop(t: Tensor) -> Tensor:
        return kappa * (torch.tanh(s) - torch.tanh(t)) + n * (_log_cosh(t) - _log_cosh(s))

    # From here the drop is past TAIL_DROP for certain: to the left the peak may have to be mirrored first.
    far = TAIL_DROP / n + 2 + (1 - side) * s.clamp(min=0)
    near = torch.zeros_like(far)
    for _ in range(30):
        middle = (near + far) / 2
        past = drop(s + side * middle) > TAIL_DROP
        near, far = torch.where(past, near, middle), torch.where(past, middle, far)
    y, weight = (rule.to(s, non_blocking=True).unsqueeze(-1) for rule in (NODES, WEIGHTS))  # (nodes, 1)
    t = s + side * far * y * y  # (nodes, samples)
    return far * (2 * y * weight * side * (torch.tanh(t) - mean) * torch.exp(-drop(t))).sum(0)


def _log_cosh(t: Tensor) -> Tensor:
    return t.abs() + torch.log1p(torch.exp(-2 * t.abs())) - math.log(2)
