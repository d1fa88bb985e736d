"""The contrastive loss on the unit sphere, squared distances, all pairs of a batch.

Hadsell et al. 2006 as used by Warburg et al. 2023 (LAM), eq. 18, with the margin on the distance.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.losses.reduction import mean_over


def contrastive_loss(
    embeddings: Tensor, labels: Tensor, *, margin: float, negative_weight: float = 0.5
) -> Tensor:
    """Pulls pairs of one label together, pushes others apart until their distance is `margin`.

    Over all unordered pairs, u = z/‖z‖, d = ‖u_i − u_j‖:

        2(1 − w) · mean over positive pairs of ½ d²  +  2w · mean over negative pairs of ½ max(0, m² − d²)

    w = `negative_weight`, ½ by default: both weigh 1. A kind of pair that the batch lacks contributes 0.
    Shapes are fixed and nothing is read back to the host, so that it compiles and never waits.

    embeddings (batch, D), not normalised; labels (batch,).

    >>> z = torch.tensor([[1.0, 0.0], [0.0, 2.0]])             # unit distance √2
    >>> contrastive_loss(z, torch.tensor([3, 3]), margin=0.7)  # one positive pair: ½ · 2
    tensor(1.)
    >>> contrastive_loss(z, torch.tensor([3, 4]), margin=2.0)  # one negative pair: ½ (4 − 2)
    tensor(1.)
    """
    unit = normalize(embeddings, dim=-1)
    squared_distance = 2 - 2 * unit @ unit.T  # (batch, batch)
    same = labels[:, None] == labels[None, :]
    pair = torch.ones_like(same).triu(diagonal=1)
    positive, negative = same & pair, ~same & pair

    attraction = mean_over(0.5 * squared_distance, positive)
    repulsion = mean_over(0.5 * (margin**2 - squared_distance).relu(), negative)
    return 2 * (1 - negative_weight) * attraction + 2 * negative_weight * repulsion
