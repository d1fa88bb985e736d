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
from doubtless.losses import batch_bayesian_triplet_loss, bayesian_triplet_loss
from doubtless.losses.triplet_moments import Gaussians, VonMisesFishers
from doubtless.methods.base import DataSpec, Losses
from doubtless.methods.triplet_family import MiningOptions, TripletFamily, split_tuples, triplets_of

MARGIN = 0.02  # larger ones are worse: docs/methods.md


class BayesOptions(Section):
    """The section `bayes`."""

    kl_scale: float = Field(default=1e-6, ge=0)
    """Weight of the divergence from the prior."""
    negatives: Literal["skewed", "random", "semi-hard", "hard"] = "skewed"
    """In a batch, the negative of each pair of one label; `loss.miner` overrides it.

    random: any. skewed: any, near ones more often. With the hard ones alone variances grew large.
    """


class BayesFamily(TripletFamily):
    """What both families share: the loss of tuples or triplets, and σ² that starts at the prior's 1/D."""

    sections: ClassVar[Mapping[str, type[Section]]] = {"bayes": BayesOptions, "mining": MiningOptions}
    default_margin: ClassVar[float] = MARGIN

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.options = config.section("bayes", BayesOptions)
        last = self.variance_head[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():
            last.bias.fill_(math.log(math.expm1(1 / self.head.out_features)))  # softplus of it is 1/D

    def distributions(self, features: Tensor) -> Gaussians | VonMisesFishers:
        """Features (n, F) to the parameters of n distributions."""
        raise NotImplementedError

    def loss(self, batch: Batch) -> Losses:
        """Minus the log probability that triplets (mined, or all of a batch) are in order, and the prior's term."""
        features = self.features(batch.inputs)
        with torch.autocast(features.device.type, enabled=False):
            images = self.distributions(features.float())
            whole = type(images)(gather(images[0]), gather(images[1]))
            kl_scale = self.options.kl_scale
            if self.batch_kind == "tuples":
                a, p, n = split_tuples(whole, self.mining.negatives)
                losses = bayesian_triplet_loss(a, p, n, margin=self.margin, kl_scale=kl_scale)
                return Losses(losses.mean(), {})
            labels = gather(batch.labels)
            total = batch_bayesian_triplet_loss(
                whole,
                labels,
                margin=self.margin,
                mining=self.options.negatives,
                kl_scale=kl_scale,
                triplets=None if self.miner is None else triplets_of(self.miner, whole[0], labels),
            )
        return Losses(total, {})


class BayesTriplet(BayesFamily):
    """Gaussians: a unit direction times one learned positive scale, and σ² = softplus of the variance head."""

    name: ClassVar[str] = "bayes-triplet"
    summary: ClassVar[str] = "Gaussians, trained by the probability that a triplet is in order"
    family: ClassVar[str] = "gaussian"

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.log_scale = nn.Parameter(torch.zeros(()))

    def distributions(self, features: Tensor) -> Gaussians:
        """Features (n, F) to means (n, D) and variances (n, 1)."""
        direction, raw = self.direction_and_variance(features)
        return Gaussians(self.log_scale.exp() * direction, softplus(raw))

    def distribution(self, features: Tensor) -> dict[str, Tensor]:
        """Means (n, D) and variances (n, 1)."""
        mean, variance = self.distributions(features)
        return {"location": mean, "variance": variance}


class BayesTripletVmf(BayesFamily):
    """On the unit sphere: κ = 1/softplus of the variance head, which starts at D for every image."""

    name: ClassVar[str] = "bayes-triplet-vmf"
    summary: ClassVar[str] = "von Mises-Fisher distributions, trained as bayes-triplet is"
    family: ClassVar[str] = "vmf"

    def distributions(self, features: Tensor) -> VonMisesFishers:
        """Features (n, F) to directions (n, D) and concentrations (n,)."""
        direction, raw = self.direction_and_variance(features)
        return VonMisesFishers(direction, softplus(raw).squeeze(-1).reciprocal())

    def distribution(self, features: Tensor) -> dict[str, Tensor]:
        """Directions (n, D) and concentrations (n,)."""
        direction, concentration = self.distributions(features)
        return {"location": direction, "concentration": concentration}
