"""Which triplets a method of the triplet family is shown: those of a batch, or tuples mined from a cache."""

from __future__ import annotations

from typing import TypeVar

from pydantic import Field
from torch import Tensor, nn

from doubtless.config import Config, Section
from doubtless.errors import InputError
from doubtless.losses.triplet import Triplets
from doubtless.losses.triplet_moments import Gaussians, VonMisesFishers

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
