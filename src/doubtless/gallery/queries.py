"""What a gallery is asked with: pictures, or what a model has made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError

Picture = str | Path | bytes | Image.Image | Tensor | np.ndarray
"""One picture: a file, its bytes, a Pillow image, a tensor (C, H, W) or an array (H, W, 3), bytes or floats in
[0, 1]."""
Pictures = Sequence[Picture] | Tensor | np.ndarray
"""Several of them, or a tensor (n, C, H, W) or an array (n, H, W, 3)."""
Vectors = Embedding | Tensor | np.ndarray
"""Embeddings, or vectors (n, D) of floats: points."""


def is_picture(what: object) -> bool:
    """Whether it is one picture, and not several, nor vectors."""
    if isinstance(what, str | Path | bytes | Image.Image):
        return True
    return isinstance(what, Tensor | np.ndarray) and not is_vectors(what) and what.ndim in (2, 3)


def is_vectors(what: object) -> bool:
    """Whether an array is one of vectors (n, D): two axes of floats; two axes of bytes are a grey picture.

    >>> is_vectors(np.zeros((3, 8), np.float32)), is_vectors(np.zeros((28, 28), np.uint8))
    (True, False)
    """
    if isinstance(what, Tensor):
        return what.dim() <= 2 and what.is_floating_point()
    return isinstance(what, np.ndarray) and what.ndim <= 2 and what.dtype.kind == "f"


def embedding_of(vectors: object) -> Embedding:
    """Vectors (n, D) as points; an embedding as it is."""
    if isinstance(vectors, Embedding):
        return vectors
    if not is_vectors(vectors):
        got = (
            f" of {vectors.dtype} {tuple(vectors.shape)}" if isinstance(vectors, Tensor | np.ndarray) else ""
        )
        raise InputError(
            f"Vectors must be an Embedding or an array (n, D) of floats, got a {type(vectors).__name__}{got}."
        )
    matrix = torch.as_tensor(
        np.asarray(vectors, dtype=np.float32) if isinstance(vectors, np.ndarray) else vectors
    )
    if matrix.dim() != 2 or 0 in matrix.shape:
        raise InputError(f"Vectors must have shape (n, D), got {tuple(matrix.shape)}.")
    return Embedding.point(matrix.detach().float())


def label_words(labels: object) -> list[str | None]:
    """Labels as words: numpy's and torch's numbers are written out, None stays.

    >>> label_words(np.array([3, 1])), label_words(["leek", None])
    (['3', '1'], ['leek', None])
    """
    if isinstance(labels, str | bytes | dict) or not hasattr(labels, "__len__"):
        raise InputError(f"Labels must be a sequence, one per item, got a {type(labels).__name__}.")
    values = labels.tolist() if isinstance(labels, Tensor | np.ndarray) else list(labels)  # type: ignore[call-overload]
    for value in values:
        if (value is not None and not isinstance(value, str | int | np.integer)) or isinstance(value, bool):
            raise InputError(f"A label must be a word or a whole number, got {value!r}.")
    return [None if value is None else str(value) for value in values]


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
