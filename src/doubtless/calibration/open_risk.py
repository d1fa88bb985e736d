"""The share of wrong answers where some queries show what is not in the gallery, and tests that it is small.

Of known queries a share c₁ is answered and e₁ answered wrongly; of unknown ones a₀ is answered, always wrongly.
With a share π of unknown queries, R = ((1 − π) e₁ + π a₀)/((1 − π) c₁ + π a₀) of the answers are wrong.

Two ways to say what is drawn:

`gallery` — the labels of known queries are the gallery's own and stay, and only their photos are drawn, each query
for itself; unknown labels are new, drawn like the labels that were left out. Exact binomial bounds (Clopper and
Pearson 1934) of the errors among answered known queries and of how many are answered leave room for a share of
unknown queries answered, and betting over labels tests that it stays below. The three share the level. (The room is
found from data, which is sound as long as what is shown of a share is shown of larger ones too: true of the bets in
all cases that were enumerated or simulated, but not proven.)

`drawn` — the labels of known queries are new ones too. R ≤ r means that (1 − π)(e₁ − r c₁) + π (1 − r) a₀ has a
mean of at most 0 over labels, tested by betting over the labels that have known and absent queries. Queries of one
label may then depend on each other as they like; a few hundred labels are needed before anything can be promised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doubtless.calibration.betting import Array, mean_is_below_zero
from doubtless.calibration.outcomes import Counts
from doubtless.errors import InputError

Flags = NDArray[np.bool_]
KNOWN = ("gallery", "drawn")
PER = ("label", "query")
OF_ERRORS, OF_ANSWERS, OF_UNKNOWN = 0.3, 0.05, 0.65
"""Shares of the level: errors among known answers, share of known queries answered, share of unknown answered."""
BLOCK = 256
"""Tests that bet side by side: their capitals and bets stay in the cache."""


@dataclass(frozen=True)
class Terms:
    """At most `target_error` of answers are wrong, where a share `unknown` of queries has no label in the gallery.

    `known`: labels of known queries are the `gallery`'s own, or `drawn` anew. `per`: a drawn label is as likely as
    any other, or as likely as it has calibration queries; then the largest label limits what can be shown.
    """

    target_error: float = 0.05
    unknown: float = 0.1
    confidence: float = 0.95
    known: str = "gallery"
    per: str = "label"

    def __post_init__(self) -> None:
        for name in ("target_error", "confidence"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"The {name} must lie between 0 and 1, got {getattr(self, name)}.")
        if not 0 <= self.unknown < 1:
            raise InputError(
                f"The share of unknown queries must be at least 0 and below 1, got {self.unknown}."
            )
        for name, values in (("known", KNOWN), ("per", PER)):
            if getattr(self, name) not in values:
                raise InputError(f"{name!r} must be one of {', '.join(values)}, got {getattr(self, name)!r}.")


def share_wrong(wrong: Any, answered: Any, absent: Any, *, unknown: float) -> Any:
    """R from the shares e₁, c₁ and a₀; nan where nothing is answered.

    >>> float(share_wrong(0.0, 0.5, 0.5, unknown=0.5))
    0.5
    """
    above = (1 - unknown) * np.asarray(wrong, np.float64) + unknown * np.asarray(absent)
    below = (1 - unknown) * np.asarray(answered, np.float64) + unknown * np.asarray(absent)
    return np.divide(above, below, out=np.full(np.shape(above), np.nan), where=below > 0)


def largest_rate(count: Any, trials: Any, level: Any) -> Array:
    """The rate of a binomial under which at most `count` of `trials` have probability `level`; 1 if all count.

    >>> largest_rate(0, 59, 0.05).item() < 0.05
    True
    """
    from scipy.special import betaincinv

    count, trials = np.asarray(count, np.float64), np.asarray(trials, np.float64)
    rate = betaincinv(count + 1, np.maximum(trials - count, 1e-9), 1 - np.asarray(level))
    return np.where(count >= trials, 1.0, rate)


def smallest_rate(count: Any, trials: Any, level: Any) -> Array:
    """The rate under which at least `count` of `trials` have probability `level`; 0 for a count of 0."""
    return 1 - largest_rate(np.asarray(trials) - np.asarray(count), trials, level)


class OpenRisk:
    """Tests of R(t) ≤ r at places t of a list of thresholds, each at a level of its own."""

    def __init__(self, counts: Counts, terms: Terms) -> None:
        self.terms = terms
        if terms.known == "drawn":
            both = counts.queries > 0
            if terms.unknown > 0:
                both &= counts.absent_queries > 0
            counts = Counts(*(getattr(counts, name)[both] for name in counts.__dataclass_fields__))
        self.counts = counts
        self.weight, self.absent_weight = self._weights()
        drawn = terms.known == "drawn"
        if drawn:
            self.wrong, self.answered = (_mean(part, self.weight) for part in self.known_rates())
        else:
            total = max(counts.queries.sum(), 1.0)
            self.wrong, self.answered = counts.wrong.sum(0) / total, counts.answered.sum(0) / total
        self.rates = _rates(counts.absent, counts.absent_queries)
        self.absent = _mean(self.rates, self.absent_weight)
        self.labels = len(counts.queries) if drawn else int((counts.absent_queries > 0).sum())

    def estimate(self) -> Array:
        """R (thresholds,) as counted."""
        return np.asarray(share_wrong(self.wrong, self.answered, self.absent, unknown=self.terms.unknown))

    def coverage(self) -> Array:
        """The share (thresholds,) of all queries, known and unknown, that is answered."""
        return (1 - self.terms.unknown) * self.answered + self.terms.unknown * self.absent

    def shown(self, place: NDArray[np.int64], target: Array, level: Array) -> Flags:
        """Whether R at each place (tests,) is shown to be at most its target (tests,), at its level (tests,)."""
        if not len(place):
            return np.zeros(0, bool)
        test = self._shown_drawn if self.terms.known == "drawn" else self._shown_gallery
        blocks = range(0, len(place), BLOCK)
        return np.concatenate(
            [test(place[at : at + BLOCK], target[at : at + BLOCK], level[at : at + BLOCK]) for at in blocks]
        )

    def possible(self, target: float, level: float) -> Flags:
        """Whether each place (thresholds,) could be shown if all answers were right and to known queries."""
        answered = self.answered * self.counts.queries.sum()
        unknown, labels = self.terms.unknown, self.labels
        if self.terms.known == "drawn":
            gain = np.log1p((1 - unknown) * target * self.answered / (1 - target))
            return np.asarray(labels * gain >= -np.log(level))
        allowed = self._room(np.zeros_like(answered), answered, target, level)
        if unknown == 0:
            return np.asarray(allowed >= 0)
        return np.asarray(allowed >= 1 - (OF_UNKNOWN * level) ** (1 / max(labels, 1)))

    def allowed(
        self, place: NDArray[np.int64], level: Array, *, times: float = 1.0, unknown: float | None = None
    ) -> Array:
        """The share of unknown queries that may be answered at places (n,), with so many times the known ones."""
        total = self.counts.queries.sum() * times
        errors, answered = self.wrong[place] * total, self.answered[place] * total
        return self._room(errors, answered, self.terms.target_error, level, total=total, unknown=unknown)

    def _shown_gallery(self, place: NDArray[np.int64], target: Array, level: Array) -> Flags:
        total = self.counts.queries.sum()
        errors, answered = self.wrong[place] * total, self.answered[place] * total
        allowed = self._room(errors.round(), answered.round(), target, level)
        if self.terms.unknown == 0:
            return np.asarray(allowed >= 0)
        shown: Flags = allowed >= 1  # even if all of the unknown were answered
        open_ = (allowed > 0) & ~shown
        if open_.any() and self.labels:
            room = allowed[open_]
            rate, weight = self.rates[:, place[open_]], self.absent_weight
            some = weight > 0
            value = weight[some, None] * (rate[some] - room)
            shown[open_] = mean_is_below_zero(value, room, 1 - room, OF_UNKNOWN * level[open_])
        return shown

    def _room(
        self,
        errors: Array,
        answered: Array,
        target: Any,
        level: Any,
        *,
        total: float | None = None,
        unknown: float | None = None,
    ) -> Array:
        """The share of unknown queries that may be answered; with π = 0 negative where known ones err too often."""
        total = self.counts.queries.sum() if total is None else total
        unknown = self.terms.unknown if unknown is None else unknown
        if unknown == 0:
            return np.asarray(target - largest_rate(errors, answered, level))
        error = largest_rate(errors, answered, OF_ERRORS * level)
        least = smallest_rate(answered, np.full_like(answered, total), OF_ANSWERS * level)
        return np.asarray((1 - unknown) * least * (target - error) / (unknown * (1 - target)))

    def _shown_drawn(self, place: NDArray[np.int64], target: Array, level: Array) -> Flags:
        if not self.labels:
            return np.zeros(len(place), bool)
        unknown = self.terms.unknown
        wrong, answered = (rate[:, place] for rate in self.known_rates())
        value = (1 - unknown) * (wrong - target * answered)
        if unknown > 0:
            value = value + unknown * (1 - target) * self.rates[:, place]
        return mean_is_below_zero(self.weight[:, None] * value, (1 - unknown) * target, 1 - target, level)

    def known_rates(self) -> tuple[Array, Array]:
        """Shares (labels, thresholds) of each label's known queries answered wrongly, and answered."""
        queries = self.counts.queries
        return _rates(self.counts.wrong, queries), _rates(self.counts.answered, queries)

    def _weights(self) -> tuple[Array, Array]:
        """Of labels (labels,) as known and as absent ones, the largest 1."""
        queries, absent = self.counts.queries, self.counts.absent_queries
        if self.terms.per == "label":
            return (queries > 0).astype(np.float64), (absent > 0).astype(np.float64)
        if self.terms.known == "drawn":  # one weight for both, so that R stays a ratio of two means
            both = queries + absent
            return both / max(both.max(initial=0), 1), both / max(both.max(initial=0), 1)
        return queries / max(queries.max(initial=0), 1), absent / max(absent.max(initial=0), 1)


def _rates(count: Array, queries: Array) -> Array:
    return count / np.maximum(queries, 1)[:, None]


def _mean(rate: Array, weight: Array) -> Array:
    return np.asarray(weight @ rate / max(weight.sum(), 1e-300))
