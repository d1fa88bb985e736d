"""`Promise`: how sure a query must be to be answered, so that few answers are wrong though some have no label here.

Thresholds are tested from stricter to looser ones (learn then test, Angelopoulos et al. 2021), each by a test that
the share R of wrong answers (`open_risk`) is at most the target; the first that fails ends the sequence, so the one
that is reached breaks the promise with probability 1 − confidence at most. Very strict thresholds answer too few
queries to show anything, so the main sequence starts a little less than half way, in ratio, from the strictest one
that would pass if every answer were right to answering everything; two with small shares start earlier, for scores
that are right only where they are surest, and at answering everything. Each start brings its share of
1 − confidence, and a sequence that arrives at the next adds that one's share to its own (Bretz et al. 2009). None
of this looks at what was right, so no queries are set aside to choose a start.

Where the target cannot be met, each start has tested larger targets before, from 1 downwards, at its own share; the
least that passed is promised instead, under the same probability.

What it rests on. Queries to come are like the calibration queries: known ones like the gallery's items searched
without themselves (one photo fewer than a query will find, which errs to the safe side where more photos help),
unknown ones like items searched without their label (one label fewer, so a little less to be mistaken for, which
matters with few labels); unknown labels are like the gallery's; the share of unknown queries is at most the stated
one; scores were not fitted on these queries. `Terms.known` says whose labels are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from doubtless.calibration.betting import Array
from doubtless.calibration.open_risk import OpenRisk, Terms
from doubtless.calibration.outcomes import Outcomes
from doubtless.calibration.outlook import Outlook, Starts, outlook
from doubtless.metrics.measure import Curve

ATTACHMENT = "promise"
STARTS = (0.15, 0.4, 1.0)
"""Where sequences begin: powers that lead from the least coverage that can be shown to all of it."""
SHARES = (0.1, 0.8, 0.1)
LATEST = 0.25
"""Coverage that starts are counted from, at most: strict ones show what can be promised in the target's place."""
LARGER_TARGETS = 60
WORST = 0.25
"""Where what was asked cannot be promised, a larger share of wrong answers is, up to this one; beyond, none."""


