"""Deterministic metric learning: any metric loss, a point for every image. What all others are compared with."""

from __future__ import annotations

from typing import Any, ClassVar

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

    def parameter_groups(self) -> list[dict[str, Any]]:
        """The loss's own parameters (proxies) may learn faster than the network."""
        of_loss = {id(p) for p in self.metric_loss.parameters()}
        trainable = [p for p in self.parameters() if p.requires_grad]
        network = [p for p in trainable if id(p) not in of_loss]
        proxies = [p for p in trainable if id(p) in of_loss]
        groups: list[dict[str, Any]] = [{"params": network, "lr_factor": 1.0}]
        return groups + ([{"params": proxies, "lr_factor": self.config.loss.lr_factor}] if proxies else [])
