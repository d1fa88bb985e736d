"""What would help where a target cannot be promised: more labels, more photos of them, or fewer unknown queries.

The rates stay as they were counted and only the numbers grow; how many labels betting needs is worked out from the
normal distribution and from the largest bet, where tests start now or could start. These are figures to plan by
and no promise.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from doubtless.calibration.betting import Array
from doubtless.calibration.open_risk import OF_UNKNOWN, OpenRisk, Terms

Starts = list[tuple[int, float]]
"""Places among the thresholds where tests begin, and their share of 1 − confidence."""
Plan = Callable[[float, float, float], bool]
"""Whether so many times the labels and the known queries would do, at a share of unknown queries."""
FACTORS = np.concatenate([np.arange(1.1, 3.0, 0.1), np.geomspace(3, 1000, 60)])
ENOUGH = 30
"""Answers at a threshold whose rates are gone by."""
SHARES_OF_UNKNOWN = np.linspace(0, 1, 21)


@dataclass(frozen=True)
class Outlook:
    """About what it takes to meet the target, each by itself; None: it alone does not."""

    labels: int | None
    """Labels with as many queries each."""
    queries: int | None
    """Known queries of the same labels."""
    unknown: float | None
    """The largest share of unknown queries at which the target could be promised now."""

    def sentence(self, terms: Terms) -> str:
        """The figures in words.

        >>> Outlook(44, None, 0.05).sentence(Terms())
        'It would take about 44 labels like these, or no more than 5.0% unknown queries.'
        """
        ways = []
        if self.labels is not None:
            ways.append(f"about {self.labels} labels like these")
        if self.queries is not None:
            ways.append(f"about {self.queries} known queries of the same labels")
        if self.unknown is not None and self.unknown < terms.unknown:
            few = f"no more than {self.unknown:.1%}" if self.unknown >= 0.0005 else "no"
            ways.append(f"{few} unknown queries")
        if not ways:
            return "More queries would not help; scores that tell right from wrong better would."
        return f"It would take {', or '.join(ways)}."


def outlook(risk: OpenRisk, starts: Starts) -> Outlook:
    """What would help this risk to be shown at one of the starts (place, share of the level)."""
    terms = risk.terms
    if not starts or not risk.labels:
        return Outlook(None, None, None)
    places, level = _candidates(risk, starts)
    plan = (_gallery_plan if terms.known == "gallery" else _drawn_plan)(risk, places, level)
    labels = _least(lambda factor: plan(factor, factor, terms.unknown))
    queries = None
    if terms.known == "gallery":  # with labels drawn, more photos of the same ones say little
        queries = _least(lambda factor: plan(1.0, factor, terms.unknown))
    shares = SHARES_OF_UNKNOWN * terms.unknown
    fitting = bisect_left(range(len(shares)), True, key=lambda at: not plan(1.0, 1.0, float(shares[at])))
    known = int(risk.counts.queries.sum())
    return Outlook(
        None if labels is None else int(np.ceil(labels * risk.labels)),
        None if queries is None else int(np.ceil(queries * known)),
        float(shares[fitting - 1]) if 0 < fitting < len(shares) else None,
    )


def _candidates(risk: OpenRisk, starts: Starts) -> tuple[NDArray[np.int64], Array]:
    """Places and their levels: the starts, and at the smallest share what could be a start with more queries."""
    measured = (risk.answered * risk.counts.queries.sum() >= ENOUGH).nonzero()[0]
    places = np.array([*(place for place, _ in starts), *measured])
    shares = [*(share for _, share in starts), *([min(share for _, share in starts)] * len(measured))]
    return places, np.array(shares) * (1 - risk.terms.confidence)


def _least(enough: Callable[[float], bool]) -> float | None:
    """The smallest factor that is enough, as all larger ones are."""
    place = bisect_left(range(len(FACTORS)), True, key=lambda at: enough(float(FACTORS[at])))
    return float(FACTORS[place]) if place < len(FACTORS) else None


def _gallery_plan(risk: OpenRisk, places: NDArray[np.int64], level: Array) -> Plan:
    rate = risk.rates[risk.counts.absent_queries > 0][:, places]
    mean, spread = rate.mean(0), rate.var(0)

    def plan(labels: float, queries: float, unknown: float) -> bool:
        allowed = risk.allowed(places, level, times=queries, unknown=unknown)
        if unknown == 0:
            return bool((allowed >= 0).any())
        needed = _labels_needed(mean - allowed, spread, 1 - allowed, OF_UNKNOWN * level)
        return bool(((needed <= labels * len(rate)) & (allowed > 0) | (allowed >= 1)).any())

    return plan


def _drawn_plan(risk: OpenRisk, places: NDArray[np.int64], level: Array) -> Plan:
    target = risk.terms.target_error
    wrong, answered = (rate[:, places] for rate in risk.known_rates())
    absent = risk.rates[:, places]

    @lru_cache(maxsize=1)  # labels grow at one and the same share of unknown queries
    def needed(unknown: float) -> float:
        value = (1 - unknown) * (wrong - target * answered) + unknown * (1 - target) * absent
        found = _labels_needed(value.mean(0), value.var(0), np.full(len(places), 1 - target), level)
        return float(found.min())

    def plan(labels: float, queries: float, unknown: float) -> bool:
        return needed(unknown) <= labels * risk.labels

    return plan


def _labels_needed(mean: Array, spread: Array, ceiling: Array, level: Array) -> Array:
    """Labels to show a mean below 0: by the normal distribution, and no fewer than the largest bets on it need."""
    from scipy.special import ndtri

    below = np.minimum(mean, -1e-12)
    normal = ndtri(level) ** 2 * spread / below**2
    largest = -np.log(level) / np.log1p(-below / np.maximum(ceiling, 1e-12))
    return np.where(mean < 0, np.maximum(normal, largest), np.inf)
