"""The combined doubt of an index, fitted on the queries that may be fitted on, and known to abstention."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.retrieval.calibrating import DoubtOf, Known
from doubtless.retrieval.doubt import Doubt
from doubtless.retrieval.novelty import Novelty
from doubtless.retrieval.signals import hit_signals, query_signals

if TYPE_CHECKING:
    from doubtless.retrieval.index import Index

MOST = 50_000
"""Items of a gallery among which the known ones of novelty are chosen."""


class DoubtFitter:
    """Fits a `Doubt` on some of the known queries of an index; `fitted` is the last one.

    What is not new is what the gallery holds: novelty is the distance to the nearest of its directions, the query's
    own left out (`own` (n,): its row in the index; None for queries from outside).
    """

    def __init__(
        self, index: Index, known: Known, queries: Embedding, own: Tensor | None, *, seed: int = 0
    ) -> None:
        self.known, self.queries = known, queries
        self.generator = torch.Generator().manual_seed(seed)
        rows = index.rows
        if len(rows) > MOST:
            rows = rows[torch.randperm(len(rows), generator=self.generator)[:MOST].sort().values]
        self.novelty = Novelty.fit(index.embedding(rows).direction, generator=self.generator)
        self.itself = None if own is None else _places(own, rows)
        self.fitted: Doubt | None = None

    def __call__(self, rows: Tensor) -> DoubtOf:
        """The doubt of any of the queries, fitted on those at `rows`."""
        asked = self.queries[rows]
        signals = hit_signals(self.known.hits[rows]) | query_signals(asked)
        signals["novelty"] = self.novelty.distance(asked.direction, exclude=self._own(rows)).double()
        self.fitted = doubt = Doubt.fit_signals(
            signals,
            ~self.known.right[rows, 0],
            groups=self.known.label[rows],
            novelty=self.novelty,
            generator=self.generator,
        )
        return lambda some: (
            doubt.of(self.known.hits[some], queries=self.queries[some], itself=self._own(some)).total
        )

    def _own(self, rows: Tensor) -> Tensor | None:
        return None if self.itself is None else self.itself[rows]


def _places(own: Tensor, rows: Tensor) -> Tensor:
    """Where each row (n,) stands among rising `rows`; −1 where it does not."""
    place = torch.searchsorted(rows, own).clamp_max(len(rows) - 1)
    return torch.where(rows[place] == own, place, -1)
