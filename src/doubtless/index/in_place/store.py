"""`Store`: the little that somebody's own vectors must be able to do to be asked, and how its results are read.

class Mine:
    def search(self, vectors, k, where=None):      # (n, D) float32 of unit length
        return ids, scores, labels                 # n lists of up to k each, best first
    def fetch(self, ids):                          # optional
        return vectors, labels                     # (m, D); a row of NaN for what is not there
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, get_args, runtime_checkable

import numpy as np

from doubtless.errors import InputError, nearest
from doubtless.index.filters import Where
from doubtless.index.forms import Floats

Metric = Literal["cosine", "cosine-distance", "euclidean", "squared-euclidean"]
"""What the scores of a store are. Inner products of vectors of unit length are cosines."""
BEYOND = 1e-3
"""By how much a cosine may lie outside of [−1, 1]: stores round, some to half precision."""


@runtime_checkable
class Store(Protocol):
    """Vectors of somebody's own, with ids and labels."""

    def search(self, vectors: Floats, k: int, where: Where | None = None) -> tuple[Any, Any, Any]:
        """Ids, scores and labels (n, k) of the best for queries (n, D) of unit length, best first.

        Arrays or lists, which may be shorter than k; an id None is no item, a label None an item without one.
        `where` is what `Gallery.ask` was given: whatever the store makes of it.
        """


class Found(NamedTuple):
    """What a store found, as it is used: n lists of ids and labels, and cosines (n, k), −inf for nothing."""

    ids: list[list[str]]
    labels: list[list[str | None]]
    cosine: Floats


def check_metric(metric: str) -> None:
    """Refuses what no store's scores are."""
    if metric not in get_args(Metric):
        raise InputError(f"There is no metric {metric!r} of a store{nearest(metric, get_args(Metric))}")


def has_fetch(store: object) -> bool:
    """Whether a store gives vectors back."""
    return callable(getattr(store, "fetch", None))


def found_by(store: Store, vectors: Floats, k: int, where: Where | None, *, metric: Metric) -> Found:
    """Searches a store; results that cannot be are refused."""
    result = store.search(vectors, k, where)
    if not (isinstance(result, tuple) and len(result) == 3):
        raise InputError(f"A store's search gives ids, scores and labels, got a {type(result).__name__}.")
    if any(len(part) != len(vectors) for part in result):
        raise InputError(
            f"A store's search gives one list per query; got {[len(part) for part in result]} for "
            f"{len(vectors)} queries."
        )
    cosine = np.full((len(vectors), k), -np.inf, dtype=np.float32)
    ids, labels = list[list[str]](), list[list[str | None]]()
    for place, (names, scores, shown) in enumerate(zip(*result, strict=True)):
        own, score, label = _one(list(names), scores, list(shown), k, metric)
        cosine[place, : len(own)] = score
        ids.append(own)
        labels.append(label)
    return Found(ids, labels, cosine)


def fetched(store: object, ids: Sequence[str], *, dim: int) -> tuple[Floats, list[str | None]]:
    """Vectors (m, D) and labels of items; NaN where there is nothing."""
    vectors, labels = store.fetch(list(ids))  # type: ignore[attr-defined]
    vectors = np.asarray(vectors, dtype=np.float32)
    if vectors.shape != (len(ids), dim) or len(labels) != len(ids):
        raise InputError(
            f"A store's fetch gives vectors ({len(ids)}, {dim}) and as many labels, got {vectors.shape} and "
            f"{len(labels)} labels."
        )
    return vectors, [None if label is None else str(label) for label in labels]


def _one(
    ids: list[Any], scores: Any, labels: list[Any], k: int, metric: Metric
) -> tuple[list[str], Floats, list[str | None]]:
    """What one query found, best first."""
    given = np.asarray(scores, dtype=np.float64)
    if given.shape != (len(ids),) or len(labels) != len(ids) or len(ids) > k:
        raise InputError(
            f"A store's search gives up to k = {k} ids and as many scores and labels per query, got {len(ids)} "
            f"ids, {given.size} scores and {len(labels)} labels."
        )
    there = [place for place, name in enumerate(ids) if name is not None]
    cosine = _cosines(given[there], metric)
    if not np.isfinite(cosine).all() or (np.abs(cosine) > 1 + BEYOND).any():
        odd = given[there][~(np.abs(cosine) <= 1 + BEYOND)][0]
        raise InputError(
            f"A store whose scores are of the metric {metric!r} gave {odd:g}, which is none of vectors of unit "
            "length; normalise the vectors, or name the metric that it has."
        )
    order = np.argsort(-cosine, kind="stable")
    best = [there[place] for place in order]
    shown = [None if labels[place] is None else str(labels[place]) for place in best]
    return [str(ids[place]) for place in best], np.clip(cosine[order], -1, 1).astype(np.float32), shown


def _cosines(scores: Any, metric: Metric) -> Any:
    """Scores (k,) as cosines: ‖x − y‖² = 2 − 2 cos for vectors of unit length."""
    if metric == "cosine":
        return scores
    if metric == "cosine-distance":
        return 1 - scores
    return 1 - (scores if metric == "squared-euclidean" else scores**2) / 2
