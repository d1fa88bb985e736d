"""What the methods of the triplet family share: what triplets they see, and a variance head beside the mean.

Warburg, Jørgensen, Civera and Hauberg, *Bayesian Triplet Loss* (2021), section 4 and figure 4.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import normalize

from doubtless.config import Config
from doubtless.errors import InputError
from doubtless.methods.base import BatchKind, DataSpec, Method
from doubtless.methods.metric_loss import build_miner
from doubtless.methods.tuple_mining import MiningOptions, triplet_margin

HIDDEN = 128


class TripletFamily(Method):
    """Triplets are those of the global batch, or come as tuples mined from a cache (`mining.cache`).

    With a variance head, `model.dim` counts all numbers an image is embedded as, so the mean has one dimension
    less: a linear layer on its pooled features gives the direction, linear-ReLU-linear on its own pooled ones
    the one number that is a variance. With GeM pooling the two heads have a power each; where the encoder has
    no GeM both see the same features.
    """

    default_margin: ClassVar[float]
    has_variance: ClassVar[bool] = True

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.mining = config.section("mining", MiningOptions)
        self.margin = triplet_margin(config, self.default_margin)
        self.miner = build_miner(config.loss)
        if self.has_variance:
            self._make_heads()

    @property
    def batch_kind(self) -> BatchKind:
        """Tuples, where a cache is mined for them."""
        return "tuples" if self.mining.cache else super().batch_kind

    @property
    def repeats_its_step(self) -> bool:
        """Without a miner of pytorch-metric-learning, which finds as many triplets as there are."""
        return self.miner is None

    def direction_and_variance(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Features (n, poolings · F) to unit means (n, D − 1) and the variance head's raw numbers (n, 1)."""
        of_mean, of_variance = features, features
        if self.encoder.poolings == 2:
            of_mean, of_variance = features.chunk(2, dim=-1)
        return normalize(self.head(of_mean).float(), dim=-1), self.variance_head(of_variance).float()

    def head_inputs(self, features: Tensor) -> Tensor:
        """The pooling of the mean's own, where there are two."""
        return features[:, : self.head.in_features]

    def _make_heads(self) -> None:
        dim = self.config.model.dim
        if dim < 3:
            raise InputError(f"{self.name} needs model.dim of at least 3, one for the variance, got {dim}.")
        self.encoder.pool_apart(2)
        width = self.encoder.feature_dim // self.encoder.poolings
        self.head = nn.Linear(width, dim - 1)
        self.variance_head = nn.Sequential(nn.Linear(width, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1))
