"""Loss, gradient and curvature of the contrastive loss at once: what a step of online training needs.

All three are made of the unit outputs u, the pair weights Y and Yu,

    L = ½ Σ_ij y_ij (1 − c_ij − ½m² [y_ij < 0]),    ∂L/∂z_i = (u_i (u_i·(Yu)_i) − (Yu)_i)/r_i,

so the loss needs no graph of its own: its gradient is at hand when the curvature is. Pairs are found once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from doubtless.laplace.curvature import (
    Approximation,
    Geometry,
    _check,
    _diagonal,
    _pair_counts,
    _pair_types,
    _pair_weights,
    _points,
    _precision,
)


class ContrastiveStep(NamedTuple):
    """What `contrastive_step` gives."""

    loss: Tensor
    """(), with gradient to the head and to the features."""
    of_weight: Tensor
    """Diagonal GGN of the weight (D, F), not clamped."""
    of_bias: Tensor | None
    """(D,)"""
    valid: Tensor
    """(), whether there was a pair that counts."""


def contrastive_step(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    *,
    margin: float,
    geometry: Geometry = "arccos",
    approximation: Approximation = "fixed",
    negative_weight: float = 0.5,
    curvature_negative_weight: float | None = None,
    chosen: Tensor | None = None,
) -> ContrastiveStep:
    """`contrastive_loss` of a head's outputs, and `contrastive_ggn` of the head, from one look at the pairs.

    >>> step = contrastive_step(features, *curvature.sample(head.weight, head.bias, …), labels, margin=0.7)
    >>> step.loss.backward()
    >>> curvature.update(step.of_weight, step.of_bias, step.valid)

    `chosen` (B, B), symmetric booleans, are the pairs that count, and that averages run over: mined ones.
    `curvature_negative_weight` re-weighs the curvature apart from the loss (eq. 10 of LAM). Nothing is read
    back to the host with `fixed`. Under autocast the outputs are of lower precision, the rest is not.
    """
    _check(features, weight, bias, geometry=geometry, approximation=approximation)
    outputs = torch.nn.functional.linear(features, weight, bias)  # (B, D)
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        dtype = _precision(outputs)
        points = _points(features.to(dtype), outputs.to(dtype), has_bias=bias is not None)
        positive, inside = _pair_types(points.unit, labels, margin)
        positives, negatives = _pair_counts(positive)
        if chosen is not None:
            positive, inside = positive & chosen, inside & chosen
            positives = positive.sum() // 2
            negatives = chosen.sum() // 2 - positives
        counts = (positive, inside, positives, negatives)
        pairs = _pair_weights(*counts, negative_weight, dtype)
        towards = pairs @ points.unit  # (B, D), Yu
        along = (points.unit * towards).sum(1, keepdim=True)  # (B, 1)
        gradient = torch.addcmul(towards, points.unit, along, value=-1).mul_(-points.inverse_norm)
        repelled = negative_weight * inside.sum(dtype=dtype) / negatives.clamp_min(1)  # −Σ_{i<j} y, y < 0
        loss = 0.5 * (pairs.sum() - along.sum() + margin**2 * repelled)
        if curvature_negative_weight is not None and curvature_negative_weight != negative_weight:
            pairs = _pair_weights(*counts, curvature_negative_weight, dtype)
        if approximation == "positive":
            pairs = pairs.clamp_min(0)
        of_weight, of_bias = _diagonal(points, pairs, geometry=geometry, cross=approximation != "fixed")
    return ContrastiveStep(_Given.apply(outputs, loss, gradient), of_weight, of_bias, pairs.any())


class _Given(torch.autograd.Function):
    """A value and its gradient, both known already."""

    @staticmethod
    def forward(context: Any, outputs: Tensor, value: Tensor, gradient: Tensor) -> Tensor:
        context.save_for_backward(gradient)
        context.dtype = outputs.dtype
        return value.clone()

    @staticmethod
    def backward(context: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = context.saved_tensors
        return (gradient * upstream).to(context.dtype), None, None
