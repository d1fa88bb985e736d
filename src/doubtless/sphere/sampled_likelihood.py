"""Expected likelihood of every image under every non-isotropic proxy, in as few kernels as it takes.

`doubtless.sphere.kernels.expected_likelihood` says what is computed, ``log ∫ p_image ρ_class``; this is the form
for the training step of EL-nivMF (Kirchhof, Roth, Akata, Kasneci 2022), where launching kernels costs more than
their work. A draw of an image is a uniform point U of the sphere under the Möbius map towards its mean direction,

    y = U + xμ,    z = xμ + (1−x²) y/‖y‖²,    x = tanh(¼ asinh(2κ/(D−1))),

the proposals of Ulrich and Wood's sampler. None is rejected: each has its weight p_image(z)/q(z), which is

    log C_D(κ) − log C_D(0) + (D−1) log(1−x²)  +  κ μ·z − (D−1) log ‖y‖²,

with weights of at most 1.6, so even that five draws are worth four of the exact sampler or more. The estimate of
the integral has no bias, and since z and its weight are smooth in κ and μ, neither has its gradient. The backward
pass is written out: no (batch, classes, dim) tensor, nothing read back to the host.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from doubtless.errors import InputError
from doubtless.sphere.bessel import LOG_DEBYE, log_normalizer, log_normalizer_of_square
from doubtless.sphere.bessel import resultant_over_concentration as over_concentration

__all__ = ["debye_table", "sampled_expected_likelihood"]

LEAST_NORM = 1e-12  # of an embedding or a proxy: both are divided by theirs
FIRST_POWER, LAST_POWER = -1, 17
DEBYE_ORDER = 12  # from here on the first neglected term of Debye's expansion is below 2e-8


def sampled_expected_likelihood(
    embedding: Tensor,
    location: Tensor,
    log_scale: Tensor,
    *,
    norm_factor: float = 1.0,
    samples: int = 5,
    noise: Tensor | None = None,
    table: Tensor | None = None,
    relative: bool = False,
    generator: torch.Generator | None = None,
) -> Tensor:
    """``log ∫ p_image ρ_class`` of images vMF(e/‖e‖, norm_factor·‖e‖) and proxies nivMF(l/‖l‖, exp(log_scale)).

    embedding (batch, dim); location and log_scale (classes, dim). Gives (batch, classes), with gradient to all.
    `noise` (batch, samples, dim), normal, replaces the draws. `relative` leaves out what an image adds to all
    classes alike, which no softmax over classes sees. `table` is `debye_table(dim)` where it is at hand.

    >>> image, proxy = torch.randn(8, 32), torch.randn(10, 32)
    >>> sampled_expected_likelihood(image, proxy, torch.zeros(10, 32)).shape
    torch.Size([8, 10])
    """
    batch, dim = embedding.shape
    if location.shape != log_scale.shape or location.shape[1:] != (dim,) or dim < 2:
        raise InputError(
            "Images must be (batch, dim), locations and scales of proxies (classes, dim), dim at least 2; got "
            f"{tuple(embedding.shape)}, {tuple(location.shape)} and {tuple(log_scale.shape)}."
        )
    if noise is None:
        noise = torch.randn(
            batch, samples, dim, dtype=embedding.dtype, device=embedding.device, generator=generator
        )
    if table is None:
        table = debye_table(dim).to(embedding.device)
    found: Tensor = _SampledLikelihood.apply(embedding, location, log_scale, noise, table, norm_factor)
    if relative:
        return found
    kappa = norm_factor * torch.linalg.vector_norm(embedding, dim=1).double()
    x = torch.tanh(0.25 * torch.asinh(2 * kappa / (dim - 1)))
    own = log_normalizer(dim, kappa) - log_normalizer(dim, torch.zeros_like(kappa))
    own = own + (dim - 1) * torch.log1p(-x * x) - math.log(noise.shape[1])  # (batch,)
    return (found.double() + own.unsqueeze(1)).to(found.dtype)


def debye_table(dim: int) -> Tensor:
    """Coefficients (3, powers), float64, of ``p^−1 … p^17``, p = v/√(κ²+v²), v = D/2−1.

    Row 0: −log C_D(κ) without its logarithms ``(v+½) log p − v log(1+p)``. Row 1: A_D(κ)/κ without ``p/(v(1+p))``.
    Row 2: the powers themselves.
    """
    order = dim / 2 - 1
    table = torch.zeros(3, LAST_POWER - FIRST_POWER + 1, dtype=torch.float64)
    table[2] = torch.arange(FIRST_POWER, LAST_POWER + 1)
    if order < DEBYE_ORDER:
        return table  # not used: see `_class_constants`
    table[0, -1 - FIRST_POWER] = order
    table[0, -FIRST_POWER] = (dim - 1) / 2 * math.log(2 * math.pi) - (order + 0.5) * math.log(order)
    table[1, 2 - FIRST_POWER] = -0.5 / order**2
    for k, row in enumerate(LOG_DEBYE.tolist(), start=1):
        for j, coefficient in enumerate(row[: k + 1]):
            power = k + 2 * j
            table[0, power - FIRST_POWER] += coefficient * order**-k
            table[1, power + 2 - FIRST_POWER] -= coefficient * order**-k * power / order**2
    return table


def _class_constants(dim: int, squared: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """``log C_D(κ)`` and ``A_D(κ)/κ`` for κ² (classes,), both float64."""
    order, squared = dim / 2 - 1, squared.double()
    if order < DEBYE_ORDER:
        return log_normalizer_of_square(dim, squared), over_concentration(dim, squared.sqrt())
    p = squared.add(order * order).rsqrt_().mul_(order)  # (classes,)
    negative, ratio = torch.mm(table[:2], p.pow(table[2].unsqueeze(1)))  # (classes,) each
    negative = negative.add(p.log(), alpha=order + 0.5).sub_(p.log1p(), alpha=order)
    return negative.neg_(), ratio.add(p / (1 + p), alpha=1 / order)


class _SampledLikelihood(torch.autograd.Function):
    """The similarity without what all classes have alike. Letters are those of the module's docstring."""

    @staticmethod
    def forward(
        ctx: Any, e: Tensor, location: Tensor, log_scale: Tensor, noise: Tensor, table: Tensor, factor: float
    ) -> Tensor:
        (batch, dim), samples = e.shape, noise.shape[1]
        # images: draws z (batch, samples, dim) and their log-weights
        norm = torch.linalg.vector_norm(e, dim=1, keepdim=True).clamp_min_(LEAST_NORM)  # (batch, 1)
        twice = norm * (2 * factor / (dim - 1))  # 2κ/(D−1)
        x = twice.asinh().mul_(0.25).tanh_()
        ratio = x / norm
        centre = (ratio * e).unsqueeze(1)  # xμ, (batch, 1, dim)
        y = (noise / torch.linalg.vector_norm(noise, dim=2, keepdim=True)).add_(centre)
        squared_y = _dot(y, y)  # (batch, samples, 1)
        room = (1 - x * x).unsqueeze(1)
        stretch = room / squared_y
        z = torch.addcmul(centre, stretch, y)
        log_weight = torch.baddbmm(squared_y.log(), z, e.unsqueeze(2), beta=1 - dim, alpha=factor)
        # classes: K², μ, K²μ and the constant of each density
        squared_scale = log_scale.mul(2).exp_()
        length = torch.linalg.vector_norm(location, dim=1, keepdim=True).clamp_min_(LEAST_NORM)
        mu = location / length
        scaled = squared_scale * mu
        constant, over = _class_constants(dim, _dot(scaled, mu).squeeze(1), table)
        constant = constant.add_(log_scale.sum(1))
        # log-densities of all draws under all classes, and their weighted mean
        flat = z.view(-1, dim)
        squares = flat.square()
        inverse = torch.mm(squares, squared_scale.T)  # ‖Kz‖², (batch·samples, classes)
        log_squared = inverse.log()
        inverse = inverse.rsqrt_()
        cosine = torch.mm(flat, scaled.T).mul_(inverse)  # Kz·Kμ/‖Kz‖
        value = torch.sub(cosine, log_squared, alpha=dim / 2).view(batch, samples, -1).add_(log_weight)
        log_share = value.log_softmax(1)
        ctx.save_for_backward(
            e, norm, twice, x, ratio, y, squared_y, room, stretch, z, squared_scale, length, mu, scaled, over,
            squares, inverse, cosine, log_share,
        )  # fmt: skip
        ctx.factor = factor
        return (value[:, 0] - log_share[:, 0]).add_(constant)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        *image, squared_scale, length, mu, scaled, over, squares, inverse, cosine, log_share = (
            ctx.saved_tensors
        )
        e, z = image[0], image[-1]
        dim, flat = e.shape[1], z.view(-1, e.shape[1])
        by_value = log_share.exp().mul_(grads[0].unsqueeze(1))  # (batch, samples, classes)
        by_weight = by_value.sum(2, keepdim=True)  # (batch, samples, 1)
        by_product = by_value.view_as(inverse) * inverse  # of Kz·Kμ
        by_square = cosine.add(dim).mul_(inverse).mul_(by_product)  # of ‖Kz‖², times −2
        by_z = torch.mm(by_product, scaled).addcmul_(flat, torch.mm(by_square, squared_scale), value=-1)
        by_e = _to_image(ctx.factor, image, by_z.view_as(z), by_weight)
        by_class = _to_class(
            (squared_scale, length, mu, over),
            total=grads[0].sum(0),
            by_scaled=torch.mm(by_product.T, flat),
            by_squared_scale=torch.addmm(squared_scale, by_square.T, squares, beta=0, alpha=-0.5),
        )
        return by_e, *by_class, None, None, None


