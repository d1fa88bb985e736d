"""Two conformal promises about a query: a set of hits that holds a true match, and a test that there is one.

*Covering sets* take as few of the first hits as contain a true match with probability at least 1 − α: split
conformal prediction over nested sets (Vovk et al. 2005; Gupta et al. 2022; the conformal risk control of
Angelopoulos et al. 2024 for the loss "no true match in the set"). Hits are taken in order until their evidence
−Σ log(1 − P) exceeds a level; a calibration query's score is the evidence *before* its first true match, and the
level for α is the ⌈(n + 1)(1 − α)⌉-th smallest score. α is chosen when answering: all levels are one sorted table.

*Presence* tests whether what a query shows is in the gallery at all, with a stated rate of false alarms. The
statistic is learned without any query from outside: every labelled query searches the gallery as it is, and once
more without its own class; a logistic regression tells the two apart. Its p-value is conformal: the share of
calibration queries *that are in the gallery* and look no more at home. Calling p ≤ level "not in the gallery" then
wrongs at most that share of queries that are in it, whatever the statistic is worth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from doubtless.calibration.features import NEIGHBORHOOD, hit_features, stacked
from doubtless.calibration.regression import Logistic
from doubtless.errors import InputError
from doubtless.logistic import cross_fit, folds_of
from doubtless.metrics.ood import auroc
from doubtless.search.hits import Hits

COVERING = "covering"
ALMOST_ONE = 1 - 1e-12


@dataclass(frozen=True, eq=False)
class CoveringSets:
    """Sorted calibration scores (n,); infinite for a query without a true match among its hits.

    >>> chance = torch.tensor([[0.9, 0.5], [0.6, 0.3]]).repeat(20, 1)
    >>> right = torch.tensor([[True, False], [False, True]]).repeat(20, 1)
    >>> sets = CoveringSets.fit(chance, right)
    >>> sets.sizes(chance[:2], confidence=0.9).tolist(), sets.sizes(chance[:2], confidence=0.4).tolist()
    ([1, 2], [1, 1])
    """

    score: Tensor

    @classmethod
    def fit(cls, probability: Tensor, right: Tensor) -> CoveringSets:
        """From match probabilities (n, k) and whether hits are right (n, k), of queries not fitted on before."""
        if probability.shape != right.shape or probability.dim() != 2:
            raise InputError(
                "Covering sets need probabilities and outcomes of shape (queries, k), got "
                f"{tuple(probability.shape)} and {tuple(right.shape)}."
            )
        down_to = evidence(probability)
        # Shifted, not subtracted: these must be the very numbers that `sizes` compares, ties included.
        before = torch.cat([torch.zeros_like(down_to[:, :1]), down_to[:, :-1]], dim=1)
        first = right.double().argmax(1, keepdim=True)
        score = before.gather(1, first).squeeze(1)
        return cls(torch.where(right.any(1), score, torch.inf).sort().values)

    @property
    def reach(self) -> float:
        """The largest confidence that the calibrated depth of hits can promise."""
        return float((self.score < torch.inf).sum()) / (len(self.score) + 1)

    def level(self, confidence: float) -> float:
        """The evidence a set must exceed; infinite where all hits together do not promise so much."""
        if not 0 < confidence < 1:
            raise InputError(f"The confidence of a covering set must lie between 0 and 1, got {confidence}.")
        # 1e-9: (n + 1) · 0.9 must be 9 for n = 9, whatever floating point makes of it
        place = math.ceil((len(self.score) + 1) * confidence - 1e-9)
        return float(self.score[place - 1]) if place <= len(self.score) else math.inf

    def sizes(self, probability: Tensor, *, confidence: float) -> Tensor:
        """Size (n,) of each set, from the hits' probabilities (n, k); 0: even all k promise less."""
        level = self.level(confidence)
        if level == math.inf:
            return torch.zeros(len(probability), dtype=torch.long)
        needed = 1 + (evidence(probability) <= level).sum(1)
        return needed.clamp_max(probability.shape[1])

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON for `Index.attach`."""
        return {"score": self.score}, {}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> CoveringSets:
        """The sets whose `state` this is."""
        return cls(tensors["score"])


def evidence(probability: Tensor) -> Tensor:
    """−Σ log(1 − P) of the hits down to each, (n, k): rises by every hit, and by a likely one most."""
    return _step(probability).cumsum(1)


def _step(probability: Tensor) -> Tensor:
    return -torch.log1p(-probability.double().clamp(0, ALMOST_ONE))


PRESENCE = "presence"
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

        A query that did not search again, or found nothing, has row −1 in `absent`.
        Whichever tells them apart better on queries it was not fitted on, all features or the similarity.
        """
        plain = cls(PLAIN, None, torch.empty(0, dtype=torch.double), {})
        if absent is None or not bool(absent.found[:, 0].any()):
            return plain
        again = absent.found[:, 0].nonzero().squeeze(1)
        absent = absent[again]
        names = tuple(name for name in hit_features(present) if name not in OF_LATER_HITS)
        inside, outside = (_front(hits, names) for hits in (present, absent))
        query = torch.cat([torch.arange(len(inside)), again])
        if _auroc_on_unseen(inside, outside, query) <= auroc(
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
            raise InputError(f"The false_alarm must lie between 0 and 1, got {false_alarm}.")
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
        """The share of queries in the gallery that may be called absent."""
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
        """Tensors and JSON for `Index.attach`."""
        tensors = {"score": self.score} | (
            {} if self.logistic is None else self.logistic.tensors("logistic.")
        )
        return tensors, {"names": list(self.names), "calibration": dict(self.record)}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> Presence:
        """The test whose `state` this is."""
        learned = "logistic.weight" in tensors
        logistic = Logistic.from_tensors(tensors, "logistic.") if learned else None
        return cls(tuple(record["names"]), logistic, tensors["score"], record["calibration"])


def _front(hits: Hits, names: Sequence[str]) -> Tensor:
    """Features (n, F) of first hits, which look at their neighbourhood only."""
    features = hit_features(hits.first(NEIGHBORHOOD))
    return stacked({name: value[:, 0] for name, value in features.items()}, names)


def _auroc_on_unseen(inside: Tensor, outside: Tensor, query: Tensor) -> float:
    """AUROC of the logistic regression on folds it was not fitted on; `query` is whose rows these are."""
    rows, truth = torch.cat([inside, outside]), torch.arange(len(inside) + len(outside)) < len(inside)
    odds = cross_fit(rows, folds_of(query), lambda seen: Logistic.fit(rows[seen], truth[seen]))
    return auroc(-odds[truth], -odds[~truth])
