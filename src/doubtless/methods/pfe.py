"""PFE: the variance of every embedding, learned on top of a finished network.

Shi and Jain, *Probabilistic Face Embeddings* (2019): the mean is the embedding of a frozen network, a second head
puts out log σ² of every dimension, and is trained to make positive pairs likely to be of one thing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from doubtless.config import Config, Section
from doubtless.data.batches import BalancedBatches
from doubtless.data.loading import Batch
from doubtless.losses import pairwise_mutual_likelihood_score
from doubtless.losses.reduction import mean_over
from doubtless.methods.base import DataSpec, Losses, Subset
from doubtless.methods.two_stage import HeadOptions, TwoStage


class PfeOptions(HeadOptions):
    """The section `head` of a configuration."""

    norm_lr: float = Field(default=100.0, gt=0)
    """Factor on the learning rate of γ and β, which have units to go: at 1e-3 a step that is thousands of steps."""
    first_scale: float = Field(default=1e-4, gt=0)
    """γ before the first step."""
    first_shift: float = -7.0
    """β before the first step: log σ² of every image then."""


class SharedBatchNorm(nn.Module):
    """Batch norm whose scale γ and shift β are one number each, shared by all dimensions, and learned.

    Started at γ = 1e-4, β = −7: log σ² is all but constant and small, then grows and spreads as the data ask. In
    evaluation mode its mean and variance are the running ones.

    >>> SharedBatchNorm(8)(torch.randn(16, 8)).shape
    torch.Size([16, 8])
    """

    def __init__(self, dim: int, *, scale: float = 1e-4, shift: float = -7.0) -> None:
        super().__init__()
        self.normalize = nn.BatchNorm1d(dim, affine=False)
        self.scale = nn.Parameter(torch.tensor(scale))
        self.shift = nn.Parameter(torch.tensor(shift))

    def forward(self, values: Tensor) -> Tensor:
        """Values (n, D) normalised, times γ, plus β."""
        return self.scale * self.normalize(values) + self.shift


class Pfe(TwoStage):
    """Gaussians around the unit embeddings of a frozen deterministic network.

    The mean is the *unit* embedding, as in the paper: the network's loss saw directions only, so lengths are
    whatever training left behind, and distances between raw outputs would make σ follow those lengths.
    """

    name: ClassVar[str] = "pfe"
    summary: ClassVar[str] = "a frozen network and a head for the variance, by mutual likelihood (PFE)"
    sections: ClassVar[Mapping[str, type[Section]]] = {"head": PfeOptions}
    family: ClassVar[str] = "gaussian"

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        options = config.section("head", PfeOptions)
        width, dim, hidden = self.encoder.feature_dim, config.model.dim, options.hidden
        self.second = nn.Sequential(
            nn.Linear(width, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            nn.Linear(hidden, dim),
            SharedBatchNorm(dim, scale=options.first_scale, shift=options.first_shift),
        )

    def loss(self, batch: Batch) -> Losses:
        """Minus the mean mutual likelihood score of the positive pairs; an image is no pair with itself."""
        mean, variance = self._gaussian(batch.inputs)
        score = pairwise_mutual_likelihood_score(mean, variance, mean, variance)  # (batch, batch)
        same = batch.labels[:, None] == batch.labels[None, :]
        positive = same & (batch.position[:, None] < batch.position[None, :])
        return Losses(-mean_over(score, positive), {})

    def distribution(self, features: Tensor) -> dict[str, Tensor]:
        """Unit means and variances (n, D)."""
        mean, variance = self._gaussian(features)
        return {"location": mean, "variance": variance}

    def fit_second(self, train: Subset, validation: Subset) -> None:
        """Teaches the second head the variances, by pairs of one class."""
        features, labels, options = train.features(), train.labels, self.config.training
        batches = BalancedBatches(
            labels.cpu(), batch_size=options.batch_size, per_class=options.per_class, seed=self.config.seed
        )

        def rows_of(epoch: int) -> Iterator[Tensor]:
            yield from batches.epoch(epoch).to(features.device)

        self.minimize(rows_of, lambda rows: self.loss(Batch(features[rows], labels[rows], rows)).total)

    def second_groups(self) -> list[dict[str, Any]]:
        """γ and β learn faster than the rest."""
        shared = list(self.shared_norm.parameters())
        known = {id(parameter) for parameter in shared}
        others = [parameter for parameter in self.second.parameters() if id(parameter) not in known]
        return [
            {"params": others, "lr_factor": 1.0},
            {"params": shared, "lr_factor": self.config.section("head", PfeOptions).norm_lr},
        ]

    def record(self) -> dict[str, Any]:
        """How the head learned, γ and β."""
        norm = self.shared_norm
        return {**super().record(), "scale": float(norm.scale.detach()), "shift": float(norm.shift.detach())}

    @property
    def shared_norm(self) -> SharedBatchNorm:
        """The last layer of the second head."""
        norm = self.second[-1]  # type: ignore[index]
        assert isinstance(norm, SharedBatchNorm)
        return norm

    def _gaussian(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Unit means and variances, (n, D) each."""
        return normalize(self.head(features), dim=-1), self.second(features).exp()
