"""The triplet loss on squared distances, and in-batch mining without lists of triplets.

Schroff et al. 2015 (FaceNet).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

Mining = Literal["semi-hard", "hard"]


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
    chosen, exists = _mined_negatives(distance, same, mining)  # (batch, batch): for anchor i with positive j
    violation = (distance - chosen + margin).relu() * (positive & exists)
    return violation.sum() / (violation > 0).sum().clamp_min(1)


def squared_distances(points: Tensor) -> Tensor:
    """‖x_i − x_j‖², (batch, batch), never negative."""
    norms = points.square().sum(-1)
    return (norms[:, None] + norms[None, :] - 2 * points @ points.T).clamp_min(0)


def _mined_negatives(distance: Tensor, same: Tensor, mining: Mining) -> tuple[Tensor, Tensor]:
    """Distance of the negative chosen for (anchor, positive), and whether the anchor has a negative at all."""
    negatives, order = distance.detach().masked_fill(same, torch.inf).sort(dim=1)
    count = (~same).sum(dim=1, keepdim=True)  # (batch, 1)
    if mining == "hard":
        place = torch.zeros_like(order)
    else:
        place = torch.searchsorted(negatives, distance.detach().contiguous(), right=True)
        place = torch.minimum(place, (count - 1).clamp_min(0))  # none is farther: the farthest
    return distance.gather(1, order.gather(1, place)), count > 0
