"""Loss prediction: a head that learns which images a finished network gets wrong by more than others.

Yoo and Kweon, *Learning Loss for Active Learning* (2019); the strongest cheap uncertainty of Kirchhof et al.,
*URL: A Representation Learning Benchmark for Transferable Uncertainty Estimates* (2023).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn.functional import normalize

from doubtless.config import Config, Section
from doubtless.losses import neighbor_loss_per_image, ranking_loss
from doubtless.methods.base import DataSpec, Subset
from doubtless.methods.two_stage import HeadOptions, TwoStage
from doubtless.metrics.ranking import spearman

Targets = Literal["train", "validation"]
FOLDS = 5
"""Parts of the validation images, each judged by what is learned from the others."""
FEWEST = 8
"""Images in such a part below which nothing is chosen by them: training images are learned from."""


class LossPredictionOptions(HeadOptions):
    """The section `head` of a configuration."""

    targets: Literal["auto", "train", "validation"] = "auto"
    """Whose losses are learned. auto: whichever teaches more, by validation images that are kept apart for it."""
    temperature: float = Field(default=0.1, gt=0)
    """T of the losses that are learned: small, the nearest neighbours decide them; large, all do."""


class LossPrediction(TwoStage):
    """The points of a frozen deterministic network, each with its predicted loss as the variance.

    Losses are those of `neighbor_loss_per_image`, of every image among all of its part; the head ranks them. Whose
    losses matters. A network that has fitted its training images has little left to show on them, so those of
    validation images teach more, few as they are; else training images do, for they are many. `head.targets: auto`
    tries both on validation images: the head that learned from training images, and those that learned from four
    fifths of the validation images (of their labels, in an open set) and are asked about the rest. The better order
    of losses wins. docs/methods.md has the numbers.
    """

    name: ClassVar[str] = "loss-prediction"
    version: ClassVar[int] = 2
    summary: ClassVar[str] = "a frozen network and a head that ranks images by their loss"
    sections: ClassVar[Mapping[str, type[Section]]] = {"head": LossPredictionOptions}
    family: ClassVar[str] = "gaussian"

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        width, hidden = self.encoder.feature_dim, self.options.hidden
        self.second = nn.Sequential(
            nn.BatchNorm1d(width), nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1)
        )
        self.targets: Targets = "train"
        self._agreement: dict[Targets, float] = {}

    def distribution(self, features: Tensor) -> dict[str, Tensor]:
        """Points (n, D), and the predicted loss (n, 1) as their variance."""
        variance = positive(self.second(features))  # (n, 1)
        return {"location": normalize(self.head(features), dim=-1), "variance": variance}

    def fit_second(self, train: Subset, validation: Subset) -> None:
        """Teaches the second head to rank images by their loss."""
        named = self.config.section("head", LossPredictionOptions).targets
        if named == "auto":
            lessons = {"train": self._lesson(train), "validation": self._lesson(validation)}
            self._agreement = self._agreements(lessons["train"], lessons["validation"], validation.labels)
            self.targets = max(self._agreement, key=lambda name: self._agreement[name], default="train")
            self._teach(lessons[self.targets])
        else:
            self.targets = named
            self._teach(self._lesson(train if named == "train" else validation))

    def record(self) -> dict[str, Any]:
        """How the head learned, and of whose losses; why those: the rank correlations they were chosen by."""
        chosen = {"agreement": self._agreement} if self._agreement else {}
        return {**super().record(), "targets": self.targets, **chosen}

    def _lesson(self, part: Subset) -> _Lesson:
        features = part.features()
        temperature = self.config.section("head", LossPredictionOptions).temperature
        return _Lesson(
            features, neighbor_loss_per_image(self.head(features), part.labels, temperature=temperature)
        )

    def _teach(self, lesson: _Lesson) -> None:
        features, target = lesson
        batches = _Shuffled(len(target), self.config.training.batch_size, self.config.seed, features.device)
        self.minimize(
            batches.epoch, lambda rows: ranking_loss(self.second(features[rows]).squeeze(1), target[rows])
        )

    def _agreements(self, train: _Lesson, validation: _Lesson, labels: Tensor) -> dict[Targets, float]:
        """Rank correlation of what the head says with the losses of validation images it did not learn from, after
        learning from training images, and from the other validation images."""
        fold = _folds(labels, whole_labels=self.config.data.split != "closed", seed=self.config.seed)
        if int(fold.bincount(minlength=FOLDS).min()) < FEWEST:
            return {}
        untaught = copy.deepcopy(self.second.state_dict())

        def agreement(teacher: _Lesson, judges: _Lesson) -> float:
            self._teach(teacher)
            with torch.no_grad():
                found = spearman(self.second(judges.features).squeeze(1), judges.target)
            self.second.load_state_dict(untaught)
            return found if math.isfinite(found) else -1.0  # a head that says the same of all

        of_folds = [
            agreement(validation.of(fold != number), validation.of(fold == number)) for number in range(FOLDS)
        ]
        return {"train": agreement(train, validation), "validation": sum(of_folds) / FOLDS}


class _Lesson(NamedTuple):
    """What the head learns from."""

    features: Tensor  # (n, F)
    target: Tensor  # (n,) the loss of each image

    def of(self, rows: Tensor) -> _Lesson:
        """Some of its images; their losses are those among all."""
        return _Lesson(self.features[rows], self.target[rows])


def _folds(labels: Tensor, *, whole_labels: bool, seed: int) -> Tensor:
    """(n,) the fold of each image, on the CPU: at random, or all images of a label in one; nearly equal folds."""
    generator = torch.Generator().manual_seed(seed)
    names, place = labels.unique(return_inverse=True) if whole_labels else (labels, torch.arange(len(labels)))
    return (torch.randperm(len(names), generator=generator) % FOLDS)[place.cpu()]


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
