"""Diagonal curvature of the contrastive loss in its last linear layer, in closed form.

Warburg, Miani, Brack and Hauberg, *Bayesian Metric Learning for Uncertainty Quantification in Image
Retrieval* (2023), section 3 and appendix F: the generalised Gauss-Newton matrix (GGN) of

    L = Σ_{i<j} ½ y_ij ‖u_i − u_j‖²,    u = z/‖z‖,    z = W h + b,

of which only the diagonal is kept. With r = ‖z‖, c = u_i·u_j, one pair adds to unit k and feature f

    y (a_i[k] h_i[f]² + a_j[k] h_j[f]² + 2 b_ij[k] h_i[f] h_j[f])
    b_ij[k] = −(1 − u_ik² − u_jk² + c u_ik u_jk)/(r_i r_j)
    a_i[k]  = (1 − u_ik²)/r_i²                      `euclidean`: u is the model's output
    a_i[k]  = (c + 2 u_ik u_jk − 3 c u_ik²)/r_i²    `arccos`: z is, the loss normalises

A third geometry, `linear`, leaves the normalisation out: ½ y_ij ‖z_i − z_j‖² of the same pairs, a = 1 and b = −1.
Its whole GGN is a Kronecker product (see `doubtless.laplace.kronecker`).

Summed over pairs this is a handful of matrix products; nothing of size pairs × parameters is ever built.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from doubtless.errors import InputError, nearest
from doubtless.laplace.pairs import (
    _pair_counts,
    _pair_types,
    _precision,
    _reciprocal,
    _unit,
    pair_weight_matrix,
)
from doubtless.losses.contrastive import Reduction

Geometry = Literal["arccos", "euclidean", "linear"]
Approximation = Literal["fixed", "positive", "full"]

FEW_OUTPUTS = 64
"""Up to so many a GPU goes through all pairs rather than ask which of them count."""
READING = 32
"""What reading the features of one pair costs, in outputs that are worked out meanwhile; measured on a CPU."""


def contrastive_ggn(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor | None,
    *,
    margin: float,
    geometry: Geometry = "arccos",
    approximation: Approximation = "fixed",
    negative_weight: float = 0.5,
    reduction: Reduction = "active",
    pair_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Diagonal GGN of the contrastive loss over all pairs i<j of a batch: of weight (D, F) and bias (D,).

    >>> features, labels = torch.randn(64, 128), torch.arange(64) % 8        # (B, F), (B,)
    >>> head = torch.nn.Linear(128, 16)
    >>> of_weight, of_bias = contrastive_ggn(features, head.weight, head.bias, labels, margin=0.7)
    >>> of_weight.shape, of_bias.shape                                       # like the head's parameters
    (torch.Size([16, 128]), torch.Size([16]))

    `fixed` moves one point at a time and needs no pair list, `positive` keeps positive pairs only, `full`
    keeps everything. Entries may be negative: the caller clamps at 0, once all batches are summed or after
    each. `pair_weights` (B, B), symmetric, is y_ij itself (mined pairs; > 0 attracts, < 0 repels): labels and
    margin are then not looked at. Pairs with an embedding of length 0 contribute nothing. No gradient flows.
    """
    _check(features, weight, bias, geometry=geometry, approximation=approximation)
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        points = _embed(features, weight, bias)
        pairs = _pairs_of(points, labels, pair_weights, margin, negative_weight, reduction)
        if approximation == "positive":
            pairs = pairs.clamp_min(0)
        return _diagonal(points, pairs, geometry=geometry, cross=approximation != "fixed")


