"""What a gallery is asked with: pictures, or what a model has made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from doubtless.embedding import Embedding

Picture = str | Path | bytes | Image.Image | Tensor
"""One picture: a file, its bytes, a Pillow image, or a tensor (C, H, W), bytes or floats in [0, 1]."""
Pictures = Sequence[Picture] | Tensor
"""Several of them, or a tensor (n, C, H, W)."""


def is_picture(what: object) -> bool:
    """Whether it is one picture, and not several."""
    return isinstance(what, str | Path | bytes | Image.Image) or (
        isinstance(what, Tensor) and what.dim() == 3
    )


@dataclass(frozen=True, eq=False)
class Queries:
    """n queries: embeddings and, of images whose features the doubt looks at, these."""

    embedding: Embedding
    features: Tensor | None = None  # (n, F), before the head

    def __len__(self) -> int:
        return len(self.embedding)

    def __getitem__(self, row: int) -> Queries:
        """One of them, as n = 1 queries."""
        features = None if self.features is None else self.features[row : row + 1]
        return Queries(self.embedding[row], features)

    @classmethod
    def cat(cls, queries: Sequence[Queries]) -> Queries:
        """Several together; all of them have features, or none has."""
        features = [one.features for one in queries if one.features is not None]
        return cls(
            Embedding.cat([one.embedding for one in queries]), torch.cat(features) if features else None
        )
