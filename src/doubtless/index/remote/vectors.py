"""The vectors a database searches: inner products where it looks at all of them, lifted ones where it does not.

What is searched are the vectors of `forms.searchable`: inner products for `flat`, which is exact; for `hnsw` and
`ivf` those of expected distances are lifted (`proposals`), so that Euclidean distances rank alike.
"""

from __future__ import annotations

import numpy as np

from doubtless.index.forms import Floats, Searchable, matrix_widths
from doubtless.index.proposals import Source, lifted_queries
from doubtless.index.settings import Settings

FIELD_OF = {"direction": "direction", "expected-distance": "expected"}
"""Score → the name of the vectors that are searched by it."""


def kind_of(settings: Settings) -> str:
    """A database does not change its way by size: "auto" is exact."""
    return "flat" if settings.kind == "auto" else settings.kind


def is_lifted(settings: Settings, score: str) -> bool:
    """Whether the vectors of a score are compared by Euclidean distance, one number longer."""
    return kind_of(settings) != "flat" and score == "expected-distance"


def widths(settings: Settings) -> dict[str, int]:
    """Name → numbers of the vectors that are searched."""
    found = {}
    for score, width in matrix_widths(settings).items():
        lifted = is_lifted(settings, score) and not settings.is_gaussian
        found[FIELD_OF[score]] = width + lifted
    return found


def searched_vectors(new: Searchable, settings: Settings) -> dict[str, Floats]:
    """Name → vectors (n, ·) of items as they are searched."""
    vectors = {}
    for score, matrix in new.matrices.items():
        if is_lifted(settings, score):
            matrix = Source(matrix, new.items["spread"], settings=settings, score=score).lifted(slice(None))
        vectors[FIELD_OF[score]] = matrix
    return vectors


def searching_vectors(vectors: Floats, settings: Settings, score: str) -> Floats:
    """Queries (n, ·) as the vectors of the score want them."""
    if is_lifted(settings, score):
        vectors = np.ascontiguousarray(lifted_queries(vectors, settings, score), dtype=np.float32)
    return vectors
