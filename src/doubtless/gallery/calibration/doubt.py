"""The combined doubt of a gallery, fitted on the queries that may be fitted on, and known to abstention.

What is not new is what the gallery holds: features before the head of its own items' images, or their directions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from doubtless.calibration.fit import DoubtOf, Known
from doubtless.doubt.doubt import Doubt
from doubtless.doubt.leverage import Leverage
from doubtless.doubt.novelty import Novelty
from doubtless.doubt.signals import hit_signals, query_signals
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.index.base import Index

if TYPE_CHECKING:
    from doubtless.data import Progress
    from doubtless.runs.model import Model

MOST_ITEMS = 50_000
"""Items of a gallery among which the known ones of novelty are chosen."""
MOST_IMAGES = 10_000
"""The same where their images must be looked at again."""

FeaturesOf = Callable[[Tensor], Tensor]
"""Rows of an index (n,) → features (n, F) of their images before the head."""


class DoubtFitter:
    """Fits a `Doubt` on some of the known queries of an index; `fitted` is the last one.

    What is not new is what the gallery holds: novelty is the distance to the nearest of its items, the query's own
    left out (`own` (n,): its row in the index; None for queries from outside). With `features_of` distances are
    those of features before the head, else of directions. With `leverage` the space that all of the gallery's
    directions fill is looked at as well.
    """

    def __init__(
        self,
        index: Index,
        known: Known,
        queries: Embedding,
        own: Tensor | None,
        *,
        features_of: FeaturesOf | None = None,
        leverage: bool = False,
        seed: int = 0,
    ) -> None:
        """Prepares what novelty is measured against; `queries` are the known queries' embeddings."""
        self.known, self.queries = known, queries
        self.generator = torch.Generator().manual_seed(seed)
        seen = features_of is not None and own is not None
        rows, most = index.rows, MOST_IMAGES if seen else MOST_ITEMS
        if len(rows) > most:
            rows = rows[torch.randperm(len(rows), generator=self.generator)[:most].sort().values]
        self.itself = None if own is None else places_among(own, rows)
        self.features = None
        if seen:
            assert features_of is not None
            assert own is not None
            self.features = features_of(own)  # (queries, F)
            reference = _joined(rows, own, self.features, features_of)
        else:
            reference = index.embedding(rows).direction
        self.novelty = Novelty.fit(reference, generator=self.generator)
        self.leverage = Leverage(index.moments()) if leverage else None
        self.fitted: Doubt | None = None

    def fitted_on(self, rows: Tensor) -> Doubt:
        """The doubt fitted on the queries at `rows`."""
        self(rows)
        assert self.fitted is not None
        return self.fitted

    def __call__(self, rows: Tensor) -> DoubtOf:
        """The doubt of any of the queries, fitted on those at `rows`."""
        asked = self.queries[rows]
        signals = hit_signals(self.known.hits[rows]) | query_signals(asked)
        own = asked.direction if self.features is None else self.features[rows]
        signals["novelty"] = self.novelty.distance(own, exclude=self._own(rows)).double()
        if self.leverage is not None:
            signals["leverage"] = self.leverage.of(asked.direction, own=self.itself is not None)
        made = Doubt.fit_signals(
            signals,
            ~self.known.right[rows, 0],
            groups=self.known.label[rows],
            novelty=self.novelty,
            leverage=self.leverage,
            generator=self.generator,
        )
        seen = {"novelty_of": "directions" if self.features is None else "features"}
        self.fitted = doubt = replace(made, record={**made.record, **seen})
        return lambda some: (
            doubt.of(
                self.known.hits[some],
                None if self.features is None else self.features[some],
                queries=self.queries[some],
                itself=self._own(some),
            ).total
        )

    def _own(self, rows: Tensor) -> Tensor | None:
        return None if self.itself is None else self.itself[rows]


def _joined(rows: Tensor, own: Tensor, features: Tensor, features_of: FeaturesOf) -> Tensor:
    """Features (m, F) of the items at rising `rows`; those of the queries are at hand."""
    place = {int(row): number for number, row in enumerate(own)}
    at_hand = torch.tensor([place.get(int(row), -1) for row in rows])
    whole = features.new_empty(len(rows), features.shape[1])
    whole[at_hand >= 0] = features[at_hand[at_hand >= 0]]
    if bool((at_hand < 0).any()):
        whole[at_hand < 0] = features_of(rows[at_hand < 0])
    return whole


def places_among(own: Tensor, rows: Tensor) -> Tensor:
    """Where each row (n,) stands among rising `rows`; −1 where it does not."""
    place = torch.searchsorted(rows, own).clamp_max(len(rows) - 1)
    return torch.where(rows[place] == own, place, -1)


LOOKED_AT = 1_000


class ItemFeatures:
    """Looks at the images of items again: rows of an index to features of their images."""

    def __init__(self, index: Index, model: Model, *, progress: Progress | None = None) -> None:
        self.index, self.model, self.progress = index, model, progress

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, F) of the items at rows."""
        paths = [item.path for item in self.index.items(rows)]
        if missing := [path for path in paths if path is None or not Path(path).is_file()]:
            raise InputError(
                f"{len(missing)} of {len(paths)} items have no image file, {missing[0]} for one."
            )
        files = [Path(path) for path in paths if path is not None]
        return self.model.describe(files, progress=self.progress).features


def images_are_there(index: Index) -> bool:
    """Whether items name image files that can be found; at most `LOOKED_AT` are asked, spread over the index."""
    rows = index.rows
    some = index.items(rows[:: max(1, len(rows) // LOOKED_AT)])
    return bool(some) and all(item.path is not None and Path(item.path).is_file() for item in some)
