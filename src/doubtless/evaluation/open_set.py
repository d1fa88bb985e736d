"""A step of its own: some labels are left out of the gallery, and their queries ask for what is not there.

The labels are divided with a seed. Queries of labels that stay are searched as always, each without itself where
every item queries all others; queries of labels left out search the same, smaller gallery. Doubts from outside know
the whole gallery, so they are not measured here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.evaluation.options import GivenScores, OpenSetOptions
from doubtless.evaluation.setting import Setting, prepare
from doubtless.evaluation.steps import Intervals, Table
from doubtless.evaluation.uncertainties import (
    ORACLE,
    Uncertainties,
    ood_uncertainties,
    query_uncertainties,
)
from doubtless.metrics.measure import Curve
from doubtless.metrics.open_set import open_risk_curve, oscr_curve
from doubtless.metrics.views import FALSE_ALARMS, OpenSet
from doubtless.search.relevance import Positions

UNKNOWN = "unknown"


@dataclass(frozen=True, eq=False)
class DividedQueries:
    """What queries of labels that are in the gallery, and of labels that are not, found there."""

    known: Uncertainties  # name → (n,)
    correct: Tensor  # (n,) bool
    known_labels: Tensor  # (n,)
    unknown: Uncertainties  # name → (m,)
    unknown_labels: Tensor  # (m,)

    @property
    def counts(self) -> dict[str, int]:
        """How many queries and labels there are on either side."""
        return {
            "open_set_known": len(self.known_labels),
            "open_set_known_labels": len(self.known_labels.unique()),
            "open_set_unknown": len(self.unknown_labels),
            "open_set_unknown_labels": len(self.unknown_labels.unique()),
        }


def divide_labels(labels: Tensor, *, left_out: float, seed: int) -> tuple[Tensor, Tensor]:
    """The labels that stay and those left out, a share `left_out` of them, at least one of either; rising.

    >>> stay, leave = divide_labels(torch.tensor([3, 3, 5, 9, 9, 11]), left_out=0.5, seed=0)
    >>> len(stay), len(leave)
    (2, 2)
    """
    names = labels.unique()
    if len(names) < 2:
        raise InputError(f"An open set needs two labels in the gallery or more, got {len(names)}.")
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed)).to(names.device)
    out = min(max(round(left_out * len(names)), 1), len(names) - 1)
    return names[order[out:]].sort().values, names[order[:out]].sort().values


def divide_queries(setting: Setting, given: GivenScores, options: OpenSetOptions) -> DividedQueries:
    """Searches the gallery of the labels that stay. Queries of labels that no item ever had are unknown too."""
    labels, gallery_labels = setting.labels, setting.gallery_labels
    if isinstance(labels, Positions) or isinstance(gallery_labels, Positions):
        raise InputError("An open set leaves labels out of the gallery, and places have positions instead.")
    stay, _ = divide_labels(gallery_labels, left_out=options.left_out, seed=options.seed)
    is_known = torch.isin(labels, stay)
    asks, strange = is_known.nonzero().squeeze(1), (~is_known).nonzero().squeeze(1)
    kept = torch.isin(gallery_labels, stay).nonzero().squeeze(1)
    if not len(asks) or not len(strange):
        raise InputError(
            f"An open set needs queries of labels that stay in the gallery and of others, got {len(asks)} and "
            f"{len(strange)}; another seed divides the labels otherwise."
        )
    alone = setting.leave_one_out
    part = prepare(
        setting.embedding[asks],
        labels[asks],
        gallery=None if alone else setting.gallery[kept],
        gallery_labels=None if alone else gallery_labels[kept],
        ks=None,
        score=setting.search.score,
    )
    neighbors, scores = part.neighbors(), _part_of(given, asks, strange)
    found = query_uncertainties(part, neighbors, scores)
    rows = part.counted
    return DividedQueries(
        known={name: values[rows] for name, values in found.items()},
        correct=part.is_right(rows, neighbors.index[rows, 0]),
        known_labels=labels[asks][rows],
        unknown=ood_uncertainties(part, {UNKNOWN: setting.embedding[strange]}, scores)[UNKNOWN],
        unknown_labels=labels[strange],
    )


def open_set_measures(
    divided: DividedQueries, *, share: float, risks: Sequence[float], intervals: Intervals
) -> Table:
    """What each uncertainty knows of queries without a right answer, beside the errors of those that have one."""
    count = len(divided.unknown_labels)
    # a rate that stands for less than one query is one that allows none
    rates = tuple(rate for rate in FALSE_ALARMS if rate * count >= 1)
    return intervals.table(
        {
            source: OpenSet(
                divided.known[source],
                divided.correct,
                divided.unknown[source],
                divided.known_labels,
                divided.unknown_labels,
                share=share,
                risks=risks,
                false_alarms=rates,
            )
            for source in _shared(divided)
        }
    )


def open_set_curves(divided: DividedQueries, *, share: float) -> dict[str, dict[str, Curve]]:
    """OSCR and the risk of errors and unknowns together, one line per uncertainty, beside the oracle and chance."""
    wrong, strange = (~divided.correct).double(), divided.unknown_labels
    scores = {ORACLE: (wrong, torch.ones_like(strange, dtype=torch.double))}
    scores |= {source: (divided.known[source], divided.unknown[source]) for source in _shared(divided)}
    all_answered = share + (1 - share) * float(wrong.mean())
    risk = {"random": Curve([0.0, 1.0], [all_answered, all_answered])}
    ccr = {}
    for source, (known, unknown) in scores.items():
        risk[source] = open_risk_curve(known, divided.correct, unknown, share=share)
        ccr[source] = oscr_curve(known, divided.correct, unknown)
    return {"oscr": ccr, "open_risk": risk}


def _shared(divided: DividedQueries) -> list[str]:
    return [source for source in divided.known if source in divided.unknown]


def _part_of(given: GivenScores, asks: Tensor, strange: Tensor) -> GivenScores:
    """The uncertainty that came from outside, of either side; an item's own does not change with the gallery."""
    if given.uncertainty is None:
        return GivenScores()
    own = given.uncertainty.to(asks.device)
    return GivenScores(uncertainty=own[asks], ood_uncertainty={UNKNOWN: own[strange]})
