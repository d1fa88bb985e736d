"""Hits without an index: each item searches all others, a gallery, or the gallery without its own class.

The calibration of an index, the combined doubt and the benchmarks look at these. A hit that was left out is not
there at all: its place is taken by the next one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation.neighbors import Neighbors, nearest_by
from doubtless.evaluation.scores import ScoreName, Search, gallery_vectors, query_vectors
from doubtless.retrieval.hits import Hits

MASKED = 2**22
"""Numbers gathered at a time for expected distances."""


def hits_among(
    queries: Embedding,
    gallery: Embedding,
    *,
    k: int,
    gallery_labels: Tensor | None = None,
    itself: Tensor | None = None,
    score: ScoreName = "direction",
) -> Hits:
    """The first k hits of every query, `itself` (n,) left out by its row in the gallery; k as far as it reaches.

    >>> points = Embedding.point(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]))
    >>> hits_among(points, points, k=5, itself=torch.arange(3)).row.tolist()
    [[1, 2], [0, 2], [1, 0]]
    """
    k = _depth(k, len(gallery) - (itself is not None))
    search = Search(score, gallery)
    found = search.nearest(queries, k=k, exclude=itself)
    return describe(queries, gallery, found.index, gallery_labels=gallery_labels)


def hits_without_class(
    queries: Embedding,
    labels: Tensor,
    gallery: Embedding,
    gallery_labels: Tensor,
    *,
    k: int,
    score: ScoreName = "direction",
) -> Hits:
    """The first k hits of every query in a gallery from which all items of the query's label were removed.

    What a query finds whose class is not in the gallery, without showing the library one that is not.
    """
    classes, sizes = gallery_labels.unique(return_counts=True)
    removed = sizes[torch.isin(classes, labels)]
    k = _depth(k, len(gallery) - (int(removed.max()) if len(removed) else 0))
    own, others = query_vectors(score, queries).float(), gallery_vectors(score, gallery).float().T

    def rows_of(rows: Tensor) -> Tensor:
        scores = own[rows] @ others
        return scores.masked_fill_(labels[rows].unsqueeze(1) == gallery_labels, -torch.inf)

    found: Neighbors = nearest_by(rows_of, (len(queries), len(gallery)), k=k, device=own.device)
    return describe(queries, gallery, found.index, gallery_labels=gallery_labels)


def describe(
    queries: Embedding, gallery: Embedding, rows: Tensor, *, gallery_labels: Tensor | None = None
) -> Hits:
    """`Hits` of gallery rows (n, k) that a search found."""
    distance = rows.new_empty(rows.shape, dtype=torch.double)
    cosine = torch.empty_like(distance)
    step = max(1, MASKED // (rows.shape[1] * gallery.dim))
    for start in range(0, len(queries), step):
        some = rows[start : start + step]  # (c, k)
        items = gallery[some.flatten()]
        asked = queries[torch.arange(start, start + len(some)).repeat_interleave(rows.shape[1])]
        distance[start : start + step] = asked.expected_squared_distance(items).view_as(some)
        cosine[start : start + step] = (asked.direction * items.direction).sum(-1).view_as(some)
    uncertainty = gallery.uncertainty
    return Hits(
        rows,
        cosine.clamp(-1, 1),
        distance,
        label=None if gallery_labels is None else gallery_labels[rows],
        uncertainty=None if uncertainty is None else uncertainty[rows],
        query_uncertainty=queries.uncertainty,
    )


def _depth(k: int, available: int) -> int:
    if k < 1 or available < 1:
        raise InputError(
            f"a search needs k of at least 1 and an item to find, got k = {k} of {available} items."
        )
    return min(k, available)