@dataclass(frozen=True)
class CurvatureSums:
    """Sums over pairs, not averaged, by type: batches add up, and the average is taken once, at the end."""

    positive_weight: Tensor
    """(D, F), every positive pair with y = 1."""
    negative_weight: Tensor
    """(D, F), every negative pair inside the margin with y = −1."""
    positive_bias: Tensor | None
    negative_bias: Tensor | None
    positive_pairs: Tensor
    """How many pairs are averaged over: all there were, or the active ones; 0-d, integer."""
    negative_pairs: Tensor

    def __add__(self, other: CurvatureSums) -> CurvatureSums:
        def plus(one: Tensor | None, another: Tensor | None) -> Tensor | None:
            return None if one is None or another is None else one + another

        return CurvatureSums(
            self.positive_weight + other.positive_weight,
            self.negative_weight + other.negative_weight,
            plus(self.positive_bias, other.positive_bias),
            plus(self.negative_bias, other.negative_bias),
            self.positive_pairs + other.positive_pairs,
            self.negative_pairs + other.negative_pairs,
        )

    def average(self, *, negative_weight: float = 0.5) -> tuple[Tensor, Tensor | None]:
        """H = 2(1−w) ΣH_pos/|P| + 2w ΣH_neg/|N|, of weight and bias; not clamped."""
        dtype = self.positive_weight.dtype
        attract = 2 * (1 - negative_weight) * _reciprocal(self.positive_pairs, dtype)
        repel = 2 * negative_weight * _reciprocal(self.negative_pairs, dtype)
        of_weight = attract * self.positive_weight + repel * self.negative_weight
        if self.positive_bias is None or self.negative_bias is None:
            return of_weight, None
        return of_weight, attract * self.positive_bias + repel * self.negative_bias


def contrastive_ggn_sums(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    *,
    margin: float,
    geometry: Geometry = "arccos",
    approximation: Approximation = "fixed",
    reduction: Reduction = "active",
) -> CurvatureSums:
    """What `contrastive_ggn` averages, as sums over positive and over negative pairs and their numbers.

    >>> head, labels = torch.nn.Linear(8, 3), torch.arange(12) % 4
    >>> first, second = torch.randn(2, 12, 8)
    >>> one = contrastive_ggn_sums(first, head.weight, head.bias, labels, margin=0.7)
    >>> another = contrastive_ggn_sums(second, head.weight, head.bias, labels, margin=0.7)
    >>> of_weight, of_bias = (one + another).average()    # as if both batches' pairs had been in one list
    >>> of_weight.shape, of_bias.shape
    (torch.Size([3, 8]), torch.Size([3]))
    """
    _check(features, weight, bias, geometry=geometry, approximation=approximation)
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        points = _embed(features, weight, bias)
        types = _pair_types(points.unit, labels, margin)
        positive = types.averaged_positives(reduction)
        counts = _pair_counts(types, positive, reduction)
        cross = approximation != "fixed"
        dtype = points.unit.dtype
        attracted = _diagonal(points, positive.to(dtype), geometry=geometry, cross=cross)
        if approximation == "positive":
            nothing = torch.zeros_like(attracted[0]), torch.zeros_like(attracted[0][:, 0])
            repelled = (nothing[0], None if bias is None else nothing[1])
        else:
            repelled = _diagonal(points, types.inside.to(dtype).neg_(), geometry=geometry, cross=cross)
    return CurvatureSums(attracted[0], repelled[0], attracted[1], repelled[1], *counts)


class _Points(NamedTuple):
    """A batch at the head: everything the formulas need of it."""

    features: Tensor  # (B, F), h
    scaled: Tensor  # (B, F), g = h/r: zero where r is
    unit: Tensor  # (B, D), u: zero where r is
    inverse_norm: Tensor  # (B, 1), 1/r: zero where r is
    has_bias: bool


def _embed(features: Tensor, weight: Tensor, bias: Tensor | None) -> _Points:
    dtype = _precision(weight)
    features = features.detach().to(dtype)
    outputs = torch.nn.functional.linear(features, weight.to(dtype), None if bias is None else bias.to(dtype))
    return _points(features, outputs, has_bias=bias is not None)


def _points(features: Tensor, outputs: Tensor, *, has_bias: bool) -> _Points:
    unit, inverse_norm = _unit(outputs)
    return _Points(features, features * inverse_norm, unit, inverse_norm, has_bias)


class _Pull(NamedTuple):
    """What the pairs of each point do to it together."""

    towards: Tensor  # (B, D), Yu
    each: Tensor  # (B, D), u ∘ Yu
    total: Tensor  # (B, 1), its row sums, s_i = Σ_j y_ij c_ij


