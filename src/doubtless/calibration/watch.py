"""Does a promise survive use? A test over judged answers that may be looked at at any time and stopped by any rule.

It was promised that at most a share r of answers is wrong. Someone who doubts it holds a capital of one and bets on
every answer that it is wrong: the capital becomes 1 + b(x − r) times itself, where x is 1 for a wrong answer and 0
for a right one. While answers are wrong with a chance of r at most, whatever came before, no bets make it grow on
average, so that it ever reaches 1/level with probability `level` at most (Ville 1939). Bets of several sizes are
held at once, and a part of the capital waits and begins later, at places fixed beforehand: what changes after a
long good time is not paid for by it. Someone who believes it bets the other way, from the first answer on.

Not every answer is judged, and who complains complains of wrong ones. Two samples are kept apart.

`Drawn`     answers that were drawn by a coin, whatever they showed. For some of these, the sure ones, again by a
            coin of known chance p, nobody is asked; what is predicted of them (ŵ = 1 − probability) stands in, and
            is put right by those that were asked: x = ŵ + (w − ŵ)/p where asked, ŵ where not. Its mean is that of w
            whatever ŵ is worth (Angelopoulos et al. 2023, Xu et al. 2024). What was asked and is not yet said
            counts as right for the one who doubts and as wrong for the one who believes: silence helps neither.
`Counted`   all answers that were given, of which some were judged by whoever wanted to. What nobody judged counts
            as right: the capital of the one who doubts is then at most what it would be if all were known, however
            those who spoke were selected. It says nothing for the one who believes.

Each of the two has half of the level. The null is that of every answer given the past; with one size of bet for all
it may as well be of their mean: Π(1 + b(mₜ − r)) ≤ (1 + b · mean(m − r))ⁿ ≤ 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Standing = Literal["holds", "no longer holds", "too little was said"]

LEVEL = 0.05
"""Probability with which a promise that is kept is ever called broken, and one that is broken ever called kept."""
AGAINST = np.geomspace(0.005, 0.6, 12)
"""Bets of the one who doubts, as parts of the largest."""
FOR = np.array([0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97])
"""Bets of the one who believes."""
SPACING = 32
"""Bets begin anew after every answer at first, later after every 1/32 of those so far."""
AT_ONCE = 0.5
"""Part of the capital that is at stake from the first answer on."""
LEAST_SHARE = 0.5
"""Chance with which the surest of the drawn answers are asked for."""
SURE = 1 / 64
"""Predicted chance of being wrong up to which that is so; it rises like its root to 1 at four times this."""
MOST = 1_000_000
"""Answers that `needed` counts to."""
RIGHT, WRONG, UNSAID, NOT_ASKED = 0, 1, -1, -2


def share_asked(predicted: Array | float) -> Any:
    """The chance with which a drawn answer is asked for, by the predicted chance that it is wrong.

    >>> share_asked(np.array([0.001, 0.03, 0.2])).round(2).tolist()
    [0.5, 0.69, 1.0]
    """
    return np.clip(LEAST_SHARE * np.sqrt(np.asarray(predicted) / SURE), LEAST_SHARE, 1.0)


@dataclass(frozen=True, eq=False)
class Drawn:
    """n answers drawn at random, in the order in which they were given.

    said        (n,) `RIGHT`, `WRONG`, `UNSAID` or `NOT_ASKED`
    predicted   (n,) chance of being wrong as it was shown
    share       (n,) chance with which each was asked for: 1, or `share_asked` where `thinned`
    thinned     (n,) bool: whether the sure ones were asked for less often
    """

    said: NDArray[np.int8]
    predicted: Array
    share: Array
    thinned: NDArray[np.bool_]

    @classmethod
    def of(cls, said: Sequence[int] | NDArray[Any]) -> Drawn:
        """Answers all of which are asked for."""
        count = len(said)
        return cls(
            np.asarray(said, dtype=np.int8), np.zeros(count), np.ones(count), np.zeros(count, dtype=bool)
        )

    def __len__(self) -> int:
        return len(self.said)

    def __getitem__(self, rows: slice) -> Drawn:
        return Drawn(self.said[rows], self.predicted[rows], self.share[rows], self.thinned[rows])

    def values(self, *, unsaid: int) -> Array:
        """x (n,), what was asked and not said counting as right (0) or wrong (1)."""
        asked = self.said != NOT_ASKED
        wrong = np.where(self.said == UNSAID, unsaid, self.said)
        return self.predicted + np.where(asked, (wrong - self.predicted) / self.share, 0.0)

    @property
    def judged(self) -> int:
        """How many were asked for and judged."""
        return int((self.said >= 0).sum())

    @property
    def wrong(self) -> int:
        """How many of these were wrong."""
        return int((self.said == WRONG).sum())


@dataclass(frozen=True, eq=False)
class Counted:
    """So many answers, and the places (m,) among them, from 0, of those that someone has called wrong."""

    answers: int = 0
    wrong: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))


def places(count: int) -> NDArray[np.int64]:
    """Numbers of answers, up to `count`, after which bets begin anew, the same for every stream.

    >>> places(5).tolist(), len(places(100_000))
    ([0, 1, 2, 3, 4, 5], 312)
    """
    found = [0]
    while found[-1] < count:
        found.append(found[-1] + max(1, found[-1] // SPACING))
    return np.array(found if found[-1] == count else found[:-1], dtype=np.int64)


def log_capital(steps: Array, begins: NDArray[np.int64]) -> Array:
    """(n + 1,) logarithm of the capital before and after n steps, where parts of it begin at some of them.

    steps    (n, bets) logarithms of 1 + b(x − r)
    begins   rising, the first 0: after how many steps another part of the capital is staked
    """
    grown = np.vstack([np.zeros(steps.shape[1]), steps.cumsum(0)])  # (n + 1, bets)
    stake, waiting = _stakes(len(begins))
    begun = np.full(len(grown), -np.inf)
    begun[begins] = np.log(stake)
    cash = np.full(len(grown), np.nan)
    cash[begins] = waiting
    last = np.maximum.accumulate(np.where(np.isnan(cash), 0, np.arange(len(cash))))
    staked = np.logaddexp.accumulate(begun[:, None] - grown, axis=0) + grown
    at_stake = np.logaddexp.reduce(staked, axis=1) - math.log(steps.shape[1])
    return np.asarray(np.logaddexp(at_stake, np.log(cash[last])))


def _stakes(count: int) -> tuple[Array, Array]:
    """(count,) parts of the capital that are staked one after the other, and what waits after each."""
    waiting = (1 - AT_ONCE) / np.log2(np.arange(count) + 3)
    before = np.concatenate([[1.0], waiting[:-1]])
    return before - waiting, waiting


def capital_against(drawn: Drawn, rate: float) -> Array:
    """(n + 1,) logarithm of the capital of the one who doubts, after each of the answers drawn."""
    return log_capital(_against(drawn, rate), places(len(drawn)))


def _against(drawn: Drawn, rate: float) -> Array:
    # x is at least ŵ(1 − 1/p), which the shares of `share_asked` keep above −SURE.
    largest = 1 / np.where(drawn.thinned, rate + SURE, rate)
    gain = (drawn.values(unsaid=RIGHT) - rate) * largest
    return np.asarray(np.log1p(np.outer(gain, AGAINST)))


def capital_for(drawn: Drawn, rate: float) -> Array:
    """(n + 1,) logarithm of the capital of the one who believes, all of it staked from the first answer on."""
    grown = np.log1p(np.outer(_gains_for(drawn, rate), FOR)).cumsum(0)
    whole = np.vstack([np.zeros(len(FOR)), grown])
    return np.asarray(np.logaddexp.reduce(whole, axis=1) - math.log(len(FOR)))


def _gains_for(drawn: Drawn, rate: float) -> Array:
    # x is at most ŵ + (1 − ŵ)/p, which the shares of `share_asked` keep below 1/LEAST_SHARE.
    largest = 1 / (np.where(drawn.thinned, 1 / LEAST_SHARE, 1.0) - rate)
    return np.asarray((rate - drawn.values(unsaid=WRONG)) * largest)


def capital_counted(counted: Counted, rate: float) -> tuple[Array, NDArray[np.int64]]:
    """(m,) logarithm of the doubter's capital where all answers count, and after how many of them."""
    steps, after = _counted_steps(counted, rate)
    return log_capital(steps, np.arange(len(after))), after


