"""Calibrating an index: on its own labelled items, each of them left out, or on labelled queries from outside.

The combined doubt of an index, fitted on the queries that may be fitted on, and known to abstention.

Features before the head of an index's own items, from their images: what is not new to this gallery.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from doubtless.calibration.calibrator import Calibrator
from doubtless.calibration.features import DEPTH
from doubtless.calibration.fit import DEFAULT, DoubtOf, Known, Targets, calibrate, trial
from doubtless.calibration.pairs import ATTACHMENT as PAIRS
from doubtless.calibration.pairs import PairCalibrator
from doubtless.calibration.risk import RiskControl
from doubtless.data import Progress
from doubtless.doubt.doubt import ATTACHMENT as DOUBT
from doubtless.doubt.doubt import Doubt
from doubtless.doubt.novelty import Novelty
from doubtless.doubt.signals import hit_signals, query_signals
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery.answerer import Answering
from doubtless.search.hits import Hits, hits_without_class

if TYPE_CHECKING:
    from doubtless.index.base import Index
    from doubtless.runs.model import Model


MOST = 20_000
"""Queries an index is calibrated with at most; more would sharpen nothing that can be seen."""
MOST_ABSENT = 4_000
"""Queries that search the gallery once more without their class: each looks at every item."""
MOST_NUMBERS = 200_000_000
"""Numbers of a gallery that are looked at in memory for that; beyond, presence goes by similarity alone."""


def calibrate_index(
    index: Index,
    targets: Targets = DEFAULT,
    *,
    queries: Embedding | None = None,
    labels: list[str] | None = None,
    combined: bool = True,
    features_of: FeaturesOf | None = None,
    most: int = MOST,
    seed: int = 0,
) -> dict[str, Any]:
    """Calibrates and saves match probability, abstention, covering sets, presence and pairs; returns the record.

    queries, labels   from outside; None: the index's own labelled items search all others
    combined          fits and saves the combined doubt, and abstains by it; else by 1 − P(first hit right)
    features_of       features before the head of items' images (`doubtless.gallery.calibration`), by which the
                      combined doubt then tells what is new; None: directions serve
    most              queries used, drawn at random with `seed` where there are more
    """
    known, counts, embedding, own = calibration_queries(
        index, queries=queries, labels=labels, most=most, seed=seed
    )
    fitter = (
        DoubtFitter(index, known, embedding, own, features_of=features_of, seed=seed) if combined else None
    )
    made = calibrate(known, targets, fit_doubt=fitter, seed=seed)
    pairs = PairCalibrator.fit(embedding, known.label) if _can_pair(known.label) else None
    disjoint = made.calibrator.record.get("class_disjoint", {})
    record = {
        **counts,
        "items": len(index),
        "method": made.calibrator.first.method,
        "features": list(made.calibrator.first.names),
        "exchangeable": made.calibrator.record["exchangeable"]
        | trial(known, targets, by_class=False, seed=seed),
        "class_disjoint": disjoint | trial(known, targets, by_class=True, seed=seed),
        "abstention": _abstention(made.risk),
        "covering_reach": made.covering.reach,
        "presence": dict(made.presence.record),
        "pairs": None if pairs is None else dict(pairs.record),
    }
    if fitter is not None and fitter.fitted is not None:
        record["novelty_of"] = fitter.fitted.record["novelty_of"]
    answering = Answering.of(made, record)
    answering.save(index)
    if fitter is not None and fitter.fitted is not None:
        index.attach(DOUBT, *fitter.fitted.state())
    if pairs is not None:
        index.attach(PAIRS, *pairs.state())
    return dict(answering.about or {})


def calibrate_index_on_pairs(index: Index, first: Tensor, second: Tensor, same: Tensor) -> dict[str, Any]:
    """Match probability from pairs of rows of the index, known to be the same or not (n,); nothing else.

    A pair says nothing of what a query finds, so abstention, covering sets and presence stay uncalibrated.
    """
    left, right = index.embedding(first), index.embedding(second)
    calibrator = Calibrator.fit_pairs(left, right, same)
    pairs = PairCalibrator.fit_pairs(left, right, same)
    record = {"items": len(index), "method": calibrator.first.method, **calibrator.record}
    record["features"] = list(calibrator.first.names)
    Answering(calibrator=calibrator, about=record).save(index)
    index.attach(PAIRS, *pairs.state())
    return record


def calibration_queries(
    index: Index,
    *,
    queries: Embedding | None = None,
    labels: list[str] | None = None,
    most: int = MOST,
    seed: int = 0,
) -> tuple[Known, dict[str, int], Embedding, Tensor | None]:
    """Queries with a true match in the index, what was left out, their embedding, and their rows in the index."""
    if (queries is None) != (labels is None):
        raise InputError("queries to calibrate on need their labels; got one of the two.")
    codes = index.labels
    if not bool((codes >= 0).any()):
        raise InputError("the index has no labels to calibrate on; add them, or calibrate on pairs.")
    alone = queries is None
    if queries is None or labels is None:
        chosen = _some((codes >= 0).nonzero().squeeze(1), most, seed)
        own, label = index.rows[chosen], codes[chosen]
        queries = index.embedding(own)
    else:
        code_of = {name: code for code, name in enumerate(index.label_names)}
        everything = torch.tensor([code_of.get(name, -1) for name in labels])
        chosen = _some(torch.arange(len(queries)), most, seed)
        queries, label, own = queries[chosen], everything[chosen], None
    counted = codes[codes >= 0].bincount(minlength=int(label.max()) + 1)
    matches = torch.where(label >= 0, counted[label.clamp_min(0)], 0) - int(alone)
    there = (matches > 0).nonzero().squeeze(1)
    counts = {"queries": len(there), "without_positive": len(label) - len(there)}
    if not len(there):
        raise InputError("no query has a true match in the index: no other item carries any query's label.")
    queries, label, own = queries[there], label[there], None if own is None else own[there]
    hits = _searched(index, queries, own)
    return Known(hits, label, _absent(index, queries, label, seed)), counts, queries, own


def _searched(index: Index, queries: Embedding, own: Tensor | None) -> Hits:
    """The first hits of every query, its own row (n,) taken out and the next one moved up."""
    if own is None:
        return index.search(queries, DEPTH)
    hits = index.search(queries, DEPTH + 1)
    return without_itself(hits, own)


def without_itself(hits: Hits, own: Tensor) -> Hits:
    """One hit less a query: its own row (n,) where that was found, the last one where not."""
    itself = hits.row == own.unsqueeze(1)
    missed = ~itself.any(1)
    itself[missed, -1] = True
    shape = (len(hits), hits.depth - 1)
    return hits.chosen(lambda value: value[~itself].view(shape))


def _absent(index: Index, queries: Embedding, label: Tensor, seed: int) -> Hits | None:
    """Some of the queries in the gallery without their class; row −1 for those that were not asked.

    None where nothing would be left to find, or the gallery is too large to be looked at in memory.
    """
    codes = index.labels
    if len(codes) * index.dim > MOST_NUMBERS or int((codes >= 0).sum()) == int((codes == label[0]).sum()):
        return None
    some = _some(torch.arange(len(label)), MOST_ABSENT, seed)
    score = index.settings.score
    found = hits_without_class(queries[some], label[some], index.embedding(), codes, k=DEPTH, score=score)

    def spread(value: Tensor | None, nothing: float) -> Tensor | None:
        if value is None:
            return None
        whole = value.new_full((len(label), found.depth), nothing)
        whole[some] = value
        return whole

    row, cosine = spread(found.row, -1), spread(found.score, -torch.inf)
    distance = spread(found.expected_squared_distance, torch.inf)
    assert row is not None
    assert cosine is not None
    assert distance is not None
    return Hits(
        row,
        cosine,
        distance,
        label=spread(found.label, -1),
        uncertainty=spread(found.uncertainty, torch.inf),
        query_uncertainty=queries.uncertainty,
    )


def _abstention(control: RiskControl) -> dict[str, Any]:
    names = (
        "target_error",
        "confidence",
        "met",
        "coverage",
        "error",
        "bound",
        "reachable_error",
        "reachable_coverage",
        "queries",
    )
    return {name: getattr(control, name) for name in names} | {"sentence": control.sentence()}


def _some(rows: Tensor, most: int, seed: int) -> Tensor:
    """At most so many of the rows, in their order."""
    if len(rows) <= most:
        return rows
    drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:most]
    return rows[drawn.sort().values]


def _can_pair(label: Tensor) -> bool:
    sizes = label.unique(return_counts=True)[1]
    return len(sizes) > 1 and bool((sizes > 1).any())


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
    those of features before the head, else of directions.
    """

    def __init__(
        self,
        index: Index,
        known: Known,
        queries: Embedding,
        own: Tensor | None,
        *,
        features_of: FeaturesOf | None = None,
        seed: int = 0,
    ) -> None:
        self.known, self.queries = known, queries
        self.generator = torch.Generator().manual_seed(seed)
        seen = features_of is not None and own is not None
        rows, most = index.rows, MOST_IMAGES if seen else MOST_ITEMS
        if len(rows) > most:
            rows = rows[torch.randperm(len(rows), generator=self.generator)[:most].sort().values]
        self.itself = None if own is None else _places(own, rows)
        self.features = None
        if seen:
            assert features_of is not None
            assert own is not None
            self.features = features_of(own)  # (queries, F)
            reference = _joined(rows, own, self.features, features_of)
        else:
            reference = index.embedding(rows).direction
        self.novelty = Novelty.fit(reference, generator=self.generator)
        self.fitted: Doubt | None = None

    def __call__(self, rows: Tensor) -> DoubtOf:
        """The doubt of any of the queries, fitted on those at `rows`."""
        asked = self.queries[rows]
        signals = hit_signals(self.known.hits[rows]) | query_signals(asked)
        own = asked.direction if self.features is None else self.features[rows]
        signals["novelty"] = self.novelty.distance(own, exclude=self._own(rows)).double()
        made = Doubt.fit_signals(
            signals,
            ~self.known.right[rows, 0],
            groups=self.known.label[rows],
            novelty=self.novelty,
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


def _places(own: Tensor, rows: Tensor) -> Tensor:
    """Where each row (n,) stands among rising `rows`; −1 where it does not."""
    place = torch.searchsorted(rows, own).clamp_max(len(rows) - 1)
    return torch.where(rows[place] == own, place, -1)


LOOKED_AT = 1_000


class ItemFeatures:
    """Looks at the images of items again.

    >>> calibrate_index(index, features_of=ItemFeatures(index, model))         # doctest: +SKIP
    """

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
        return self.model.embed_with_features(files, progress=self.progress)[1]


def images_are_there(index: Index) -> bool:
    """Whether items name image files that can be found; at most `LOOKED_AT` are asked, spread over the index."""
    rows = index.rows
    some = index.items(rows[:: max(1, len(rows) // LOOKED_AT)])
    return bool(some) and all(item.path is not None and Path(item.path).is_file() for item in some)
