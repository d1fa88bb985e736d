"""The running curvature of online Laplace training (Miani et al. 2022, and section 3 of LAM).

Every step the weights are drawn from the current posterior, the loss is differentiated at the draw, and

    H ← (1−α) H + α max(0, GGN),    H₀ = 0,

with the bias of the zero start divided out. The prior precision stays outside the average, so it does not
fade; the paper's recursion differs by the constant α, which the scale τ absorbs.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from doubtless.errors import InputError
from doubtless.laplace.posterior import DiagonalPosterior, Posterior, draw_around


class OnlineCurvature(nn.Module):
    """Averaged curvature of a (dim, features) head during training; its buffers travel with checkpoints.

    >>> from doubtless.laplace import contrastive_ggn
    >>> head, features, labels = nn.Linear(128, 16), torch.randn(8, 128), torch.arange(8) % 2
    >>> curvature = OnlineCurvature(16, 128, memory=1e-3)
    >>> weight, bias = curvature.sample(head.weight, head.bias, scale=1e4, prior_precision=1.0)
    >>> curvature.update(*contrastive_ggn(features, weight, bias, labels, margin=0.7))
    >>> int(curvature.steps)
    1

    `memory` is α, the share of the newest batch: 1e-5 … 1e-2.
    """

    weight: Tensor
    bias: Tensor | None
    steps: Tensor

    def __init__(self, dim: int, features: int, *, memory: float = 1e-3, has_bias: bool = True) -> None:
        super().__init__()
        if not 0 < memory <= 1:
            raise InputError(f"The memory must lie in (0, 1], got {memory}.")
        self.memory = memory
        self.register_buffer("weight", torch.zeros(dim, features))
        self.register_buffer("bias", torch.zeros(dim) if has_bias else None)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def update(self, weight_ggn: Tensor, bias_ggn: Tensor | None, valid: Tensor | bool | None = None) -> None:
        """Takes in one batch, negative entries as 0. Where `valid` is false nothing changes; by default a
        batch is valid if any entry of its GGN is not 0, that is, if it had a pair that counts."""
        if valid is None:
            valid = (weight_ggn != 0).any()
        # All on the device, no `if`, which would wait for it.
        taken = torch.as_tensor(valid, device=self.steps.device)
        self.steps.add_(taken)
        share = share_of_newest(self.steps, self.memory, self.weight.dtype)
        for average, batch in ((self.weight, weight_ggn), (self.bias, bias_ggn)):
            if average is not None and batch is not None:
                clamped = batch.detach().clamp_min(0).to(average.dtype)
                average.lerp_(torch.where(taken, clamped, average), share)  # NaN not taken stays out

    def value(self) -> tuple[Tensor, Tensor | None]:
        """H of weight and bias: the weighted mean of the batches so far, 0 before the first."""
        return self.weight.clone(), None if self.bias is None else self.bias.clone()

    @torch.no_grad()
    def assign(self, weight_curvature: Tensor, bias_curvature: Tensor | None) -> None:
        """Takes a curvature computed elsewhere, as if it were the only batch so far."""
        self.weight.copy_(weight_curvature)
        if self.bias is not None and bias_curvature is not None:
            self.bias.copy_(bias_curvature)
        self.steps.fill_(1)

    def settle(self) -> None:
        """Nothing to do: a diagonal needs no factorisation."""

    def keep(self, found: Posterior) -> None:
        """Takes over the curvature of a posterior that `fit` has made."""
        if not isinstance(found, DiagonalPosterior):
            raise InputError(f"A diagonal curvature keeps a DiagonalPosterior, got a {type(found).__name__}.")
        self.assign(found.weight_curvature, found.bias_curvature)

    def sample(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        scale: float | Tensor,
        prior_precision: float | Tensor,
        generator: torch.Generator | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """One draw of the head around (weight, bias); their gradient is that of the draw.

        τ and λ may be 0-d tensors on the device. Without a generator the device's own draws.
        """
        # Numbers are filled in by the device: copying them over would wait for it.
        tau, prior = (
            value if isinstance(value, Tensor) else torch.full((), value, device=weight.device)
            for value in (scale, prior_precision)
        )

        def draw(mean: Tensor, curvature: Tensor) -> Tensor:
            return draw_around(mean, torch.addcmul(prior.to(curvature.dtype), curvature, tau), generator)

        if bias is None or self.bias is None:
            return draw(weight, self.weight), bias
        return draw(weight, self.weight), draw(bias, self.bias)

    def posterior(
        self, weight: Tensor, bias: Tensor | None, *, scale: float, prior_precision: float
    ) -> DiagonalPosterior:
        """The posterior that training ended with."""
        of_weight, of_bias = self.value()
        mean = weight.detach().clone(), None if bias is None else bias.detach().clone()
        return DiagonalPosterior(
            *mean, of_weight, None if bias is None else of_bias, scale=scale, prior_precision=prior_precision
        )

    def mean(self) -> Tensor:
        """The mean of H over the weights."""
        return self.weight.mean()

    def predictive(
        self, head: nn.Linear, features: Tensor, scale: Tensor, prior_precision: Tensor
    ) -> dict[str, Tensor]:
        """Location and variance for features (n, F) by tensors alone: for graphs, which decide nothing."""
        of_weight = (scale * self.weight + prior_precision).reciprocal()
        of_bias = None if self.bias is None else (scale * self.bias + prior_precision).reciprocal()
        return {"location": head(features), "variance": linear(features.square(), of_weight, of_bias)}


def share_of_newest(steps: Tensor, memory: float, dtype: torch.dtype) -> Tensor:
    """α/(1 − (1−α)^steps): with this share of the newest batch the mean starts at the first one instead of at 0,
    and is at every step the average with weights α(1−α)^k divided by their sum."""
    decay = math.log1p(-memory) if memory < 1 else -math.inf
    return -memory / torch.expm1(steps.clamp_min(1).to(dtype) * decay)
