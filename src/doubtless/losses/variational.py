"""The pieces of a variational loss: bounded variances, re-parameterised samples, divergence, reconstruction.

Kingma and Welling, *Auto-Encoding Variational Bayes* (2014), as used by Lin, Duan, Dong, Lu and Zhou, *Deep
Variational Metric Learning* (2018), L1 and L2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.losses.hib import kl_to_standard_normal

__all__ = ["bounded_log_variance", "draw_samples", "kl_to_standard_normal", "reconstruction_loss"]


def bounded_log_variance(raw: Tensor, *, bound: float) -> Tensor:
    """log σ² = b tanh(x/b): the identity near 0, and always within ±b, so that no σ² overflows or vanishes.

    A clamp would do so too, but give no gradient to come back from beyond it.

    >>> bounded_log_variance(torch.tensor([0.01, 1e6]), bound=10.0)
    tensor([1.0000e-02, 1.0000e+01])
    """
    return bound * torch.tanh(raw / bound)


def draw_samples(
    mean: Tensor, log_variance: Tensor, count: int, *, generator: torch.Generator | None = None
) -> Tensor:
    """μ + σ ε, (count, n, D) from μ and log σ² (n, D), with gradient to both (re-parameterised).

    >>> draw_samples(torch.zeros(5, 3), torch.zeros(5, 3), 20).shape
    torch.Size([20, 5, 3])
    """
    shape = (count, *mean.shape)
    noise = torch.randn(shape, generator=generator, dtype=mean.dtype, device=mean.device)
    return mean + (0.5 * log_variance).exp() * noise


def reconstruction_loss(decoded: Tensor, target: Tensor) -> Tensor:
    """‖y − ŷ‖², summed over the features, mean over samples and images: decoded (T, n, F), target (n, F).

    >>> reconstruction_loss(torch.ones(4, 2, 3), torch.zeros(2, 3))
    tensor(3.)
    """
    if decoded.dim() != 3 or decoded.shape[1:] != target.shape:
        raise InputError(
            f"The decoded features must have shape (T, {', '.join(map(str, target.shape))}) for a target of shape "
            f"{tuple(target.shape)}, got {tuple(decoded.shape)}."
        )
    return (decoded - target).square().sum(-1).mean()