def _pull(unit: Tensor, pairs: Tensor) -> _Pull:
    towards = pairs @ unit
    each = unit * towards
    return _Pull(towards, each, each.sum(1, keepdim=True))


def _diagonal(
    points: _Points, pairs: Tensor, *, geometry: str, cross: bool, pull: _Pull | None = None
) -> tuple[Tensor, Tensor | None]:
    """The formulas of this module summed over all pairs; pairs (B, B) holds y in both orders, and `pull` is what
    follows from them, where it is known already."""
    if geometry == "linear":
        return _linear_diagonal(points, pairs, cross=cross)
    own = _own_terms(points, pairs, geometry, pull)  # (B, D)
    of_weight = own.T @ points.scaled.square()  # (D, F)
    of_bias = (own.T @ points.inverse_norm.square()) if points.has_bias else None  # (D, 1)
    if cross:
        del own
        _add_cross_terms(points, pairs, of_weight, of_bias)
    return of_weight, None if of_bias is None else of_bias.squeeze(1)


def _linear_diagonal(points: _Points, pairs: Tensor, *, cross: bool) -> tuple[Tensor, Tensor | None]:
    """Σ_i (Y1)_i h_i² and, with cross terms, − Σ_i h_i ∘ (Yh)_i: the same for all outputs."""
    exists = (points.inverse_norm > 0).to(pairs.dtype)  # (B, 1)
    total, dim = pairs @ exists, points.unit.shape[1]

    def of(inputs: Tensor) -> Tensor:  # (B, f) → (D, f)
        found = total.T @ inputs.square()
        if cross:
            found = found - (pairs @ inputs).mul_(inputs).sum(0, keepdim=True)
        return found.repeat(dim, 1)

    of_weight = of(points.features * exists)
    return of_weight, of(exists).squeeze(1) if points.has_bias else None


def _own_terms(points: _Points, pairs: Tensor, geometry: str, pull: _Pull | None) -> Tensor:
    """Σ_j y_ij a_i r_i², (B, D): what point i gives by moving alone. Its r_i = 0 is taken care of by g_i = 0,
    and that of the other point of a pair by u_j = 0, except where only y_ij is summed."""
    unit = points.unit
    if geometry == "euclidean":
        return (1 - unit.square()).mul_(pairs @ (points.inverse_norm > 0).to(pairs.dtype))
    _, each, total = _pull(unit, pairs) if pull is None else pull
    return torch.addcmul(total, unit.square(), total, value=-3).add_(each, alpha=2)


def _add_cross_terms(points: _Points, pairs: Tensor, of_weight: Tensor, of_bias: Tensor | None) -> None:
    """Adds Σ_{i<j} 2 y_ij b_ij ⊗ (h_i∘h_j), in place."""
    # The terms of b without c: −1⊗Σ g∘Yg + 2 (U∘U)ᵀ(g∘Yg), one product.
    spread = (2 * points.unit.square()).sub_(1)  # (B, D)
    of_weight.addmm_(spread.T, (pairs @ points.scaled).mul_(points.scaled))
    if of_bias is not None:
        of_bias.addmm_(spread.T, (pairs @ points.inverse_norm).mul_(points.inverse_norm))
    del spread
    # −2 Σ_{i<j} y c (u_i∘u_j) ⊗ (g_i∘g_j)
    coefficient = (points.unit @ points.unit.T).mul_(pairs)
    if asks_the_device(dim := points.unit.shape[1], coefficient.device):
        chosen = coefficient.triu(1).view(-1).nonzero().squeeze(1)
        if len(chosen) * (dim + READING) < dim * coefficient.numel():
            _add_chosen_pairs(points, coefficient, chosen, of_weight, of_bias)
            return
    _add_every_pair(points, coefficient, of_weight, of_bias)


def asks_the_device(dim: int, device: torch.device) -> bool:
    """Whether cross terms look up which pairs count: a GPU answers slowly, and no recording of a step can hold it.

    Where there are few outputs a GPU goes through all pairs instead, which takes it less time than reading some.
    """
    return device.type == "cpu" or dim > FEW_OUTPUTS


