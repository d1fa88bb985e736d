"""Triplet regression: points, and a noise that every image predicts for its own triplets.

Taha, Chen, Misu, Shrivastava and Davis, *Unsupervised Data Uncertainty Learning in Visual Retrieval Systems*
(2019).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor

from doubtless.config import Section
from doubtless.data.loading import Batch
from doubtless.distributed import gather
from doubtless.losses import batch_triplet_regression_loss, triplet_loss, triplet_regression_loss
from doubtless.losses.reduction import mean_over
from doubtless.methods.base import Losses
from doubtless.methods.metric_loss import DEFAULT_MARGIN
from doubtless.methods.triplet_family import MiningOptions, TripletFamily, split_tuples, triplets_of


class TripletRegression(TripletFamily):
    """A unit vector and log σ² an image; mean over a, p, n of ``L/(2σ²) + ½ log σ²`` for violating triplets.

    Only those: where L is 0 the loss has no minimum in σ². Triplets are mined in the global batch
    (`loss.mining`, or a miner of pytorch-metric-learning by `loss.miner`) or come as tuples from a cache
    (`mining`).
    """

    name: ClassVar[str] = "triplet-regression"
    summary: ClassVar[str] = (
        "unit vectors with a learned noise each, trained by the triplet loss as a regression"
    )
    sections: ClassVar[Mapping[str, type[Section]]] = {"mining": MiningOptions}
    family: ClassVar[str] = "gaussian"
    default_margin: ClassVar[float] = DEFAULT_MARGIN["triplet"]

    def loss(self, batch: Batch) -> Losses:
        """Triplet loss over σ², of mined tuples or of the triplets of a batch."""
        features = self.features(batch.inputs)
        with torch.autocast(features.device.type, enabled=False):
            direction, log_variance = self.direction_and_variance(features.float())
            points, logs = gather(direction), gather(log_variance).squeeze(-1)
            if self.batch_kind == "tuples":
                return Losses(self._tuple_loss(points, logs), {})
            labels = gather(batch.labels)
            triplets = None if self.miner is None else triplets_of(self.miner, points, labels)
            total = batch_triplet_regression_loss(
                points, logs, labels, margin=self.margin, mining=self.config.loss.mining, triplets=triplets
            )
        return Losses(total, {})

    def distribution(self, features: Tensor) -> dict[str, Tensor]:
        """Points (n, D) with a variance (n, 1)."""
        direction, log_variance = self.direction_and_variance(features)
        return {"location": direction, "variance": log_variance.exp()}

    def _tuple_loss(self, direction: Tensor, log_variance: Tensor) -> Tensor:
        a, p, n = split_tuples(direction, self.mining.negatives)
        violation = triplet_loss(a, p, n, margin=self.margin)  # (t, negatives)
        losses = triplet_regression_loss(violation, *split_tuples(log_variance, self.mining.negatives))
        return mean_over(losses, violation > 0)
