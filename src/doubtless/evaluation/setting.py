"""Who asks whom: queries, gallery and labels checked once, and the neighbours every metric looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.metrics.calibration import agreement
from doubtless.metrics.metric import values_of
from doubtless.metrics.uncertainty import DEPTH
from doubtless.metrics.views import Ranked, RankedToR
from doubtless.search.neighbors import SHALLOW, Neighbors
from doubtless.search.relevance import Positions, Truth, count_right, is_right
from doubtless.search.scores import ScoreName, Search

DEFAULT_KS = (1, 5, 10)


@dataclass(frozen=True)
class Setting:
    """One evaluation's data, checked, on one device."""

    embedding: Embedding
    labels: Truth  # (n,) labels, or positions
    gallery: Embedding
    gallery_labels: Truth  # (m,)
    leave_one_out: bool
    ks: tuple[int, ...]
    positives: Tensor  # (n,) R of each query
    search: Search

    @property
    def available(self) -> int:
        """Gallery items a query can find."""
        return len(self.gallery) - self.leave_one_out

    @property
    def counted(self) -> Tensor:
        """Positions of the queries that have a positive, (q,)."""
        return (self.positives > 0).nonzero().squeeze(1)

    @property
    def exclude(self) -> Tensor | None:
        """The gallery position each query must not find, (n,)."""
        return torch.arange(len(self.labels), device=self.labels.device) if self.leave_one_out else None

    @property
    def depth(self) -> int:
        """Neighbours of the one search: enough for every k, the free baselines and all smaller classes."""
        small = self.positives[self.positives <= SHALLOW]
        largest = int(small.max()) if len(small) else 1
        return min(self.available, max(*self.ks, DEPTH, largest))

    def neighbors(self) -> Neighbors:
        """The first neighbours of every query."""
        return self.search.nearest(self.embedding, k=self.depth, exclude=self.exclude)

    def is_right(self, rows: Tensor, items: Tensor) -> Tensor:
        """Whether gallery `items` (c, …) are right for query `rows` (c,)."""
        return is_right(self.labels, self.gallery_labels, rows=rows, found=items)

    def agreement(self, rows: Tensor, hits: Neighbors) -> tuple[Tensor, Tensor]:
        """What the draws' hits (samples, c) of query `rows` (c,) agree on: how many do (c,), is it right (c,)."""
        return agreement(self.labels, self.gallery_labels, rows=rows, hits=hits)

    def retrieval_values(self, neighbors: Neighbors) -> dict[str, Tensor]:
        """Every retrieval metric of every query that counts: name → (q,)."""
        rows = self.counted
        positives = self.positives[rows]
        relevant = self.is_right(rows, neighbors.index[rows])  # (q, depth)
        values = values_of(Ranked(relevant, positives, self.ks))
        reached = positives <= self.depth
        deep = (~reached).nonzero().squeeze(1)
        first = values_of(RankedToR(relevant[reached], positives[reached]))
        at_r = {name: value.new_empty(len(rows)) for name, value in first.items()}
        for name, value in first.items():
            at_r[name][reached] = value
        exclude = None if self.exclude is None else self.exclude[rows[deep]]
        queries = self.embedding[rows[deep]]
        for chunk, hits in self.search.ranked(queries, depth=positives[deep], exclude=exclude):
            place = deep[chunk]
            ranked = RankedToR(self.is_right(rows[place], hits.index), positives[place])
            for name, value in values_of(ranked).items():
                at_r[name][place] = value
        return values | at_r


def prepare(
    embedding: Embedding,
    labels: Truth,
    *,
    gallery: Embedding | None,
    gallery_labels: Truth | None,
    ks: Sequence[int] | None,
    score: ScoreName = "direction",
) -> Setting:
    """Checks what came from outside and counts positives."""
    embedding = embedding.detach()
    labels = _check_truth(labels, len(embedding), "labels").to(embedding.device)
    if (gallery is None) != (gallery_labels is None):
        raise InputError("A gallery needs gallery_labels, and gallery_labels a gallery; got one of the two.")
    alone = gallery is None or gallery_labels is None
    if gallery is None or gallery_labels is None:
        gallery, gallery_labels = embedding, labels
    else:
        gallery = gallery.detach().to(embedding.device)
        gallery_labels = _check_truth(gallery_labels, len(gallery), "gallery_labels").to(embedding.device)
        if isinstance(labels, Positions) != isinstance(gallery_labels, Positions):
            raise InputError("Queries and gallery must both have labels, or both positions.")
    if gallery.dim != embedding.dim:
        raise InputError(
            f"The queries have {embedding.dim} dimensions and the gallery {gallery.dim}; they must agree."
        )
    available = len(gallery) - alone
    if not len(embedding) or available < 1:
        raise InputError(
            f"There is nothing to find: {len(embedding)} queries and a gallery of {max(available, 0)} items."
        )
    positives = count_right(labels, gallery_labels, leave_one_out=alone)
    if not bool((positives > 0).any()):
        raise InputError(
            "No query has a positive in the gallery: no other item "
            + (
                f"lies within {labels.radius:g} m of any query."
                if isinstance(labels, Positions)
                else "carries any query's label."
            )
        )
    ks = _check_ks(ks, available)
    return Setting(embedding, labels, gallery, gallery_labels, alone, ks, positives, Search(score, gallery))


def _check_truth(truth: Truth, count: int, name: str) -> Truth:
    if isinstance(truth, Positions):
        if len(truth) != count:
            raise InputError(f"The {name} must be {count} positions, one per item, got {len(truth)}.")
        return truth
    return check_labels(truth, count, name)


def check_labels(labels: Tensor, count: int, name: str) -> Tensor:
    """Labels as integers (count,); anything else is refused."""
    if labels.is_floating_point() or labels.is_complex() or tuple(labels.shape) != (count,):
        raise InputError(
            f"The {name} must be integers of shape ({count},), one per item, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}."
        )
    return labels.detach().long()


def _check_ks(ks: Sequence[int] | None, available: int) -> tuple[int, ...]:
    if ks is None:
        return tuple(k for k in DEFAULT_KS if k <= available)
    if not ks or min(ks) < 1:
        raise InputError(f"The ks must be positive integers, got {tuple(ks)}.")
    if max(ks) > available:
        raise InputError(
            f"The k = {max(ks)} is larger than the gallery, in which a query can find {available} items; "
            f"accepted: 1 to {available}."
        )
    return tuple(sorted(set(ks)))
