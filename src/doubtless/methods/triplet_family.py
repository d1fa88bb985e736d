"""What the methods of the triplet family share: what triplets they see, and a variance head beside the mean.

Warburg, Jørgensen, Civera and Hauberg, *Bayesian Triplet Loss* (2021), section 4 and figure 4.
"""

from __future__ import annotations

from typing import ClassVar, TypeVar

from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from doubtless.config import Config, Section
from doubtless.errors import InputError
from doubtless.losses.triplet import Triplets
from doubtless.losses.triplet_moments import Gaussians, VonMisesFishers
from doubtless.methods.base import BatchKind, DataSpec, Method
from doubtless.methods.metric_loss import build_miner

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


Rows = TypeVar("Rows", bound=Tensor | Gaussians | VonMisesFishers)


class MiningOptions(Section):
    """The section `mining`: tuples of an anchor, a positive and hard negatives out of a cache of embeddings.

    The paper's: ``mining: {cache: 5000, refresh: 1000, negatives: 5, tuples: 25}``.
    """

    cache: int = Field(default=0, ge=0)
    """So many training images are embedded and searched; 0: no cache, triplets are those of a batch."""
    refresh: int = Field(default=1000, ge=1)
    """Steps after which other images are embedded, by the network as it then is."""
    negatives: int = Field(default=5, ge=1)
    """Negatives of a tuple: the nearest ones of the cache."""
    tuples: int = Field(default=25, ge=1)
    """Tuples of a batch, which replaces training.batch_size; over all processes together."""


def split_tuples(images: Rows, negatives: int) -> tuple[Rows, Rows, Rows]:
    """Rows (t · (2 + negatives), …) to anchors (t, 1, …), positives (t, 1, …) and negatives (t, negatives, …).

    >>> import torch
    >>> [part.shape[1] for part in split_tuples(torch.zeros(14, 3), 5)]
    [1, 1, 5]
    """
    if isinstance(images, Tensor):
        whole = images.unflatten(0, (-1, 2 + negatives))
        return whole[:, :1], whole[:, 1:2], whole[:, 2:]
    first, second = (split_tuples(values, negatives) for values in images)
    a, p, n = (type(images)(*parts) for parts in zip(first, second, strict=True))
    return a, p, n


def triplet_margin(config: Config, default: float) -> float:
    """The margin; refuses a loss that is not the triplet loss."""
    loss = config.loss
    if loss.name != "triplet":
        raise InputError(
            f"{config.method} trains with triplets, got loss {loss.name!r}; set `loss: {{name: triplet}}`."
        )
    return default if loss.margin is None else loss.margin


def triplets_of(miner: nn.Module, points: Tensor, labels: Tensor) -> Triplets:
    """What a miner of pytorch-metric-learning picks in a batch, as triplets."""
    from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_triplets

    anchor, positive, negative = convert_to_triplets(
        miner(points.detach().float(), labels), labels, t_per_anchor="all"
    )
    return Triplets(anchor, positive, negative, points.new_ones(len(anchor)))
