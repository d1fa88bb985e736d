"""Is what was asked for in the gallery at all? A test with a stated rate of false alarms.

The statistic is learned without any stranger: every labelled query searches the gallery as it is, and once more
without its own class; a logistic regression tells the two apart. Its p-value is conformal: the share of
calibration queries *that are in the gallery* and look no more at home. Calling p ≤ level "not in the gallery"
then wrongs at most that share of queries that are in it, whatever the statistic is worth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.evaluation.ood import auroc
from doubtless.retrieval.hits import Hits
from doubtless.retrieval.logistic import Logistic
from doubtless.retrieval.match_features import NEIGHBORHOOD, hit_features, stacked
from doubtless.retrieval.probability import folds_of

PART = "presence"
FALSE_ALARM = 0.05
PLAIN = ("similarity",)
OF_LATER_HITS = ("behind", "rank")


@dataclass(frozen=True, eq=False)
class Presence:
    """p-values of "this query's match is in the gallery".

    >>> near, far = torch.linspace(0.8, 1, 50), torch.linspace(0, 0.3, 50)
    >>> def hits(score):
    ...     return Hits(torch.zeros(50, 1).long(), score.view(-1, 1), 2 - 2 * score.view(-1, 1))
    >>> test = Presence.fit(hits(near), hits(far)).calibrated(hits(near), hits(far))
    >>> bool((test.p_value(hits(far)) < 0.05).all()), round(test.record["detected"], 2)
    (True, 1.0)
    """

    names: tuple[str, ...]
    logistic: Logistic | None
    """None: the similarity of the first hit."""
    score: Tensor
    """(m,) rising: of calibration queries that are in the gallery; empty before `calibrated`."""
    record: Mapping[str, Any]

    @classmethod
    def fit(cls, present: Hits, absent: Hits | None = None) -> Presence:
        """Learns the statistic from the hits of queries, and of the same ones without their class, row by row.

        A query that was not asked again, or found nothing, has row −1 in `absent`.
        Whichever tells them apart better on queries it was not fitted on, all features or the similarity.
        """
        plain = cls(PLAIN, None, torch.empty(0, dtype=torch.double), {})
        asked = None if absent is None else absent.found[:, 0].nonzero().squeeze(1)
        if absent is None or asked is None or not len(asked):
            return plain
        absent = absent[asked]
        names = tuple(name for name in hit_features(present) if name not in OF_LATER_HITS)
        inside, outside = (_front(hits, names) for hits in (present, absent))
        query = torch.cat([torch.arange(len(inside)), asked])
        if _told_apart(inside, outside, query) <= auroc(
            -_front(present, PLAIN)[:, 0], -_front(absent, PLAIN)[:, 0]
        ):
            return plain
        rows, truth = torch.cat([inside, outside]), torch.arange(len(inside) + len(outside)) < len(inside)
        return cls(names, Logistic.fit(rows, truth), plain.score, {})

    def calibrated(
        self, present: Hits, absent: Hits | None = None, *, false_alarm: float = FALSE_ALARM
    ) -> Presence:
        """With p-values from other queries that are in the gallery; says what of the absent would be noticed."""
        if not 0 < false_alarm < 1:
            raise InputError(f"false_alarm must lie between 0 and 1, got {false_alarm}.")
        ready = Presence(self.names, self.logistic, self.statistic(present).sort().values, {})
        record: dict[str, Any] = {"false_alarm": false_alarm, "queries": len(present)}
        if absent is not None and bool(absent.found[:, 0].any()):
            absent = absent[absent.found[:, 0]]
            noticed = ready.p_value(absent) <= false_alarm
            record["detected"] = float(noticed.double().mean())
            record["auroc"] = auroc(-self.statistic(present), -self.statistic(absent))
        return Presence(self.names, self.logistic, ready.score, record)

    @property
    def false_alarm(self) -> float:
        return float(self.record["false_alarm"])

    def statistic(self, hits: Hits) -> Tensor:
        """(n,) higher: more at home in the gallery; −inf for a query that found nothing."""
        front = _front(hits, self.names)
        value = front[:, 0] if self.logistic is None else self.logistic(front)
        return value.masked_fill(~hits.found[:, 0], -torch.inf)

    def p_value(self, hits: Hits) -> Tensor:
        """(n,): at most u with probability at most u, for queries that are in the gallery."""
        below = torch.searchsorted(self.score, self.statistic(hits), right=True)
        return (below + 1).double() / (len(self.score) + 1)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON for `Index.save_part`."""
        tensors = {"score": self.score} | (
            {} if self.logistic is None else self.logistic.tensors("logistic.")
        )
        return tensors, {"names": list(self.names), "calibration": dict(self.record)}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> Presence:
        learned = "logistic.weight" in tensors
        logistic = Logistic.from_tensors(tensors, "logistic.") if learned else None
        return cls(tuple(record["names"]), logistic, tensors["score"], record["calibration"])


def _front(hits: Hits, names: Sequence[str]) -> Tensor:
    """Features (n, F) of first hits, which look at their neighbourhood only."""
    features = hit_features(hits.first(NEIGHBORHOOD))
    return stacked({name: value[:, 0] for name, value in features.items()}, names)


def _told_apart(inside: Tensor, outside: Tensor, query: Tensor) -> float:
    """AUROC of the logistic regression on folds it was not fitted on; `query` is whose rows these are."""
    rows, truth = torch.cat([inside, outside]), torch.arange(len(inside) + len(outside)) < len(inside)
    fold, odds = folds_of(query), torch.zeros(len(rows), dtype=torch.double)
    for number in fold.unique().tolist():
        held = fold == number
        odds[held] = Logistic.fit(rows[~held], truth[~held])(rows[held])
    return auroc(-odds[truth], -odds[~truth])
