"""Loss prediction: a head that learns which images a finished network gets wrong by more than others.

Yoo and Kweon, *Learning Loss for Active Learning* (2019); the strongest cheap uncertainty of Kirchhof et al.,
*URL: A Representation Learning Benchmark for Transferable Uncertainty Estimates* (2023).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from doubtless.config import Config, Section
from doubtless.losses import neighbor_loss_per_image, ranking_loss
from doubtless.methods.base import DataSpec, Subset
from doubtless.methods.two_stage import HeadOptions, TwoStage

Targets = Literal["train", "validation"]


class LossPredictionOptions(HeadOptions):
    """The section `head` of a configuration."""

    targets: Literal["auto", "train", "validation"] = "auto"
    """Whose losses are learned. auto: of validation images in a closed split, of training images otherwise."""
    temperature: float = Field(default=0.1, gt=0)
    """T of the losses that are learned: small, the nearest neighbours decide them; large, all do."""


class LossPrediction(TwoStage):
    """The points of a frozen deterministic network, each with its predicted loss as the variance.

    Losses are those of `neighbor_loss_per_image`, of every image among all of its part; the head ranks them. Whose
    losses matters. A network that has fitted its training images has little left to show on them, so those of
    validation images teach more, few as they are. Where validation images are of other classes, the training
    classes teach more, for they are many. `head.targets: auto` follows that; docs/methods.md has the numbers.
    """

    name: ClassVar[str] = "loss-prediction"
    summary: ClassVar[str] = "a frozen network and a head that ranks images by their loss"
    sections: ClassVar[Mapping[str, type[Section]]] = {"head": LossPredictionOptions}
    family: ClassVar[str] = "gaussian"

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        width, hidden = self.encoder.feature_dim, self.options.hidden
        self.second = nn.Sequential(
            nn.BatchNorm1d(width), nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )

    @property
    def targets(self) -> Targets:
        """The part whose losses are learned."""
        chosen = self.config.section("head", LossPredictionOptions).targets
        if chosen != "auto":
            return chosen
        return "validation" if self.config.data.split == "closed" else "train"

    def distribution(self, features: Tensor) -> dict[str, Tensor]:
        """Points (n, D), and the predicted loss (n, 1) as their variance."""
        variance = positive(self.second(features))  # (n, 1)
        return {"location": normalize(self.head(features), dim=-1), "variance": variance}

    def fit_second(self, train: Subset, validation: Subset) -> None:
        """Teaches the second head to rank images by their loss."""
        part = train if self.targets == "train" else validation
        features = part.features()
        temperature = self.config.section("head", LossPredictionOptions).temperature
        target = neighbor_loss_per_image(self.head(features), part.labels, temperature=temperature)  # (n,)
        batches = _Shuffled(len(target), self.config.training.batch_size, self.config.seed, features.device)
        self.minimize(
            batches.epoch, lambda rows: ranking_loss(self.second(features[rows]).squeeze(1), target[rows])
        )

    def record(self) -> dict[str, Any]:
        """How the head learned, and of whose losses."""
        return {**super().record(), "targets": self.targets}


class _Shuffled:
    """Rows of every batch of an epoch, all images in a random order; a last batch too small to rank is left out."""

    def __init__(self, count: int, size: int, seed: int, device: torch.device) -> None:
        self.count, self.size, self.seed, self.device = count, min(size, count), seed, device

    def epoch(self, number: int) -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(hash((self.seed, number)) & 0x7FFFFFFF)
        order = torch.randperm(self.count, generator=generator).to(self.device)
        yield from (rows for rows in order.split(self.size) if len(rows) == self.size)


def positive(values: Tensor) -> Tensor:
    """(x + √(x² + 4))/2: positive and increasing everywhere, near x for large x and −1/x for large −x.

    Neither overflows, as exp does far from the data, nor becomes 0 (a softplus in float32: at −104), so that no
    two images lose their order.

    >>> positive(torch.tensor([-1000.0, 0.0, 1000.0]))
    tensor([1.0000e-03, 1.0000e+00, 1.0000e+03])
    """
    root = (values.square() + 4).sqrt()
    return torch.where(values > 0, (root + values) / 2, 2 / (root - values))
