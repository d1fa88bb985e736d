"""Loss, gradient and curvature of the contrastive loss at once: what a step of online training needs.

All three are made of the unit outputs u, the pair weights Y and Yu,

    L = ½ Σ_ij y_ij (1 − c_ij − ½m² [y_ij < 0]),    ∂L/∂z_i = (u_i (u_i·(Yu)_i) − (Yu)_i)/r_i,

(with plain distances d_ij − m [y_ij < 0] stands in the brackets, and y_ij/d_ij for y_ij in the gradient)
so the loss needs no graph of its own: its gradient is at hand when the curvature is. Pairs are found once. A small
network waits for the launch of every operation, so they are few.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from doubtless.laplace.curvature import (
    Approximation,
    Geometry,
    _check,
    _diagonal,
    _points,
    _pull,
)
from doubtless.laplace.kronecker import ggn_of_pairs
from doubtless.laplace.pairs import _averages, _pair_types, _PairTypes, _precision
from doubtless.losses.contrastive import (
    Distance,
    Pairs,
    Reduction,
    are_apart,
    check_distance,
    chosen_pairs,
    plain_distance,
)


class ContrastiveStep(NamedTuple):
    """What `contrastive_step` gives."""

    loss: Tensor
    """(), with gradient to the head and to the features."""
    curvature: tuple[Tensor, Tensor | None]
    """GGN, not clamped: the diagonal of the weight (D, F) and of the bias (D,), or a `KroneckerGGN`."""
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
    reduction: Reduction = "active",
    distance: Distance = "squared",
    curvature_negative_weight: float | None = None,
    curvature_reduction: Reduction | None = None,
    covariance: Literal["diagonal", "kronecker"] = "diagonal",
    chosen: Tensor | Pairs = "all",
) -> ContrastiveStep:
    """`contrastive_loss` of a head's outputs, and `contrastive_ggn` of the head, from one look at the pairs; or
    `kronecker_ggn`, as the `covariance` says.

    >>> from doubtless.laplace import OnlineCurvature
    >>> features, labels, head = torch.randn(8, 6), torch.arange(8) % 2, torch.nn.Linear(6, 3)
    >>> curvature = OnlineCurvature(3, 6)
    >>> weight, bias = curvature.sample(head.weight, head.bias, scale=8.0, prior_precision=1.0)
    >>> step = contrastive_step(features, weight, bias, labels, margin=0.7)
    >>> step.loss.backward()
    >>> curvature.update(*step.curvature, step.valid)
    >>> head.weight.grad.shape, int(curvature.steps)
    (torch.Size([3, 6]), 1)

    `chosen` are the pairs that count: symmetric booleans (B, B), or see `chosen_pairs`. Averages run over them, or
    over the active ones among them (`reduction`). `curvature_negative_weight` and `curvature_reduction` weigh the
    curvature apart from the loss (eq. 10 of LAM); None: alike. With plain distances the curvature is that of
    squared ones all the same, as in LAM's published code. Nothing is read back to the host with `fixed`, nor
    with the others on a GPU where there are few outputs (`asks_the_device`).
    Under autocast the outputs are of lower precision, the rest is not.
    """
    _check(features, weight, bias, geometry=geometry, approximation=approximation)
    check_distance(distance)
    outputs = torch.nn.functional.linear(features, weight, bias)  # (B, D)
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        dtype = _precision(outputs)
        points = _points(features.to(dtype), outputs.to(dtype), has_bias=bias is not None)
        types = _counted_pairs(points.unit, labels, margin, chosen)
        averages = _averages(types, reduction)
        pairs = curved = averages.pair_weights(negative_weight)
        own_weight = negative_weight if curvature_negative_weight is None else curvature_negative_weight
        own_reduction = curvature_reduction or reduction
        if (own_weight, own_reduction) != (negative_weight, reduction):
            over = averages if own_reduction == reduction else _averages(types, own_reduction)
            curved = over.pair_weights(own_weight)
        if approximation == "positive":
            curved = curved.clamp_min(0)
        pull = _pull(points.unit, pairs if distance == "squared" else _over_distance(pairs, types.cosine))
        gradient = torch.addcmul(pull.towards, points.unit, pull.total, value=-1).mul_(-points.inverse_norm)
        if distance == "squared":
            reached = types.cosine.add_(types.inside, alpha=margin**2 / 2)  # c_ij + ½m² [y_ij < 0]
            twice_loss = torch.addcmul(pairs, pairs, reached, value=-1).sum()
        else:
            lacking = plain_distance(types.cosine).add_(types.inside, alpha=-margin)  # d_ij − m [y_ij < 0]
            twice_loss = torch.mul(pairs, lacking).sum()
        known = pull if curved is pairs and distance == "squared" else None
        cross = approximation != "fixed"
        curvature: tuple[Tensor, Tensor | None]
        if covariance == "kronecker":
            curvature = ggn_of_pairs(points, curved, geometry=geometry, cross=cross)
        else:
            curvature = _diagonal(points, curved, geometry=geometry, cross=cross, pull=known)
    loss = _Given.apply(outputs, twice_loss, gradient)
    return ContrastiveStep(loss, curvature, curved.any())


def _over_distance(pairs: Tensor, cosine: Tensor) -> Tensor:
    """y_ij/d_ij, and 0 for equal points, whose distance has no gradient."""
    apart = are_apart(cosine)
    return torch.where(apart, pairs / (2 - 2 * cosine).where(apart, torch.ones_like(cosine)).sqrt(), 0.0)


def _counted_pairs(unit: Tensor, labels: Tensor, margin: float, chosen: Tensor | Pairs) -> _PairTypes:
    """The pairs of unit outputs (B, D), of all or of those that are chosen."""
    types = _pair_types(unit, labels, margin)
    if isinstance(chosen, Tensor):
        return types.among(chosen)
    if chosen == "all":
        return types
    return types.among(chosen_pairs(types.cosine, labels, pairs=chosen, margin=margin))


class _Given(torch.autograd.Function):
    """Half a number, and its gradient, both known already."""

    @staticmethod
    def forward(context: Any, outputs: Tensor, twice: Tensor, gradient: Tensor) -> Tensor:
        context.save_for_backward(gradient)
        context.dtype = outputs.dtype
        return 0.5 * twice

    @staticmethod
    def backward(context: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = context.saved_tensors
        return (gradient * upstream).to(context.dtype), None, None
