"""`Hits`: what a search of a gallery found, and searches without an index.

Calibrator, doubt and answers read `Hits`. Without an index each item searches all others, a gallery, or the gallery
without its own class; a hit that was left out is not there at all: its place is taken by the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.search.neighbors import Neighbors, nearest_by
from doubtless.search.scores import ScoreName, Search, gallery_vectors, query_vectors


@dataclass(frozen=True, eq=False)
class Hits:
    """The k best items of n queries, best first; tensors on the CPU.

    >>> import torch
    >>> hits = Hits(row=torch.tensor([[4, 2]]), score=torch.tensor([[0.9, 0.7]]),
    ...             expected_squared_distance=torch.tensor([[0.2, 0.6]]))
    >>> len(hits), hits.depth
    (1, 2)
    """

    row: Tensor
    """(n, k) int64: the item's row in the gallery; −1 where the gallery had fewer than k."""
    score: Tensor
    """(n, k) cosine of the directions, whatever the gallery was ranked by; −inf where there is no item."""
    expected_squared_distance: Tensor
    """(n, k) E‖z − w‖² of the family; inf where there is no item."""
    label: Tensor | None = None
    """(n, k) int64 codes of the items' labels, −1 for an item without; None: the gallery has no labels."""
    uncertainty: Tensor | None = None
    """(n, k) of the items; None: the gallery holds points."""
    query_uncertainty: Tensor | None = None
    """(n,) of the queries; None: the queries are points."""

    def __post_init__(self) -> None:
        if self.row.dim() != 2:
            raise InputError(f"The rows of hits must have shape (queries, k), got {tuple(self.row.shape)}.")
        for field in fields(self):
            value = getattr(self, field.name)
            wanted = self.row.shape[:1] if field.name == "query_uncertainty" else self.row.shape
            if value is not None and value.shape != wanted:
                raise InputError(
                    f"The {field.name} of hits must have shape {tuple(wanted)}, got {tuple(value.shape)}."
                )

    def __len__(self) -> int:
        return self.row.shape[0]

    @property
    def depth(self) -> int:
        """k: how many items a query was given."""
        return self.row.shape[1]

    @property
    def found(self) -> Tensor:
        """(n, k) bool: whether there is an item at all."""
        return self.row >= 0

    def first(self, k: int) -> Hits:
        """The first k of every query."""
        return self.chosen(lambda value: value[:, :k])

    def chosen(self, choose: Callable[[Tensor], Tensor]) -> Hits:
        """Some of the hits of every query: `choose` takes (n, k) to (n, c), the same ones of all."""
        return Hits(
            choose(self.row),
            choose(self.score),
            choose(self.expected_squared_distance),
            label=None if self.label is None else choose(self.label),
            uncertainty=None if self.uncertainty is None else choose(self.uncertainty),
            query_uncertainty=self.query_uncertainty,
        )

    def __getitem__(self, queries: slice | Tensor) -> Hits:
        """The hits of some queries."""
        return Hits(
            self.row[queries],
            self.score[queries],
            self.expected_squared_distance[queries],
            label=None if self.label is None else self.label[queries],
            uncertainty=None if self.uncertainty is None else self.uncertainty[queries],
            query_uncertainty=None if self.query_uncertainty is None else self.query_uncertainty[queries],
        )


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
    neighbours = search.nearest(queries, k=k, exclude=itself)
    return describe(queries, gallery, neighbours.index, gallery_labels=gallery_labels)


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
    vectors, items = query_vectors(score, queries).float(), gallery_vectors(score, gallery).float().T

    def rows_of(rows: Tensor) -> Tensor:
        scores = vectors[rows] @ items
        return scores.masked_fill_(labels[rows].unsqueeze(1) == gallery_labels, -torch.inf)

    shape = len(queries), len(gallery)
    neighbours: Neighbors = nearest_by(rows_of, shape, k=k, device=vectors.device)
    return describe(queries, gallery, neighbours.index, gallery_labels=gallery_labels)


def without_itself(hits: Hits, own: Tensor) -> Hits:
    """One hit less per query: its own row (n,) where that was found, the last one where not."""
    itself = hits.row == own.unsqueeze(1)
    missed = ~itself.any(1)
    itself[missed, -1] = True
    shape = (len(hits), hits.depth - 1)
    return hits.chosen(lambda value: value[~itself].view(shape))


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
        repeated = queries[torch.arange(start, start + len(some)).repeat_interleave(rows.shape[1])]
        distance[start : start + step] = repeated.expected_squared_distance(items).view_as(some)
        cosine[start : start + step] = (repeated.direction * items.direction).sum(-1).view_as(some)
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
            f"A search needs k of at least 1 and an item to find, got k = {k} of {available} items."
        )
    return min(k, available)
