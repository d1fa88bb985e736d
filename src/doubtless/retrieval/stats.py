"""What an index says about itself: counts, sizes, and how much its approximate search misses."""

from __future__ import annotations

from typing import Any

import numpy as np

from doubtless.retrieval import searching
from doubtless.retrieval.approximate import DEPTH, SAMPLE, recall_of
from doubtless.retrieval.store import Store
from doubtless.retrieval.stored_form import Integers, unpacked
from doubtless.retrieval.vector_cache import VectorCache


def statistics(store: Store, cache: VectorCache) -> dict[str, Any]:
    """Inside one reading transaction, with the cache brought to it."""
    state, settings = store.state(), cache.settings
    searched_by = "flat" if cache.approximate is None else cache.approximate.recipe.kind
    return {
        **{key: value for key, value in settings.record().items() if key != "identity"},
        "items": state.items,
        "labels": len(store.label_names()),
        "removed": store.removed_count(),
        "parts": store.parts(),
        "bytes": sum(file.stat().st_size for file in store.folder.rglob("*") if file.is_file()),
        "searched_by": searched_by,
        "recall@10": measured_recall(store, cache),
    }


def measured_recall(store: Store, cache: VectorCache) -> float:
    """Share of the ten nearest others of some stored items that a search finds; 1 where it looks at everything."""
    live = np.flatnonzero(cache.alive)
    if cache.approximate is None or not len(live):
        return 1.0
    chosen = np.unique(live[np.linspace(0, len(live) - 1, min(SAMPLE, len(live))).astype(np.int64)])
    rows = cache.items["row"][chosen]
    distributions = unpacked(store.chosen(rows.tolist()).numbers, cache.settings)
    score = cache.settings.ranking_score
    queries = searching.Queries.of(distributions, cache.settings, score)

    def found(*, exact: bool) -> Integers:
        hits = searching.search(cache, queries, DEPTH + 1, score=score, exact=exact)
        return np.asarray(hits.row.numpy())

    return recall_of(found(exact=False), found(exact=True), rows)
