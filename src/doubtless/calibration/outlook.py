"""What would help where a target cannot be promised: more labels, more photos of them, or fewer unknown queries.

The rates stay as they were counted and only the numbers grow; how many labels betting needs is worked out from the
normal distribution and from the largest bet. The best threshold is taken in hindsight, so these are figures to plan
by and no promise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from doubtless.calibration.betting import Array
from doubtless.calibration.open_risk import OF_UNKNOWN, OpenRisk, Terms

Plan = Callable[[float, float, float], bool]
"""Whether so many times the labels and the known queries would do, at a share of unknown queries."""
FACTORS = np.concatenate([np.arange(1.1, 3.0, 0.1), np.geomspace(3, 1000, 60)])
SHARES_OF_UNKNOWN = np.linspace(0, 1, 21)
LEVEL = 0.8  # of 1 − confidence: that of the main start
ENOUGH = 30  # answers at a threshold


@dataclass(frozen=True)
class Outlook:
    """About what it takes to meet the target, each by itself; None: it alone does not."""

    labels: int | None
    """Labels with as many queries each."""
    queries: int | None
    """Known queries of the same labels."""
    unknown: float | None
    """The largest share of unknown queries at which the target could be promised now."""

    def sentences(self, terms: Terms) -> list[str]:
        """The figures in words."""
        said = []
        if self.labels is not None:
            said.append(f"It would take about {self.labels} labels like these.")
        if self.queries is not None:
            said.append(f"It would take about {self.queries} known queries of the same labels.")
        if self.unknown is not None and self.unknown < terms.unknown:
            said.append(f"With {self.unknown:.0%} unknown queries it could be promised.")
        return said or ["More queries would not help; scores that tell right from wrong better would."]


def outlook(risk: OpenRisk) -> Outlook:
    """What would help this risk to be shown."""
    terms = risk.terms
    if not len(risk.answered) or not risk.labels:
        return Outlook(None, None, None)
    plan = _gallery_plan(risk) if terms.known == "gallery" else _drawn_plan(risk)
    labels = _first([plan(factor, factor, terms.unknown) for factor in FACTORS])
    queries = None
    if terms.known == "gallery":  # with labels drawn, more photos of the same ones say little
        queries = _first([plan(1.0, factor, terms.unknown) for factor in FACTORS])
    fits = [plan(1.0, 1.0, float(share)) for share in SHARES_OF_UNKNOWN * terms.unknown]
    known = int(risk.counts.queries.sum())
    return Outlook(
        None if labels is None else int(np.ceil(labels * risk.labels)),
        None if queries is None else int(np.ceil(queries * known)),
        float(SHARES_OF_UNKNOWN[fits.index(False) - 1] * terms.unknown)
        if fits[0] and not all(fits)
        else None,
    )


def _first(flags: list[bool]) -> float | None:
    return float(FACTORS[flags.index(True)]) if any(flags) else None


def _gallery_plan(risk: OpenRisk) -> Plan:
    target, level = risk.terms.target_error, (1 - risk.terms.confidence) * LEVEL
    rate = risk.rates[risk.counts.absent_queries > 0]
    mean, spread = rate.mean(0), rate.var(0)

    def plan(labels: float, queries: float, unknown: float) -> bool:
        allowed = risk.allowed(target, level, times=queries, unknown=unknown)[_measured(risk)]
        if unknown == 0:
            return bool((allowed >= 0).any())
        needed = _labels_needed(
            mean[_measured(risk)] - allowed, spread[_measured(risk)], 1 - allowed, OF_UNKNOWN * level
        )
        return bool(((needed <= labels * len(rate)) & (allowed > 0) | (allowed >= 1)).any())

    return plan


def _drawn_plan(risk: OpenRisk) -> Plan:
    target, level = risk.terms.target_error, (1 - risk.terms.confidence) * LEVEL
    wrong, answered = (rate[:, _measured(risk)] for rate in risk.known_rates())
    absent = risk.rates[:, _measured(risk)]

    @lru_cache(maxsize=1)  # labels grow at one and the same share of unknown queries
    def needed(unknown: float) -> Array:
        value = (1 - unknown) * (wrong - target * answered) + unknown * (1 - target) * absent
        return _labels_needed(value.mean(0), value.var(0), np.full(value.shape[1], 1 - target), level)

    def plan(labels: float, queries: float, unknown: float) -> bool:
        return bool((needed(unknown) <= labels * risk.labels).any())

    return plan


def _measured(risk: OpenRisk) -> NDArray[np.bool_]:
    """Thresholds (g,) at which enough is answered to go by."""
    return np.asarray(risk.answered * risk.counts.queries.sum() >= ENOUGH)


def _labels_needed(mean: Array, spread: Array, ceiling: Array, level: float) -> Array:
    """Labels to show a mean below 0: by the normal distribution, and no fewer than the largest bets on it need."""
    from scipy.special import ndtri

    below = np.minimum(mean, -1e-12)
    normal = ndtri(level) ** 2 * spread / below**2
    largest = -np.log(level) / np.log1p(-below / np.maximum(ceiling, 1e-12))
    return np.where(mean < 0, np.maximum(normal, largest), np.inf)
