"""`Drift`: have the queries become others than those the index was calibrated on?

What calibration promises, it promises for queries like its own. Under that assumption the doubts of recent queries
and those of the calibration are exchangeable, and two tests of two samples are exact whatever the doubt is: the
largest difference of the two distributions (Kolmogorov-Smirnov), and how many of the recent queries lie above the
calibration's 95 % quantile (Fisher's exact test), which sees a few odd ones among many.

Both look at the last `WINDOW` queries, once every `STRIDE`. Their level is chosen by the union bound, so that among
1,000 queries like the calibration's the alarm is raised with probability `FALSE_ALARM` at most.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from doubtless.gallery import Sentence

WINDOW = 300
STRIDE = 50
FALSE_ALARM = 0.01
"""Of 1,000 queries like those of the calibration."""
LEVEL = FALSE_ALARM * STRIDE / 1000 / 2
"""Of each of the two tests, each time they look."""
HIGH = 0.95
FEWEST = 50
"""Doubts of the calibration below which nothing is tested."""


@dataclass(frozen=True)
class DriftState:
    """What the last look saw.

    alarm     the queries are others
    queries   how many were looked at
    above     share of them above what 5 % of the calibration's lie above
    p_value   the smaller of the two tests', doubled
    """

    alarm: bool
    queries: int
    above: float
    p_value: float

    def sentence(self) -> Sentence:
        """What to tell whoever asks, where there is an alarm."""
        return Sentence(
            f"The last {self.queries} queries are not like those the index was calibrated on ({self.above:.0%} of "
            f"them are more doubtful than all but {1 - HIGH:.0%} were): its promises do not hold for them. "
            "Calibrate it again on queries like these.",
            "drift",
            queries=self.queries,
            above=self.above,
        )


class Drift:
    """Watches doubts go by; may be used from several threads.

    >>> drift = Drift(np.linspace(0, 0.5, 400))
    >>> drift.watch(np.linspace(0, 0.5, 100)); drift.state.alarm
    False
    >>> drift.watch(np.full(300, 0.9)); drift.state.alarm
    True
    """

    def __init__(self, calibrated: Sequence[float] | NDArray[np.float64]) -> None:
        self._calibrated = np.sort(np.asarray(calibrated, dtype=np.float64))
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._since = 0
        self._lock = threading.Lock()
        self.state = DriftState(False, 0, 0.0, 1.0)

    def watch(self, doubts: Sequence[float] | NDArray[np.float64]) -> None:
        """Takes note of the doubts (n,) of some queries."""
        if len(self._calibrated) < FEWEST:
            return
        with self._lock:
            for doubt in doubts:
                if math.isnan(doubt):
                    continue
                self._recent.append(float(doubt))
                self._since += 1
                if self._since == STRIDE:
                    self._since = 0
                    self.state = looked(np.array(self._recent), self._calibrated)


def looked(recent: NDArray[np.float64], calibrated: NDArray[np.float64]) -> DriftState:
    """Both tests of the recent doubts (n,) against the calibration's (m,), sorted."""
    from scipy.stats import hypergeom

    high = calibrated[math.ceil(HIGH * len(calibrated)) - 1]
    above, usual = int((recent > high).sum()), int((calibrated > high).sum())
    count, everything = len(recent), len(recent) + len(calibrated)
    more = float(hypergeom.sf(above - 1, everything, above + usual, count))  # so many or more
    p_value = min(1.0, 2 * min(more, different(recent, calibrated)))
    return DriftState(p_value <= 2 * LEVEL, count, above / count, p_value)


def different(first: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    """p-value of the Kolmogorov-Smirnov test of two samples, by its limit, which is cautious for small ones."""
    from scipy.special import kolmogorov

    first, second = np.sort(first), np.sort(second)
    places = np.concatenate([first, second])
    gaps = np.searchsorted(first, places, side="right") / len(first)
    gaps = gaps - np.searchsorted(second, places, side="right") / len(second)
    size = len(first) * len(second) / (len(first) + len(second))
    return float(kolmogorov(math.sqrt(size) * float(np.abs(gaps).max())))
