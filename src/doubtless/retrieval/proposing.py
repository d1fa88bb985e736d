"""Exact proposals: the best inner products of queries with pieces of a matrix, by FAISS in float32."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from doubtless.retrieval.stored_form import Floats, Integers

Piece = tuple[int | Integers, Floats]
"""(position of the first row, rows), or (positions of the rows, rows)."""


def propose(vectors: Floats, pieces: Iterable[Piece], count: int) -> Integers:
    """Positions (n, c) of the best `count` of each piece, −1 where there are none; NaN rows are never among them.

    >>> propose(np.eye(2, dtype=np.float32), [(5, np.eye(2, dtype=np.float32))], 1)
    array([[5],
           [6]])
    """
    import faiss

    found = [np.full((len(vectors), 0), -1, np.int64)]
    for place, rows in pieces:
        plain = np.asarray(
            rows
        )  # a memory map is an array of its own kind, which FAISS's torch bindings refuse
        _, near = faiss.knn(vectors, plain, min(count, len(rows)), metric=faiss.METRIC_INNER_PRODUCT)
        positions = place[near] if isinstance(place, np.ndarray) else near + place
        found.append(np.where(near < 0, -1, positions))
    return np.concatenate(found, axis=1)
