"""The triplet loss on points, with the mining of its Bayesian relatives: what those are compared with.

Weinberger, Blitzer and Saul (2006); Schroff, Kalenichenko and Philbin, *FaceNet* (2015).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch.nn.functional import normalize

from doubtless.config import Section
from doubtless.data.loading import Batch
from doubtless.distributed import gather
from doubtless.losses import batch_triplet_loss, triplet_loss
from doubtless.losses.reduction import mean_violation
from doubtless.methods.base import Losses
from doubtless.methods.metric_loss import DEFAULT_MARGIN
from doubtless.methods.triplet_family import MiningOptions, TripletFamily, split_tuples, triplets_of


class Triplet(TripletFamily):
    """Points; mean over the triplets that violate the margin, of the global batch or out of a cache (`mining`).

    In a batch it is `deterministic` with ``loss: {name: triplet}``.
    """

    name: ClassVar[str] = "triplet"
    summary: ClassVar[str] = "points, trained by the triplet loss, in batches or on tuples mined from a cache"
    sections: ClassVar[Mapping[str, type[Section]]] = {"mining": MiningOptions}
    default_margin: ClassVar[float] = DEFAULT_MARGIN["triplet"]
    has_variance: ClassVar[bool] = False

    def loss(self, batch: Batch) -> Losses:
        """Triplet loss of mined tuples, or of the triplets of a batch."""
        outputs = self.head(self.features(batch.inputs))
        with torch.autocast(outputs.device.type, enabled=False):
            points = gather(normalize(outputs.float(), dim=-1))
            if self.batch_kind == "tuples":
                violation = triplet_loss(*split_tuples(points, self.mining.negatives), margin=self.margin)
                return Losses(mean_violation(violation), {})
            labels = gather(batch.labels)
            if self.miner is None:
                mining = self.config.loss.mining
                return Losses(batch_triplet_loss(points, labels, margin=self.margin, mining=mining), {})
            a, p, n = triplets_of(self.miner, points, labels).of_images(points)
            return Losses(mean_violation(triplet_loss(a, p, n, margin=self.margin)), {})
