"""The triplet loss on squared distances, and in-batch mining without lists of triplets.

Schroff et al. 2015 (FaceNet).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.losses.reduction import mean_violation

Mining = Literal["semi-hard", "hard"]
AnyMining = Literal["semi-hard", "hard", "random", "skewed"]
SKEW = 2.0  # of the share of nearer negatives, which is uniform for `random`


class Triplets(NamedTuple):
    """Triplets of a batch as rows of it, (t,) each; those of weight 0 are none."""

    anchor: Tensor
    positive: Tensor
    negative: Tensor
    weight: Tensor

    def of_images(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values of images (batch, …) at anchors, positives and negatives, (t, …) each."""
        return (
            values.index_select(0, self.anchor),
            values.index_select(0, self.positive),
            values.index_select(0, self.negative),
        )

    def of_pairs(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values of pairs (batch, batch) at anchor-positive, anchor-negative and positive-negative, (t,) each."""
        rows, flat = len(values), values.flatten()
        return (
            flat.gather(0, self.anchor * rows + self.positive),
            flat.gather(0, self.anchor * rows + self.negative),
            flat.gather(0, self.positive * rows + self.negative),
        )

    def mean(self, values: Tensor) -> Tensor:
        """Weighted mean over the triplets, 0 where there are none."""
        return (values * self.weight).sum() / self.weight.sum().clamp_min(1)


def triplet_loss(anchor: Tensor, positive: Tensor, negative: Tensor, *, margin: float) -> Tensor:
    """relu(‖a − p‖² − ‖a − n‖² + m) for each triplet, (triplets,) from three (triplets, D)."""
    return ((anchor - positive).square().sum(-1) - (anchor - negative).square().sum(-1) + margin).relu()


def batch_triplet_loss(
    embeddings: Tensor, labels: Tensor, *, margin: float, mining: Mining = "semi-hard", unit: bool = True
) -> Tensor:
    """One negative for every ordered positive pair of the batch; mean over the triplets that violate the margin.

    `semi-hard`: the nearest negative that is farther than the positive, else the farthest negative there is.
    `hard`: the nearest negative. `unit`: distances between normalised embeddings.

    embeddings (batch, D); labels (batch,). Fixed shapes, O(batch² log batch), no (batch, batch, batch).

    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.9, 0.2]])
    >>> float(batch_triplet_loss(z, torch.tensor([0, 0, 1]), margin=0.2)) > 0
    True
    """
    points = normalize(embeddings, dim=-1) if unit else embeddings
    distance = squared_distances(points)  # (batch, batch)
    same = labels[:, None] == labels[None, :]
    positive = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    chosen, exists = mined_negatives(distance, same, mining)  # (batch, batch): for anchor i with positive j
    violation = (distance - distance.gather(1, chosen) + margin).relu() * (positive & exists)
    return mean_violation(violation)


def squared_distances(points: Tensor) -> Tensor:
    """‖x_i − x_j‖², (batch, batch), never negative."""
    norms = points.square().sum(-1)
    return (norms[:, None] + norms[None, :] - 2 * points @ points.T).clamp_min(0)


def mined_triplets(
    distance: Tensor, labels: Tensor, mining: AnyMining, *, generator: torch.Generator | None = None
) -> Triplets:
    """Every ordered pair of the batch as anchor and positive, with one negative; weight 0 where labels differ.

    `random`: each negative is as likely as the other, so that the mean over the triplets is, in expectation,
    that over all triplets of the batch. `skewed`: the near ones more often, the share of nearer negatives
    being the square of a uniform number. The others: see `batch_triplet_loss`. Fixed shapes: t is batch².
    """
    rows = torch.arange(len(labels), device=labels.device)
    same = labels[:, None] == labels[None, :]
    chosen, exists = mined_negatives(distance, same, mining, generator=generator)
    weight = (same & exists).to(distance.dtype).fill_diagonal_(0)
    return Triplets(
        rows.repeat_interleave(len(rows)), rows.repeat(len(rows)), chosen.flatten(), weight.flatten()
    )


def mined_negatives(
    distance: Tensor, same: Tensor, mining: AnyMining, *, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """The negative chosen for (anchor, positive), and whether the anchor has a negative at all, (batch, 1)."""
    negatives, order = distance.detach().masked_fill(same, torch.inf).sort(dim=1)
    count = (~same).sum(dim=1, keepdim=True)  # (batch, 1)
    if mining == "hard":
        place = torch.zeros_like(order)
    elif mining in ("random", "skewed"):
        share = torch.rand(order.shape, generator=generator, device=order.device, dtype=torch.float64)
        if mining == "skewed":
            share.pow_(SKEW)
        place = share.mul_(count).long()  # below count: the share is at most 1 − 2^−53
    else:
        place = torch.searchsorted(negatives, distance.detach().contiguous(), right=True)
        place = torch.minimum(place, (count - 1).clamp_min(0))  # none is farther: the farthest
    return order.gather(1, place), count > 0
