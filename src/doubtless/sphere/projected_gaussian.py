"""Mean direction of a Gaussian vector, E[z/‖z‖], without samples.

z has independent coordinates, z_l ~ N(m_l, v_l): what a linear head with a diagonal Gaussian posterior
gives for one image. From 1/‖z‖ = (2/√π) ∫₀^∞ exp(−t²‖z‖²) dt and Gaussian integrals,

    E z_l/‖z‖ = (2/√π) ∫₀^∞ m_l/(1+2t²v_l) · exp(−Σ_k [½ log(1+2t²v_k) + t² m_k²/(1+2t²v_k)]) dt.

With t = sinh(x)/√q, q = Σ(m²+v), the midpoint rule converges exponentially fast in the step. How far x has
to go depends on the variances (a few tiny ones beside a large one need a long way), so nodes are added
until the last one no longer counts. The length R of this mean says how concentrated the directions are.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from doubtless.errors import InputError

Method = Literal["auto", "quadrature", "series"]

STEP = 0.125
"""Step of the midpoint rule: the nearest singularity is π/4 away, so its error is about exp(−2π·(π/4)/STEP)."""
FIRST_NODES = 24
MORE_NODES = 16
LAST_NODE = 320  # x = 40: the integrand is followed over 17 orders of magnitude in t
FACTORS = 8  # so many (1+2t²v) are multiplied before a logarithm is taken; (2 sinh²40)⁸ < 1e308
SMALL = 1e-7
"""Below this 1 − R is taken from its first-order formula, wrong by about SMALL, instead of by subtraction."""


def projected_gaussian_mean(location: Tensor, variance: Tensor, *, method: Method = "auto") -> Tensor:
    """E[z/‖z‖], (n, D), of Gaussians with location (n, D) and variance (n, D) or (n, 1).

    >>> mean = projected_gaussian_mean(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2))
    >>> mean                                                     # no variance: the direction itself
    tensor([[0.6000, 0.8000]])

    `quadrature` is exact to about 1e-14. `series` costs a fifth; for D ≥ 128 its error is 1e-4 if variances are
    alike, up to 5e-3 (D = 128) or 5e-5 (D = 2048) if they spread over two orders of magnitude. `auto` is
    `quadrature`: 0.16 ms an image at D = 2048 on one core, where a ResNet50 takes 100 ms.
    Computed in float64 whatever comes in, in working memory that does not grow with n.
    No gradient flows.
    """
    return mean_direction(location, variance, method=method).mean.to(location.dtype)


class MeanDirection(NamedTuple):
    """E[z/‖z‖] and its length, all float64."""

    mean: Tensor  # (n, D)
    resultant: Tensor  # (n,), R
    complement: Tensor  # (n,), 1 − R, to a small relative error also where R rounds to 1


@torch.no_grad()
def mean_direction(location: Tensor, variance: Tensor, *, method: Method = "auto") -> MeanDirection:
    """E[z/‖z‖] with its length R and 1 − R, which in float32 would be lost for certain embeddings."""
    if method not in ("auto", "quadrature", "series"):
        raise InputError(f"There is no method {method!r}; accepted: auto, quadrature, series.")
    n, dim = location.shape
    if tuple(variance.shape) not in {(n, 1), (n, dim)}:
        raise InputError(f"variance must have shape ({n}, 1) or ({n}, {dim}), got {tuple(variance.shape)}.")
    nodes = 1 if method == "series" else FIRST_NODES
    rows = max(1, (2**18 if location.device.type == "cpu" else 2**24) // (nodes * dim))
    chunks = zip(location.split(rows), variance.expand(n, dim).split(rows), strict=True)
    parts = [_mean_direction(m.double(), v.double(), method) for m, v in chunks]
    return MeanDirection(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _mean_direction(m: Tensor, v: Tensor, method: Method) -> MeanDirection:
    """One chunk of rows."""
    m, v = _scaled(m, v)
    if m.shape[1] == 1:
        return _on_a_line(m, v)
    mean = _series(m, v) if method == "series" else _quadrature(m, v)
    resultant = torch.linalg.vector_norm(mean, dim=1).clamp_max(1)
    return MeanDirection(mean, resultant, _complement(m, v, resultant))


def debiased_resultant(length: Tensor, n: int) -> Tensor:
    """R from the length of the mean of n unit draws, whose square is too large by (1 − R²)/n on average."""
    if n < 2:
        raise InputError(f"the bias of one draw cannot be removed; n must be at least 2, got {n}.")
    return ((n * length.square() - 1) / (n - 1)).clamp_min(0).sqrt()


def _scaled(m: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The same directions with Σ(m²+v) = 1, in two steps so that squares neither overflow nor vanish."""
    largest = torch.maximum(m.abs().amax(1, keepdim=True), v.amax(1, keepdim=True).sqrt())  # (n, 1)
    inverse = torch.where(largest > 0, 1 / largest, 0.0)
    m, v = m * inverse, v * inverse * inverse
    q = (m.square() + v).sum(1, keepdim=True)
    inverse = torch.where(q > 0, 1 / q, 0.0)
    return m * inverse.sqrt(), v * inverse


