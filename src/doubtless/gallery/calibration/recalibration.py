"""Calibrating a gallery again, at the cost of what changed in it.

Distribution, promise and covering sets are fitted on the kept queries as they find the gallery now
(`kept_searches.after_change`), some of them replaced by new items, so that they remain a sample of the gallery's.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from doubtless.calibration.fit import FEWEST
from doubtless.calibration.kept_searches import (
    Found,
    Items,
    KeptSearches,
    after_change,
    search_twice,
    some_of,
)
from doubtless.errors import InputError
from doubtless.gallery.calibration.calibrated import Calibrated
from doubtless.gallery.calibration.kept import Kept, Sketch
from doubtless.gallery.calibration.labels import MOST, fitted_on, items_of
from doubtless.gallery.label_doubt import oddness
from doubtless.index.base import Index

FITTED, FEWEST_FITTED, MOST_FITTED = 0.15, 400, 600
"""Share of the followed queries that distribution and promise are fitted on, so many at least and at most: a tenth
of a whole calibration's cost leaves time for no more."""
MOST_SAMPLED = 4_000
"""Items that the metric within labels is fitted on."""


def recalibrate(index: Index, *, seed: int = 0) -> dict[str, Any]:
    """Calibrates what was calibrated for an index anew and saves it; returns the record.

    Its `recalibrated` says what had changed, and how many queries were searched for anew or for the first time.
    """
    calibrated, terms = Calibrated.to_follow(index)
    kept = calibrated.kept
    if kept is None or terms is None:
        raise InputError(
            f"Of the calibration of {index.path} no queries were kept; use doubtless calibrate instead."
        )
    items = items_of(index)
    change = kept.sketch.change(items)
    queries, again = after_change(kept.searches, items, last=kept.sketch.last)
    queries, fresh = _with_new(queries, kept, items, index, calibrated, seed)
    known = len(queries.findable(items))
    if known < FEWEST:
        raise InputError(
            f"Of the kept queries {known} have a match in the gallery as it is now, and it takes {FEWEST}; use "
            "doubtless calibrate instead."
        )
    count = min(MOST_FITTED, max(FEWEST_FITTED, round(FITTED * len(queries))))
    some = some_of(torch.arange(len(queries)), count, seed)
    sample = items[some_of((items.label >= 0).nonzero().squeeze(1), MOST_SAMPLED, seed)]
    made = fitted_on(queries[some], items, terms, gallery=sample, seed=seed)
    about = {
        "queries": len(made.promise.outcomes.score) if made.promise is not None else 0,
        "items": len(items),
        "recalibrated": {"new": change.new, "gone": change.gone, "queries_searched": again + fresh},
    }
    renewed = replace(
        calibrated,
        distribution=made.distribution,
        promise=made.promise,
        covering=made.covering,
        kept=Kept(queries, Sketch.of(items)),
        record={**(calibrated.record or {}), **(made.record or {}), **about},
    )
    renewed.save(index)
    return dict(renewed.record or {})


def _with_new(
    queries: KeptSearches, kept: Kept, items: Items, index: Index, calibrated: Calibrated, seed: int
) -> tuple[KeptSearches, int]:
    """The queries with as large a share of new items as the gallery has, and how many these are."""
    if queries.outside is not None:
        return queries, 0
    labelled = (items.label >= 0).nonzero().squeeze(1)
    is_new = items.row[labelled] > kept.sketch.last
    new, old = labelled[is_new], labelled[~is_new]
    rate = min(1.0, MOST / max(1, len(labelled)))
    queries = queries[some_of(torch.arange(len(queries)), round(rate * len(old)), seed)]
    chosen = some_of(new, round(rate * len(new)), seed)
    if not len(chosen):
        return queries, 0
    rows, label = items.row[chosen], items.label[chosen]
    assert items.vectors is not None  # queries are kept of such galleries only
    vectors = items.vectors(rows)
    added = KeptSearches(
        rows,
        label,
        oddness(calibrated.doubt, index.embedding(rows), None).foreign,
        *search_twice(vectors, items, own=rows, label=label),
    )
    return _joined(queries, added), len(rows)


def _joined(one: KeptSearches, other: KeptSearches) -> KeptSearches:
    def both(first: Found, second: Found) -> Found:
        return Found(torch.cat([first.row, second.row]), torch.cat([first.score, second.score]))

    return KeptSearches(
        torch.cat([one.own, other.own]),
        torch.cat([one.label, other.label]),
        torch.cat([one.foreign, other.foreign]),
        both(one.present, other.present),
        both(one.absent, other.absent),
    )
