"""LAM post-hoc: a deterministic network, and the Laplace approximation of its head in one pass afterwards.

Warburg, Miani, Brack and Hauberg, *Bayesian Metric Learning for Uncertainty Quantification in Image
Retrieval* (2023), eq. 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

from doubtless.config import Config, Section
from doubtless.embedding import Embedding
from doubtless.methods.base import DataSpec, Subset
from doubtless.methods.deterministic import Deterministic
from doubtless.methods.laplace_head import LaplaceHead, LaplaceOptions


class LamPosthoc(Deterministic):
    """Trains as `deterministic` does, to the same weights bit for bit, or starts from a finished run (`base`).

    Then the curvature of all training images around the head, τ and λ by validation images; the embedding of
    an image is a Gaussian pushed onto the sphere, in closed form. With `training.epochs: 0` and
    `model.head_start: half-whitened` nothing is trained at all.
    """

    name: ClassVar[str] = "lam-posthoc"
    summary: ClassVar[str] = "deterministic training, then a Laplace posterior around the head (LAM)"
    sections: ClassVar[Mapping[str, type[Section]]] = {"laplace": LaplaceOptions}
    family: ClassVar[str] = "projected-gaussian"

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.laplace = LaplaceHead(self.head, config.section("laplace", LaplaceOptions))

    @property
    def trains(self) -> bool:
        """A finished run needs no training."""
        return self.config.base is None

    def embed_features(self, features: Tensor) -> Embedding:
        """Points while it trains, as `deterministic` validates; then the predictive."""
        if int(self.laplace.curvature.steps) == 0:  # still training: points, as `deterministic` validates
            return Embedding.point(self.head(features))
        return super().embed_features(features)

    def distribution(self, features: Tensor) -> dict[str, Tensor]:
        """The predictive of the head's posterior: location and variance (n, D)."""
        return self.laplace.predictive(self.head, features)

    @property
    def variance_ratio(self) -> float:
        """As the posterior bounds it."""
        return self.laplace.variance_ratio(self.head)

    def finish(self, train: Subset, validation: Subset) -> None:
        """Curvature of all training images, then τ and λ by validation images."""
        if self.trains and self.config.training.epochs == 0:
            self.start(train)  # which training would have done
        self.laplace.start(self.head, images=len(train.labels))
        self.laplace.fit(self.head, train, self.config)
        self.laplace.tune(self.head, validation, train, self.config)

    def record(self) -> dict[str, Any]:
        """τ, λ and how they were found."""
        return self.laplace.record()