def _on_a_line(m: Tensor, v: Tensor) -> MeanDirection:
    """D = 1: the sign of z, whose mean is erf(m/√2v)."""
    ratio = torch.where(m == 0, 0.0, m / (2 * v).sqrt())  # (n, 1), infinite without variance
    resultant, complement = torch.erf(ratio.abs()), torch.erfc(ratio.abs())
    return MeanDirection(torch.erf(ratio), resultant.squeeze(1), complement.squeeze(1))


def _quadrature(m: Tensor, v: Tensor) -> Tensor:
    """The integral for one chunk of rows, with Σ(m²+v) = 1."""
    dim = m.shape[1]
    group = min(FACTORS, dim)
    missing = -dim % group  # coordinates that are always zero change nothing
    m_padded, doubled = pad(m, (0, missing)), pad(2 * v, (0, missing))
    squared = m_padded.square().unsqueeze(1)  # (n, 1, D)
    total = torch.zeros_like(m_padded)
    start, count = 0, FIRST_NODES
    while start < LAST_NODE:
        x = (torch.arange(start, start + count, dtype=m.dtype, device=m.device) + 0.5) * STEP
        t_squared = x.sinh().square()  # (nodes,)
        factors = (doubled.unsqueeze(1) * t_squared.unsqueeze(1)).add_(1)  # (n, nodes, D), 1 + 2t²v
        half_log = 0.5 * factors.unflatten(2, (-1, group)).prod(3).log().sum(2)  # (n, nodes)
        factors.reciprocal_()
        height = torch.exp(-half_log - t_squared * (squared * factors).sum(2)) * x.cosh()  # (n, nodes)
        total += torch.bmm(height.unsqueeze(1), factors).squeeze(1)
        last = (height[:, -1:] * factors[:, -1] * m_padded).abs().amax(1)
        start, count = start + count, MORE_NODES
        # Terms only fall once they have begun to: a last one that is nothing has nothing behind it.
        if bool((last <= 1e-16 * (total * m_padded).abs().amax(1)).all()):
            break
    return m * total[:, :dim] * (2 * STEP / math.sqrt(math.pi))


def _series(m: Tensor, v: Tensor) -> Tensor:
    """E u_l ≈ m_l E[Q^{−½}], expanded in the cumulants of Q = ‖z‖² with v_l counted three times."""
    q = 1 + 2 * v  # (n, D)
    spread = (2 * v.square() + 4 * v * m.square()).sum(1, keepdim=True) + 4 * v.square()
    skew = (8 * v.pow(3) + 24 * (v * m).square()).sum(1, keepdim=True) + 16 * v.pow(3)
    first, second = spread / q.square(), skew / q.pow(3)
    series = 1 + 3 / 8 * first - 5 / 16 * second + 105 / 128 * first.square()
    return torch.where(q > 0, m * q.rsqrt() * series, 0.0)


def _complement(m: Tensor, v: Tensor, resultant: Tensor) -> Tensor:
    """1 − R. To first order in v it is ½ Σ_k v_k (1 − u_k²)/‖m‖², u = m/‖m‖."""
    squared_norm = m.square().sum(1)
    across = (v * (squared_norm.unsqueeze(1) - m.square())).sum(1)
    first_order = torch.where(squared_norm > 0, 0.5 * across / squared_norm.square(), torch.inf)
    return torch.where(first_order < SMALL, first_order, 1 - resultant)
