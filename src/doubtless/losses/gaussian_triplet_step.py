"""The Bayesian triplet loss of a batch of isotropic Gaussians together with its gradient, in closed form.

A training step of a small network waits for the launching of kernels, and what autograd makes of the loss is
some 120 of them, most on matrices of a few thousand numbers. Written out by hand it is half of that, and they
run without a graph.

With d the squared distances of the means, a = i, p = j and the negative n = N[i, j] for each pair of the batch:

    e = d_ij − d_in + D(v_j − v_n) + m                                                          E τ + m
    q = v_i (d_jn + D(v_j + v_n)) + v_j (d_ij + ½Dv_j) + v_n (d_in + ½Dv_n)                     ¼ Var τ
    loss = Σ w [−log Φ(z)],    z = −½ e/√q,    ∂/∂e = w h/(2√q),    ∂/∂q = w h z/(2q),    h = φ(z)/Φ(z)
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from doubtless.losses.triplet import AnyMining, mined_negatives

LEAST_VARIANCE = 1e-100
"""Of ¼ Var τ. Positive numbers of single precision give more than 1e-92: only a variance of 0 is changed."""


def gaussian_triplet_step(
    location: Tensor,
    variance: Tensor,
    labels: Tensor,
    *,
    margin: float,
    mining: AnyMining,
    kl_scale: float,
    generator: torch.Generator | None = None,
) -> Tensor:
    """What `batch_bayesian_triplet_loss` gives for mined triplets: location (batch, D), variance (batch, 1)."""
    result: Tensor = _Step.apply(location, variance, labels, margin, mining, kl_scale, generator)
    return result


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, location: Tensor, variance: Tensor, labels: Tensor, *options: Any) -> Tensor:
        margin, mining, kl_scale, generator = options
        x, v = location.double(), variance.double()  # (batch, D), (batch, 1)
        batch, dim = x.shape
        gram = x @ x.T
        norms = gram.diagonal()
        d = torch.add(norms[:, None], norms).sub_(gram, alpha=2).clamp_min_(0)
        same = labels[:, None] == labels
        chosen, exists = mined_negatives(d, same, mining, generator=generator)
        weight = (same & exists).fill_diagonal_(False).double()
        weight /= weight.sum().clamp_min_(1)

        loss, of_d, of_v = _likelihood(d, v, chosen, weight, margin=margin, dim=dim)
        symmetric = of_d + of_d.T
        of_x = torch.addmm(symmetric.sum(1, keepdim=True) * x, symmetric, x, beta=2, alpha=-2)
        if kl_scale:
            # 3 · mean of ½ D [Dv − 1 − log Dv + ‖x‖²]
            share = 1.5 * kl_scale * dim / batch
            terms = torch.sub(norms, v.log().squeeze(1)).add_(v.squeeze(1), alpha=dim)
            loss.add_(terms.sum(), alpha=share).sub_(batch * share * (1 + math.log(dim)))
            of_v.sub_(v.reciprocal(), alpha=share).add_(dim * share)
            of_x.add_(x, alpha=2 * share)
        ctx.save_for_backward(of_x.to(location.dtype), of_v.to(variance.dtype))
        return loss.to(location.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        of_x, of_v = ctx.saved_tensors
        return grads[0] * of_x, grads[0] * of_v, None, None, None, None, None


def _likelihood(
    d: Tensor, v: Tensor, chosen: Tensor, weight: Tensor, *, margin: float, dim: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The likelihood, and its gradients in the distances (batch, batch) and the variances (batch, 1)."""
    batch, half = len(d), dim / 2
    place = _row_starts(batch, d.device) + chosen  # of (positive, negative) in d
    v_i, v_j, v_n = v, v.T, v.take(chosen)
    d_in, d_jn = d.gather(1, chosen), d.take(place)

    e = torch.sub(d, d_in).add_(v_j - v_n, alpha=dim).add_(margin)
    at_anchor = d_jn.add_(v_j + v_n, alpha=dim)
    at_positive, at_negative = torch.add(d, v_j, alpha=half), torch.add(d_in, v_n, alpha=half)
    q = (v_i * at_anchor).addcmul_(v_j, at_positive).addcmul_(v_n, at_negative).clamp_min_(LEAST_VARIANCE)
    root = q.sqrt_()
    z = e.div_(root).mul_(-0.5)
    loss = torch.dot(torch.special.log_ndtr(z).flatten(), weight.flatten()).neg_()

    slope = math.sqrt(0.5 / math.pi) * weight
    of_e = slope.div_(torch.special.erfcx(z * -math.sqrt(0.5))).div_(root)
    of_q = torch.mul(of_e, z).div_(root)
    of_d = torch.addcmul(of_e, of_q, v_j)
    of_d.scatter_add_(1, chosen, (of_q * v_n).sub_(of_e))
    across = of_q * v_i
    of_d.view(-1).scatter_add_(0, place.view(-1), across.view(-1))
    # ∂q/∂v_i is what stands at the anchor; ∂q/∂v_j and ∂q/∂v_n have D v_i besides
    of_anchor = at_anchor.mul_(of_q).sum(1, keepdim=True)
    of_positive = at_positive.add_(v_j, alpha=half).mul_(of_q).add_(across + of_e, alpha=dim)
    of_negative = at_negative.add_(v_n, alpha=half).mul_(of_q).add_(across.sub_(of_e), alpha=dim)
    of_v = of_anchor.add_(of_positive.sum(0).unsqueeze(1))
    of_v.view(-1).scatter_add_(0, chosen.view(-1), of_negative.view(-1))
    return loss, of_d, of_v


@lru_cache(maxsize=16)
@torch.inference_mode(False)  # it outlives the call, whatever mode that is in
def _row_starts(batch: int, device: torch.device) -> Tensor:
    """Where the rows of a (batch, batch) matrix begin in its memory."""
    return torch.arange(0, batch * batch, batch, device=device)
