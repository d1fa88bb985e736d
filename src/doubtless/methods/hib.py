"""HIB: embeddings that hedge, trained end to end by the probability that two of them match.

Oh, Murphy, Pan, Roth, Schroff and Gallagher, *Modeling Uncertainty with Hedged Instance Embedding* (2018).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

from doubtless.config import Config, Section
from doubtless.data.batches import BalancedBatches
from doubtless.data.loading import Batch
from doubtless.distributed import gather
from doubtless.losses import kl_to_standard_normal, soft_contrastive_loss
from doubtless.losses.hib import fitted_match
from doubtless.losses.variational import bounded_log_variance, draw_samples
from doubtless.methods.base import DataSpec, Losses, Method, Subset

FIRST = -4.0  # log σ² at the start: the signal is there before the noise is
REACH = 8.0  # log σ² stays in (−12, 4): from a noise that says nothing to seven times the prior's deviation
MEASURED = 8  # batches whose pairs a and b are fitted to


class HibOptions(Section):
    """The section `hib` of a configuration."""

    samples: int = Field(default=8, ge=1)
    """K: draws of every embedding per step; all K² pairs of two images are compared."""
    beta: float = Field(default=1e-4, ge=0)
    """The weight of the divergence from N(0, I)."""
    match_lr: float = Field(default=10.0, gt=0)
    """Factor on the learning rate of a and b."""
    negative_weight: float = Field(default=1.0, gt=0)
    """Negative pairs count so many times as much as positive ones, all together. The paper has 1; more is better
    where classes that were not trained on are to be told apart."""
    unit_means: bool = False
    """Means have one length, √D, which is that of most draws of N(0, I): distances are then those of directions, by
    which a gallery is searched. The paper has False, where lengths are learned, too."""
    start: Literal["measured", "fixed"] = "measured"
    """measured: on a half-whitened head a and b start where they tell matches of the training part best from
    others, the head is scaled to the prior's variance, and all images have the same noise. fixed, or with another
    head: a = softplus(1), b = 1, and what two linear layers give."""


class Hib(Method):
    """A Gaussian for every image; two match with probability E σ(−a d + b), d the distance of a draw of each.

    a > 0 and b are learned. Under data-parallel training the means and variances of all ranks are gathered, and
    every rank draws the same noise for them.
    """

    name: ClassVar[str] = "hib"
    summary: ClassVar[str] = "Gaussians trained by the match probability of their samples (HIB)"
    sections: ClassVar[Mapping[str, type[Section]]] = {"hib": HibOptions}
    family: ClassVar[str] = "gaussian"

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.options = config.section("hib", HibOptions)
        self.spread = nn.Linear(self.encoder.feature_dim, config.model.dim)
        self.raw_scale = nn.Parameter(torch.tensor(1.0))
        self.shift = nn.Parameter(torch.tensor(1.0))

    @property
    def scale(self) -> Tensor:
        """a > 0."""
        return softplus(self.raw_scale)

    @property
    def repeats_its_step(self) -> bool:
        """Always: all pairs of samples count."""
        return True

    def start(self, train: Subset) -> None:
        """The head's start, and a and b to suit its distances where it has learned something already."""
        super().start(train)
        if self.options.start == "measured" and self.config.model.head_start == "half-whitened":
            with self.evaluated():
                self._measure(train)

    def loss(self, batch: Batch) -> Losses:
        """Soft contrastive loss of K draws of every image, and β times the divergence from N(0, I)."""
        features = self.features(batch.inputs)
        # Distances of near samples are differences of near-equal numbers: never in half precision.
        with torch.autocast(features.device.type, enabled=False):
            mean, log_variance = (gather(value) for value in self._gaussian(features.float()))
            labels = gather(batch.labels)
            # By the device's own generator, which training seeds alike on all ranks at every epoch.
            samples = draw_samples(mean, log_variance, self.options.samples)  # (K, global batch, D)
            match = soft_contrastive_loss(
                samples,
                labels,
                scale=self.scale,
                shift=self.shift,
                negative_weight=self.options.negative_weight,
            )
            divergence = kl_to_standard_normal(mean, log_variance).mean()
        return Losses(match + self.options.beta * divergence, {"match": match, "kl": divergence})

    def distribution(self, features: Tensor) -> dict[str, Tensor]:
        """Means and variances (n, D)."""
        mean, log_variance = self._gaussian(features)
        return {"location": mean, "variance": log_variance.exp()}

    def lr_factors(self) -> dict[str, float]:
        """a and b are two numbers that all pairs depend on: they follow the embeddings faster than weights move."""
        return {**super().lr_factors(), "raw_scale": self.options.match_lr, "shift": self.options.match_lr}

    def record(self) -> dict[str, Any]:
        """a and b of the match probability."""
        return {"scale": float(self.scale.detach()), "shift": float(self.shift.detach())}

    def _measure(self, train: Subset) -> None:
        """Scales the head until embeddings have the prior's variance, 1, and fits a and b to pairs of batches.

        Far from its own distances the probability says of every pair alike that it is no match. Then only positives
        have a gradient, and all there is to gain is to pull everything together.
        """
        features, training = train.features(), self.config.training
        deviation = self.head(features).var(0).mean().sqrt()
        self.head.weight.div_(deviation)
        self.head.bias.div_(deviation)
        self.spread.weight.zero_()  # on features of any size, the noise of every image starts at the same
        self.spread.bias.zero_()
        batches = BalancedBatches(
            train.labels.cpu(),
            batch_size=training.batch_size,
            per_class=training.per_class,
            seed=self.config.seed,
        )
        generator = torch.Generator(features.device).manual_seed(self.config.seed)
        distances, same = [], []
        for rows in batches.epoch(0)[:MEASURED].to(features.device):
            first, second = draw_samples(
                *self._gaussian(features[rows]), 2, generator=generator
            )  # (batch, D)
            labels = train.labels.to(rows.device)[rows]
            pair = torch.ones_like(rows[:, None] == rows).triu(1) & (rows[:, None] != rows)
            distances.append(torch.cdist(first, second)[pair])
            same.append((labels[:, None] == labels)[pair])
        found = fitted_match(
            torch.cat(distances), torch.cat(same), negative_weight=self.options.negative_weight
        )
        if found is not None:
            self.raw_scale.fill_(
                found.scale + math.log(-math.expm1(-found.scale))
            )  # softplus of it is the scale
            self.shift.fill_(found.shift)

    def _gaussian(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log σ², (n, D) each."""
        mean = self.head(features)
        if self.options.unit_means:
            mean = math.sqrt(mean.shape[1]) * normalize(mean, dim=1)
        return mean, FIRST + bounded_log_variance(self.spread(features), bound=REACH)