def _to_image(factor: float, kept: list[Tensor], by_z: Tensor, by_weight: Tensor) -> Tensor:
    """From the gradient of draws and log-weights to that of the embedding, (batch, dim)."""
    e, norm, twice, x, ratio, y, squared_y, room, stretch, z = kept
    dim = e.shape[1]
    by_z = by_z.addcmul_(by_weight, e.unsqueeze(1), value=factor)
    by_stretch = _dot(by_z, y)  # (batch, samples, 1)
    by_squared_y = torch.mul(by_stretch, stretch).add_(by_weight, alpha=dim - 1).div_(squared_y)  # negative
    by_y = (stretch * by_z).addcmul_(by_squared_y, y, value=-2)
    by_centre = by_z.add_(by_y).sum(1)  # (batch, dim)
    by_room = (by_stretch / squared_y).sum(1)  # (batch, 1)
    # x' = dx/d‖e‖; the centre is (x/‖e‖) e, and room is 1 − x²
    slope = twice.square().add_(1).rsqrt_().mul_(room.squeeze(1)).mul_(factor / (2 * (dim - 1)))
    along = torch.sub(slope, ratio).mul_(_dot(e, by_centre)).div_(norm)
    along = along.addcmul_(slope * x, by_room, value=-2).div_(norm)
    found = torch.mul(ratio, by_centre).addcmul_(along, e)
    # The log-weight holds e itself, too.
    return torch.baddbmm(found.unsqueeze(1), by_weight.mT, z, alpha=factor).squeeze(1)


