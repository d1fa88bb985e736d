"""Looking up what a measure means by its name, and the order in which measures are shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from doubtless.metrics.metric import (
    CALIBRATION,
    CLUSTERING,
    ERRORS,
    METRICS,
    OOD,
    OPEN_SET,
    OTHER,
    RETRIEVAL,
    VERIFICATION,
    Meaning,
    Metric,
)

GROUPS = (RETRIEVAL, ERRORS, OOD, OPEN_SET, CALIBRATION, CLUSTERING, VERIFICATION)


def groups() -> list[str]:
    """The tables of a report in their order: ours, those that plugins add, and last what fits none.

    >>> groups()[0], groups()[-1]
    ('Retrieval', 'Further measures')
    """
    added = (metric.group for _, metric in METRICS.items() if metric.group != OTHER)
    return [*dict.fromkeys([*GROUPS, *added]), OTHER]


def metric_of(name: str) -> Metric[Any] | None:
    """The metric of a measure: ``map@r`` has its own, ``map@7`` that of ``map@``; None for an unknown one.

    >>> metric_of("map@7").name, metric_of("map@r").name, metric_of("something")
    ('map@', 'map@r', None)
    """
    base = name.partition("/")[0]
    stem, at, _ = base.partition("@")
    key = next((key for key in (base, stem + at) if key in METRICS), None)
    return None if key is None else METRICS.get(key)


def meaning(name: str) -> Meaning:
    """Looks up ``recall@5``, ``coverage@risk0.05`` or ``ood_auroc/digits``; an unknown measure explains nothing.

    >>> meaning("recall@5").sentence
    'Share of queries with a right image among the first 5.'
    >>> meaning("ood_fpr95/digits").title
    'OOD FPR95 · digits'
    """
    metric = metric_of(name)
    return Meaning(name, OTHER, "", None) if metric is None else metric.meaning(name)


def in_order(names: Iterable[str], group: str) -> list[str]:
    """The measures of one group in the order of their metrics; those that share one as they came.

    >>> in_order(["map@r", "nmi", "recall@5", "recall@1"], "Retrieval")
    ['recall@1', 'recall@5', 'map@r']
    """
    order = {key: place for place, key in enumerate(METRICS.names())}
    chosen = ((name, metric_of(name)) for name in names if meaning(name).group == group)
    places = {name: len(order) if metric is None else order[metric.name] for name, metric in chosen}
    return sorted(places, key=lambda name: places[name])


def better(name: str, first: float, second: float) -> bool:
    """Whether `first` is the better value of this measure.

    >>> better("recall@1", 0.9, 0.8), better("ood_fpr95/digits", 0.9, 0.8)
    (True, False)
    """
    return first < second if meaning(name).higher is False else first > second
