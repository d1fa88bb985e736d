"""Triplet regression: the triplet loss as a residual whose noise every image predicts for itself.

Taha, Chen, Misu, Shrivastava and Davis, *Unsupervised Data Uncertainty Learning in Visual Retrieval Systems*
(2019).
"""

from __future__ import annotations

from torch import Tensor

from doubtless.losses.triplet import Mining, Triplets, mined_triplets, squared_distances


def triplet_regression_loss(violation: Tensor, anchor: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
    """Mean over a, p, n of ``L/(2σ²) + ½ log σ²``, (...), from the triplet loss L and the three log σ², (...) each.

    Below 0 without end where L is 0 and σ² shrinks, so it is meant for triplets that violate the margin.

    >>> import torch
    >>> zero = torch.zeros(1)
    >>> triplet_regression_loss(torch.ones(1), zero, zero, zero)
    tensor([0.5000])
    """
    precision = ((-anchor).exp() + (-positive).exp() + (-negative).exp()) / 3
    return 0.5 * (violation * precision + (anchor + positive + negative) / 3)


def batch_triplet_regression_loss(
    points: Tensor,
    log_variance: Tensor,
    labels: Tensor,
    *,
    margin: float,
    mining: Mining = "semi-hard",
    triplets: Triplets | None = None,
) -> Tensor:
    """Mean over the triplets of a batch, mined or given, that violate the margin, 0 where there are none.

    points (batch, D), log_variance (batch,), labels (batch,); mining as in `batch_triplet_loss`.

    >>> import torch
    >>> batch_triplet_regression_loss(torch.eye(4), torch.zeros(4), torch.tensor([0, 0, 1, 1]), margin=0.2)
    tensor(0.1000)
    """
    pairs = squared_distances(points)
    chosen = triplets or mined_triplets(pairs, labels, mining)
    near, far, _ = chosen.of_pairs(pairs)
    violation = (near - far + margin).relu()
    shown = chosen._replace(weight=chosen.weight * (violation > 0))
    return shown.mean(triplet_regression_loss(violation, *chosen.of_images(log_variance)))