def _counted_steps(counted: Counted, rate: float) -> tuple[Array, NDArray[np.int64]]:
    """(m − 1, bets) logarithms by which stretches of answers multiply the capital, and where these end."""
    after = places(counted.answers)
    wrong = np.diff(np.searchsorted(np.sort(counted.wrong), after))
    right = np.diff(after) - wrong
    of_wrong, of_right = np.log1p(AGAINST * (1 / rate - 1)), np.log1p(-AGAINST)
    return np.outer(wrong, of_wrong) + np.outer(right, of_right), after


@dataclass(frozen=True)
class Verdict:
    """Where a promise stands.

    rate       what was promised: the largest share of wrong answers
    judged     answers that were drawn, asked for and judged; of these `wrong` are wrong
    share      of all drawn answers that are wrong, as far as was said; None before anything was
    since      number of the drawn (or, by complaints, counted) answer from which on more are wrong
    noticed    number of the one at which that was shown
    by         which sample has shown it
    more       drawn answers that would show that it holds if all were right; None where that is shown
    """

    standing: Standing
    rate: float
    level: float
    judged: int
    wrong: int
    share: float | None
    since: int | None = None
    noticed: int | None = None
    by: Literal["drawn", "counted"] | None = None
    more: int | None = None


def verdict(drawn: Drawn, counted: Counted | None = None, *, rate: float, level: float = LEVEL) -> Verdict:
    """What judged answers say of the promise that at most `rate` of answers are wrong.

    "holds": the mean chance of being wrong, over the drawn answers up to the last that was judged, is shown to be
    below `rate`; "no longer holds": over some stretch of them it is shown to be above.

    >>> verdict(Drawn.of([RIGHT] * 150), rate=0.05).standing
    'holds'
    >>> verdict(Drawn.of([RIGHT] * 30), rate=0.05)
    Verdict(standing='too little was said', rate=0.05, level=0.05, judged=30, wrong=0, share=0.0, since=None,
            noticed=None, by=None, more=52)
    >>> broken = verdict(Drawn.of([RIGHT] * 300 + [WRONG, RIGHT] * 20), rate=0.05)
    >>> broken.standing, 290 < broken.since <= 305 < broken.noticed < 330
    ('no longer holds', True)
    """
    counted = counted or Counted()
    said = drawn[: int(np.flatnonzero(drawn.said >= 0)[-1]) + 1 if drawn.judged else 0]
    values = said.values(unsaid=WRONG)[said.said != UNSAID]
    told: dict[str, Any] = {
        "rate": rate,
        "level": level,
        "judged": drawn.judged,
        "wrong": drawn.wrong,
        "share": float(np.clip(values.mean(), 0, 1)) if len(values) else None,
    }
    if (crossed := _crossed(drawn, counted, rate, level)) is not None:
        return Verdict("no longer holds", **told, **crossed)
    if float(capital_for(said, rate)[-1]) >= -math.log(level):
        return Verdict("holds", **told)
    return Verdict("too little was said", **told, more=needed(said, rate, level))