def _to_class(
    kept: tuple[Tensor, ...], *, total: Tensor, by_scaled: Tensor, by_squared_scale: Tensor
) -> tuple[Tensor, Tensor]:
    """From the gradients of K²μ and K² to those of location and log-scale, (classes, dim) each."""
    squared_scale, length, mu, over = kept
    # d log C_D(‖Kμ‖)/d‖Kμ‖² = −½ A/κ
    by_squared_norm = (over * total).to(total.dtype).unsqueeze(1)
    half = torch.addcmul(by_scaled, by_squared_norm, mu, value=-0.5)
    by_log_scale = torch.addcmul(
        total.unsqueeze(1), squared_scale, by_squared_scale.addcmul_(mu, half), value=2
    )
    by_mu = half.addcmul_(by_squared_norm, mu, value=-0.5).mul_(squared_scale)
    by_location = by_mu.addcmul_(mu, _dot(by_mu, mu), value=-1).div_(length)
    return by_location, by_log_scale


def _dot(first: Tensor, second: Tensor) -> Tensor:
    """Inner products along the last axis, which stays with length 1: one kernel instead of two."""
    dim, shape = first.shape[-1], first.shape[:-1]
    return torch.bmm(first.reshape(-1, 1, dim), second.reshape(-1, dim, 1)).view(*shape, 1)
