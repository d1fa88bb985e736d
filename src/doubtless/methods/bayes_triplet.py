"""Bayesian triplet loss: every image a Gaussian, or a von Mises-Fisher distribution on the sphere.

Warburg, Jørgensen, Civera and Hauberg, *Bayesian Triplet Loss: Uncertainty Quantification in Image Retrieval*
(2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import softplus

from doubtless.config import Config, Section
from doubtless.data.loading import Batch
from doubtless.distributed import gather
from doubtless.embedding import Embedding
from doubtless.losses import batch_bayesian_triplet_loss, bayesian_triplet_loss
from doubtless.losses.triplet_moments import Distributions, Gaussians, VonMisesFishers
from doubtless.methods.base import DataSpec, Losses
from doubtless.methods.triplet_family import TripletFamily
from doubtless.methods.tuple_mining import MiningOptions, split_tuples, triplets_of

MARGIN = 0.02  # on fashion-sample .001 to .02 is better than .1, and .1 than .3


class BayesOptions(Section):
    """The section `bayes`."""

    kl_scale: float = Field(default=1e-6, ge=0)
    """Weight of the divergence from the prior."""
    negatives: Literal["skewed", "random", "semi-hard", "hard"] = "skewed"
    """In a batch, the negative of each pair of one label; `loss.miner` overrides it.

    random: any. skewed: any, near ones more often. The hard ones alone make every variance grow without end.
    """


class BayesTriplet(TripletFamily):
    """Gaussians: a unit direction times one learned positive scale, and σ² = softplus of the variance head.

    σ² starts at the prior's 1/D for every image.
    """

    name: ClassVar[str] = "bayes-triplet"
    summary: ClassVar[str] = "Gaussians, trained by the probability that a triplet is in order"
    sections: ClassVar[Mapping[str, type[Section]]] = {"bayes": BayesOptions, "mining": MiningOptions}
    default_margin: ClassVar[float] = MARGIN

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.log_scale = nn.Parameter(torch.zeros(()))
        start_at_prior(self)

    def loss(self, batch: Batch) -> Losses:
        features = self.features(batch.inputs)
        with torch.autocast(features.device.type, enabled=False):
            return bayes_losses(self, self.distributions(features.float()), batch.labels)

    def distributions(self, features: Tensor) -> Gaussians:
        """Features (n, F) to means (n, D) and variances (n, 1)."""
        direction, raw = self.direction_and_variance(features)
        return Gaussians(self.log_scale.exp() * direction, softplus(raw))

    def embed_features(self, features: Tensor) -> Embedding:
        return Embedding.gaussian(*self.distributions(features))


class BayesTripletVmf(TripletFamily):
    """On the unit sphere: κ = 1/softplus of the variance head, which starts at D for every image."""

    name: ClassVar[str] = "bayes-triplet-vmf"
    summary: ClassVar[str] = "von Mises-Fisher distributions, trained as bayes-triplet is"
    sections: ClassVar[Mapping[str, type[Section]]] = {"bayes": BayesOptions, "mining": MiningOptions}
    default_margin: ClassVar[float] = MARGIN

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        start_at_prior(self)

    def loss(self, batch: Batch) -> Losses:
        features = self.features(batch.inputs)
        with torch.autocast(features.device.type, enabled=False):
            return bayes_losses(self, self.distributions(features.float()), batch.labels)

    def distributions(self, features: Tensor) -> VonMisesFishers:
        """Features (n, F) to directions (n, D) and concentrations (n,)."""
        direction, raw = self.direction_and_variance(features)
        return VonMisesFishers(direction, softplus(raw).squeeze(-1).reciprocal())

    def embed_features(self, features: Tensor) -> Embedding:
        return Embedding.vmf(*self.distributions(features))


def bayes_losses(method: TripletFamily, images: Distributions, labels: Tensor) -> Losses:
    """The Bayesian triplet loss of the tuples, or of triplets, of the global batch."""
    options = method.config.section("bayes", BayesOptions)
    whole = type(images)(gather(images[0]), gather(images[1]))
    if method.batch_kind == "tuples":
        a, p, n = split_tuples(whole, method.mining.negatives)
        losses = bayesian_triplet_loss(a, p, n, margin=method.margin, kl_scale=options.kl_scale)
        return Losses(losses.mean(), {})
    labels = gather(labels)
    total = batch_bayesian_triplet_loss(
        whole,
        labels,
        margin=method.margin,
        mining=options.negatives,
        kl_scale=options.kl_scale,
        triplets=None if method.miner is None else triplets_of(method.miner, whole[0], labels),
    )
    return Losses(total, {})


@torch.no_grad()
def start_at_prior(method: TripletFamily) -> None:
    """Sets the variance head's last bias so that softplus of it is 1/D."""
    last = method.variance_head[-1]
    assert isinstance(last, nn.Linear)
    last.bias.fill_(math.log(math.expm1(1 / method.head.out_features)))
