"""Deterministic metric learning: any metric loss, a point for every image. What all others are compared with."""

from __future__ import annotations

from typing import ClassVar

from doubtless.config import Config
from doubtless.data.loading import Batch
from doubtless.distributed import gather
from doubtless.methods.base import DataSpec, Losses, Method
from doubtless.methods.metric_loss import MetricLoss


class Deterministic(Method):
    """Encoder, linear head, metric loss over all pairs of the global batch."""

    name: ClassVar[str] = "deterministic"
    summary: ClassVar[str] = "points, trained with a contrastive, triplet or any pytorch-metric-learning loss"

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.metric_loss = MetricLoss(config.loss, dim=config.model.dim, classes=spec.classes)

    def loss(self, batch: Batch) -> Losses:
        """The metric loss of the global batch."""
        embeddings = gather(self.head(self.features(batch.inputs)))  # (global batch, D)
        total = self.metric_loss(embeddings, gather(batch.labels))
        return Losses(total, {})

    @property
    def repeats_its_step(self) -> bool:
        """With our own losses; those of others may pick tuples by their values."""
        return self.metric_loss.fixed_shapes

    def lr_factors(self) -> dict[str, float]:
        """The loss's own parameters (proxies) may learn faster than the network."""
        return {**super().lr_factors(), "metric_loss.": self.config.loss.lr_factor}