def needed(drawn: Drawn, rate: float, level: float = LEVEL) -> int:
    """How many more drawn answers, all right, would show that the promise holds."""
    grown = np.log1p(np.outer(_gains_for(drawn, rate), FOR)).sum(0)
    thinned = bool(drawn.thinned[-1]) if len(drawn) else False
    step = np.log1p(FOR * rate / ((1 / LEAST_SHARE if thinned else 1.0) - rate))

    def shown(count: int) -> bool:
        total = np.logaddexp.reduce(grown + count * step) - math.log(len(FOR))
        return bool(total >= -math.log(level))

    low, high = 0, 1
    while not shown(high) and high < MOST:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if shown(middle) else (middle, high)
    return high


def _crossed(drawn: Drawn, counted: Counted, rate: float, level: float) -> dict[str, Any] | None:
    """When the doubter's capital in one of the samples reached 2/level, and since when it grew."""
    bound = math.log(2 / level)
    capital = capital_against(drawn, rate)
    if (capital >= bound).any():
        place = int((capital >= bound).argmax())
        steps = _against(drawn[:place], rate)
        since = _first_growth(steps, _begun(steps, places(place)))
        return {"since": since, "noticed": place - 1, "by": "drawn"}
    capital, after = capital_counted(counted, rate)
    if (capital >= bound).any():
        place = int((capital >= bound).argmax())
        begun = _begun(_counted_steps(counted, rate)[0][:place], np.arange(place + 1))
        return {"since": int(after[begun]), "noticed": int(after[place]) - 1, "by": "counted"}
    return None


def _first_growth(steps: Array, begun: int) -> int:
    """The first step from there on that made the capital grow: a wrong answer."""
    return begun + int((steps[begun:, 0] > 0).argmax())


def _begun(steps: Array, begins: NDArray[np.int64]) -> int:
    """Before which step the part of the capital began that has become the largest."""
    grown = np.vstack([np.zeros(steps.shape[1]), steps.cumsum(0)])
    became = np.logaddexp.reduce(grown[-1] - grown[begins], axis=1) + np.log(_stakes(len(begins))[0])
    return int(begins[int(became.argmax())])
