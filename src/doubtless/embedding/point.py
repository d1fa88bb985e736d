"""Points: an embedding without doubt, what a deterministic network gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from torch import Tensor

from doubtless.embedding.base import Embedding, check_matrix


class PointEmbedding(Embedding):
    """Location (n, D); compared on the unit sphere, where its resultant length is 1."""

    family: ClassVar[str] = "point"
    item_axes: ClassVar[Mapping[str, int]] = {"location": 0}

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        super().__init__(parameters)
        check_matrix("location", parameters["location"])

    @property
    def uncertainty(self) -> None:
        """None: a point has no doubt."""
        return None

    @property
    def resultant(self) -> Tensor:
        """1 of every item, (n,)."""
        return torch.ones(len(self), dtype=self.dtype, device=self.device)

    def _scaled(self, scale: float) -> Self:
        return self

    def sample(self, n: int, *, generator: torch.Generator | None = None, raw: bool = False) -> Tensor:
        """The points themselves n times, (n, items, D); nothing is drawn."""
        return (self.location if raw else self.direction).expand(n, -1, -1)