@dataclass(frozen=True, eq=False)
class Promise:
    """Answer queries whose score is at least `threshold`; never one of −inf.

    >>> score = torch.linspace(1, 0, 4000)
    >>> label = torch.arange(4000) % 200
    >>> outcomes = Outcomes(score, score > 0.4, label, score / 2, label)
    >>> promise = Promise.of(outcomes, Terms(target_error=0.05, unknown=0.1))
    >>> promise.met, 0.4 < promise.threshold < 0.5
    (True, True)
    """

    terms: Terms
    threshold: float
    """inf: nothing can be answered under this promise."""
    bound: float
    """What is promised of R: the target, or where it cannot be met the least that can; 1: nothing."""
    met: bool
    """Whether the bound is the target. If not, `threshold` answers nothing, and `fallback` keeps the bound."""
    fallback: float
    """The threshold that keeps the bound, whether or not that is the target."""
    known_answered: float
    """Share of the known calibration queries that `fallback` answers."""
    absent_answered: float
    coverage: float
    """Share of all queries, known and unknown ones as stated, that `fallback` answers."""
    error: float | None
    """R at `fallback` as counted; None if nothing is answered."""
    labels: int
    """Labels that the promise was tested on."""
    outlook: Outlook
    outcomes: Outcomes

    @classmethod
    def of(cls, outcomes: Outcomes, terms: Terms | None = None) -> Promise:
        """From calibration queries, under these terms."""
        terms = Terms() if terms is None else terms
        thresholds = outcomes.thresholds()
        risk = OpenRisk(outcomes.counted(thresholds), terms)
        starts = starting_places(risk)
        reached = last_shown(risk, starts)
        met = reached is not None
        place, bound = (reached, terms.target_error) if reached is not None else _least(risk, starts)
        advice = Outlook(None, None, terms.unknown) if met else outlook(risk, starts)
        return _at(outcomes, thresholds, risk, place, bound, advice, met=met)

    def at(self, **changes: Any) -> Promise:
        """The same calibration queries under other terms, named as in `Terms`."""
        return Promise.of(self.outcomes, replace(self.terms, **changes))

    @property
    def is_worth_keeping(self) -> bool:
        """Whether the bound is the target, or small enough to answer by in its place."""
        return self.met or self.bound <= WORST

    def answers(self, score: Tensor) -> Tensor:
        """Whether queries of this score (n,) are answered, (n,) bool."""
        return (score >= self.threshold) & (score > -torch.inf)

    def curve(self) -> Curve:
        """x: share of all queries, known and unknown ones as stated, that is answered; y: R as counted."""
        risk = OpenRisk(self.outcomes.counted(self.outcomes.thresholds()), self.terms)
        coverage, wrong = risk.coverage(), risk.estimate()
        there = np.isfinite(wrong)
        return Curve(coverage[there].tolist(), wrong[there].tolist())

    def sentence(self) -> str:
        """What is promised, or why nothing is and what could be."""
        terms = self.terms
        sure = f"{terms.confidence:.0%} confidence"
        among = f"where {terms.unknown:.0%} of the queries are of no label in the gallery"
        given = f"{len(self.outcomes.score)} known queries and {self.labels} labels"
        answering = f"answering {self.known_answered:.1%} of the known queries"
        if self.met:
            return (
                f"At most {terms.target_error:.1%} of answers are wrong with {sure}, {among}; {answering} "
                f"and {self.absent_answered:.1%} of the others."
            )
        target = f"An error of at most {terms.target_error:.1%}"
        refused = f"{target} cannot be promised with {sure}, {among}, from {given}"
        least = f"{self.bound:.1%} can, {answering}" if self.bound < 1 else "nothing below 100% can"
        return f"{refused}; {least}. {self.outlook.sentence(terms)}"

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON for `Index.attach`."""
        return self.outcomes.tensors(), asdict(self.terms)

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> Promise:
        """The promise whose `state` this is, worked out again from its queries."""
        return cls.of(Outcomes.from_tensors(tensors), cls.terms_of_state(tensors, record))

    @staticmethod
    def terms_of_state(tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> Terms:
        """The terms of the promise whose `state` this is, which needs no test."""
        return Terms(**record)


def starting_places(risk: OpenRisk) -> Starts:
    """Where sequences start (place, share of the level), from stricter to looser."""
    if not len(risk.answered) or not risk.answered[-1]:
        return []
    level = (1 - risk.terms.confidence) * max(SHARES)
    possible = risk.possible(risk.terms.target_error, level).nonzero()[0]
    most = risk.answered[-1]
    first = min(risk.answered[possible[0]], LATEST * most) if len(possible) else LATEST * most
    wanted = most * (first / most) ** (1 - np.array(STARTS))
    places = np.searchsorted(risk.answered, wanted - 1e-12)
    return [(int(place), share) for place, share in zip(places, SHARES, strict=True)]


def last_shown(risk: OpenRisk, starts: Starts) -> int | None:
    """The loosest place that a sequence of tests reaches; None: all fail at their start."""
    last, held = None, 0.0
    stops = [*(place for place, _ in starts), len(risk.answered)][1:]
    for (start, share), stop in zip(starts, stops, strict=True):
        held += share
        places = np.arange(start, stop)
        level = np.full(len(places), held * (1 - risk.terms.confidence))
        passed = risk.shown(places, np.full(len(places), risk.terms.target_error), level)
        reached = stop if passed.all() else start + int(passed.argmin())
        last = reached - 1 if reached > start else last
        held = held if reached == stop else 0.0
    return last


def _least(risk: OpenRisk, starts: Starts) -> tuple[int | None, float]:
    """The start that shows the least R, each tested from 1 downwards to the target at its own share."""
    targets = np.geomspace(1.0, risk.terms.target_error, LARGER_TARGETS + 1)[1:]
    best: tuple[int | None, float] = (None, 1.0)
    for place, share in starts:
        level = np.full(len(targets), share * (1 - risk.terms.confidence))
        passed = risk.shown(np.full(len(targets), place), targets, level)
        count = len(targets) if passed.all() else int(passed.argmin())
        if count and targets[count - 1] < best[1]:
            best = (place, float(targets[count - 1]))
    return best


def _at(
    outcomes: Outcomes,
    thresholds: Array,
    risk: OpenRisk,
    place: int | None,
    bound: float,
    advice: Outlook,
    *,
    met: bool,
) -> Promise:
    fallback = math.inf if place is None else float(thresholds[place])

    def figure(values: Array) -> float:
        return 0.0 if place is None else float(values[place])

    return Promise(
        terms=risk.terms,
        threshold=fallback if met else math.inf,
        bound=bound,
        met=met,
        fallback=fallback,
        known_answered=figure(risk.answered),
        absent_answered=figure(risk.absent),
        coverage=figure(risk.coverage()),
        error=None if place is None else figure(risk.estimate()),
        labels=risk.labels,
        outlook=advice,
        outcomes=outcomes,
    )
