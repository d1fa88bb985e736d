"""Features of a backbone as they are, or after half-whitening: no training, the rows every table must beat."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Literal

from torch import Tensor, nn

from doubtless.config import Config, Section, check_config
from doubtless.methods.base import BatchKind, DataSpec, Method, Subset


class FeatureOptions(Section):
    """The section `features` of a configuration."""

    head: Literal["raw", "half-whitened"] = "half-whitened"
    """raw: the features themselves. half-whitened: principal components, each over the root of its spread."""


class Pretrained(Method):
    """The backbone's features, or `model.dim` half-whitened components of them, as points."""

    name: ClassVar[str] = "pretrained"
    summary: ClassVar[str] = "a backbone's own features, raw or half-whitened; nothing is trained"
    sections: ClassVar[dict[str, type[Section]]] = {"features": FeatureOptions}
    learns: ClassVar[bool] = False

    def __init__(self, config: Config, spec: DataSpec) -> None:
        super().__init__(config, spec)
        self.options = config.section("features", FeatureOptions)
        if self.options.head == "raw":
            del self.head

    @property
    def trains(self) -> bool:
        """Nothing is trained."""
        return False

    @property
    def batch_kind(self) -> BatchKind:
        """Features, kept from run to run."""
        return "features"

    def distribution(self, features: Tensor) -> dict[str, Tensor]:
        """Features as they are, or by the half-whitened head (n, D)."""
        return {"location": features} if self.options.head == "raw" else super().distribution(features)

    def finish(self, train: Subset, validation: Subset) -> None:
        """Half-whitens the training features where wanted."""
        if self.options.head == "half-whitened":
            self.half_whiten_head(train)

    def half_whitened(self, weight: Tensor, bias: Tensor) -> Pretrained:
        """The same network with a linear head, of weight (D, F) and bias (D,), fitted elsewhere."""
        made = copy.deepcopy(self)
        values = self.config.to_dict()
        values["model"] = {**values["model"], "dim": len(weight)}
        values["features"] = {"head": "half-whitened"}
        made.config = check_config(values, self.sections)
        made.options = made.config.section("features", FeatureOptions)
        made.head = nn.Linear(weight.shape[1], len(weight))
        made.head.load_state_dict({"weight": weight, "bias": bias})
        made.head.to(self.device)
        return made.eval()

    def record(self) -> dict[str, Any]:
        """What was made of the features."""
        return {"head": self.options.head}
