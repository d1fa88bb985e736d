"""The pairs of a batch and what they weigh in the contrastive loss: y_ij of L = Σ_{i<j} ½ y_ij ‖u_i − u_j‖²."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.losses.contrastive import Reduction, are_apart, are_nearer, check_reduction


def pair_weight_matrix(
    embeddings: Tensor,
    labels: Tensor,
    *,
    margin: float,
    negative_weight: float = 0.5,
    reduction: Reduction = "active",
    per_point: bool = False,
) -> Tensor:
    """y_ij of the contrastive loss, (B, B), symmetric with zero diagonal; embeddings (B, D) of any length.

    2(1−w)/|P| for positive pairs, −2w/|N| for negative pairs nearer than the margin, 0 beyond; w is
    `negative_weight`. |P| and |N| count the pairs i<j of their type that the loss averages over: with the
    `reduction` "all" every one, with "active" those that are not zero, negative ones nearer than the margin and
    positive ones that are apart at all; the others have no weight. They are constants: as pairs move they jump,
    and have no derivative. A type without pairs gives no weight.

    `per_point` averages over each point's own pairs instead, so that over all of them row i sums to
    (1 − n_i^inside/n_i)/B at w = ½: never negative, however unbalanced the classes (a point without positives gets
    no weight at all). Its rows are not symmetric: it is for `fixed` only.
    """
    if not 0 <= negative_weight <= 1:
        raise InputError(f"The negative_weight must lie between 0 and 1, got {negative_weight}.")
    dtype, batch = _precision(embeddings), len(embeddings)
    with torch.no_grad(), torch.autocast(embeddings.device.type, enabled=False):
        types = _pair_types(_unit(embeddings.to(dtype))[0], labels, margin)
        if not per_point:
            return _averages(types, reduction).pair_weights(negative_weight)
        positive = types.averaged_positives(reduction)
        positives = positive.sum(1, keepdim=True)  # (B, 1)
        negatives = types.inside.sum(1, keepdim=True) if reduction == "active" else batch - 1 - positives
        attract = _reciprocal(positives * batch, dtype)
        repel = _reciprocal(negatives * batch, dtype) * (positives > 0)
        weights = positive.to(dtype).mul_(2 * (1 - negative_weight) * attract)
        return weights.sub_(types.inside * (2 * negative_weight * repel))


def _precision(tensor: Tensor) -> torch.dtype:
    """float64 stays; half precision is not enough for squares and margins."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _unit(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Directions and inverse lengths, both 0 for an output of length 0."""
    norm = torch.linalg.vector_norm(outputs, dim=1, keepdim=True)  # (B, 1)
    inverse_norm = norm.reciprocal().nan_to_num_(nan=torch.nan, posinf=0.0)
    return outputs * inverse_norm, inverse_norm


class _PairTypes(NamedTuple):
    """The pairs of a batch, each in both orders: three times (B, B)."""

    positive: Tensor  # of one label
    inside: Tensor  # of two labels, nearer than the margin
    cosine: Tensor
    chosen: Tensor | None = None  # those that count; None: all but the diagonal

    def among(self, chosen: Tensor) -> _PairTypes:
        """Only the chosen pairs, (B, B), symmetric booleans."""
        return _PairTypes(self.positive & chosen, self.inside & chosen, self.cosine, chosen)

    def averaged_positives(self, reduction: str) -> Tensor:
        """The positive pairs that the loss averages over."""
        check_reduction(reduction)
        return self.positive & are_apart(self.cosine) if reduction == "active" else self.positive


def _pair_types(unit: Tensor, labels: Tensor, margin: float) -> _PairTypes:
    if margin < 0:
        raise InputError(f"The margin must not be negative, got {margin}.")
    if tuple(labels.shape) != (len(unit),):
        raise InputError(f"Labels must have shape ({len(unit)},), one per image, got {tuple(labels.shape)}.")
    positive = labels.unsqueeze(0) == labels.unsqueeze(1)  # (B, B)
    cosine = unit @ unit.T
    inside = are_nearer(cosine, margin).gt_(positive)  # and not of one label
    return _PairTypes(positive.fill_diagonal_(False), inside, cosine)


def _pair_counts(types: _PairTypes, positive: Tensor, reduction: str) -> tuple[Tensor, Tensor]:
    """|P| and |N| over i<j, as 0-d tensors: reading them would wait for the device."""
    positives = positive.sum() // 2
    if reduction == "active":
        return positives, types.inside.sum() // 2
    return positives, len(positive) * (len(positive) - 1) // 2 - positives


class _Averages(NamedTuple):
    """What y is made of, however it weighs: few launches for a second one, for a small network waits for them."""

    attraction: Tensor  # (B, B), ½/|P| where a positive pair is averaged over
    inside: Tensor  # (B, B), negative pairs nearer than the margin
    negatives: Tensor  # (), 2|N|, for each pair is there in both orders

    def pair_weights(self, negative_weight: float) -> Tensor:
        """y (B, B)."""
        weights = self.attraction * (4 * (1 - negative_weight))
        return weights.addcdiv_(self.inside, self.negatives, value=-4 * negative_weight)


def _averages(types: _PairTypes, reduction: str) -> _Averages:
    positive = types.averaged_positives(reduction)
    positives = positive.sum(dtype=torch.float64)  # exact, also for more pairs than a float32 can count
    if reduction == "active":
        negatives = types.inside.sum(dtype=torch.float64)
    else:
        batch = len(positive)
        negatives = (batch * (batch - 1) if types.chosen is None else types.chosen.sum()) - positives
    attraction = torch.empty(positive.shape, dtype=types.cosine.dtype, device=positive.device)
    torch.div(positive, positives.clamp_min_(2), out=attraction)
    return _Averages(attraction, types.inside, negatives.clamp_min_(2))


def _reciprocal(count: Tensor, dtype: torch.dtype) -> Tensor:
    """1/count; of no pairs at all any finite number will do."""
    return count.clamp_min(1).to(dtype).reciprocal()