def _add_every_pair(points: _Points, coefficient: Tensor, of_weight: Tensor, of_bias: Tensor | None) -> None:
    """−Σ_ij (y c)_ij (u_i g_i)(u_j g_j), output by output: a product of (B, B) and (B, F) each."""
    for output, unit in enumerate(points.unit.T.unsqueeze(2)):  # (B, 1)
        scaled = points.scaled * unit  # (B, F)
        of_weight[output] -= (coefficient @ scaled).mul_(scaled).sum(0)
        if of_bias is not None:
            alone = points.inverse_norm * unit  # (B, 1)
            of_bias[output] -= (coefficient @ alone).mul_(alone).sum(0)


def _add_chosen_pairs(
    points: _Points, coefficient: Tensor, chosen: Tensor, of_weight: Tensor, of_bias: Tensor | None
) -> None:
    """The same over i < j with y ≠ 0 only, as many pairs at a time as fit in little memory."""
    batch, dim = points.unit.shape
    coefficient = coefficient.view(-1)
    for part in chosen.split(_pairs_at_a_time(batch, dim, points.scaled.shape[1])):
        first, second = part // batch, part % batch
        left = points.unit[first].mul_(points.unit[second]).mul_(coefficient[part].unsqueeze(1))
        of_weight.addmm_(left.T, points.scaled[first].mul_(points.scaled[second]), alpha=-2)
        if of_bias is not None:
            both = points.inverse_norm[first].mul_(points.inverse_norm[second])
            of_bias.addmm_(left.T, both, alpha=-2)


def _pairs_at_a_time(batch: int, dim: int, features: int) -> int:
    """Half a batch's worth of rows, and more where the (D, F) result is large anyway: then the product
    with few rows would spend its time on reading and writing the result."""
    return max(1, batch // 2 + dim * features // (dim + features))


def check_names(*, geometry: str, approximation: str) -> None:
    """Refuses a geometry or an approximation that there is not, with the nearest there is."""
    for name, value, known in (
        ("geometry", geometry, get_args(Geometry)),
        ("approximation", approximation, get_args(Approximation)),
    ):
        if value not in known:
            raise InputError(f"There is no {name} {value!r}{nearest(value, known)}")


def _pairs_of(
    points: _Points,
    labels: Tensor | None,
    pair_weights: Tensor | None,
    margin: float,
    negative_weight: float,
    reduction: Reduction,
) -> Tensor:
    """y_ij (B, B) in both orders: as given, or those of the contrastive loss."""
    if pair_weights is not None:
        return _checked_pair_weights(pair_weights, points.unit)
    return pair_weight_matrix(
        points.unit, _needed(labels), margin=margin, negative_weight=negative_weight, reduction=reduction
    )


def _needed(labels: Tensor | None) -> Tensor:
    if labels is None:
        raise InputError(
            "Labels are needed to tell positive from negative pairs; give labels or pair_weights."
        )
    return labels


def _checked_pair_weights(pair_weights: Tensor, unit: Tensor) -> Tensor:
    batch = len(unit)
    if tuple(pair_weights.shape) != (batch, batch):
        raise InputError(
            f"The pair_weights must have shape ({batch}, {batch}), one row and column per image, "
            f"got {tuple(pair_weights.shape)}."
        )
    off_diagonal = ~torch.eye(batch, dtype=torch.bool, device=unit.device)
    return pair_weights.detach().to(unit) * off_diagonal


def _check(
    features: Tensor, weight: Tensor, bias: Tensor | None, *, geometry: str, approximation: str
) -> None:
    check_names(geometry=geometry, approximation=approximation)
    if features.dim() != 2 or weight.dim() != 2 or features.shape[1] != weight.shape[1]:
        raise InputError(
            "Features must be (batch, F) and weight (D, F), "
            f"got {tuple(features.shape)} and {tuple(weight.shape)}."
        )
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise InputError(f"The bias must have shape ({weight.shape[0]},), got {tuple(bias.shape)}.")
