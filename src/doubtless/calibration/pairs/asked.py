"""`AskedPairs`: people say of some items whether their first hit is the same thing; how many accepted hits are not?

All items of a gallery lie in one random order. A hit is accepted where it is sure enough, and every share of
the items in `LEVELS`, those of least doubt, is one way to be that strict. Of a level, people's answers count
in the random order, up to the first item that nobody has answered for: a random sample of the level's items, as
they would come as queries. Someone who doubts that fewer than a share r of its hits is wrong is bet against: before
every answer a share p below r is chosen, and a capital of one becomes p/r times itself by a wrong hit and
(1 − p)/(1 − r) times by a right one. If the share is r or more, no choice of p from the answers before makes it
grow on average, so it ever reaches L/α with a probability of α/L at most (Ville 1939; Waudby-Smith and Ramdas
2024). With L levels and α = 1 − confidence, the smallest r that is shown so is a level's bound, and all bounds hold
together with the confidence asked for.

What is asked next may therefore be chosen by all that was said, and one may stop whenever one likes, look after
every answer, and choose level and target by the bounds: whichever part of the order is known, and why, the capital
after each of its prefixes is covered. An answer that nobody can give counts as wrong.

What it rests on: queries to come are like the items, each searched without itself, also in how many of them have no
other item of their thing; items are drawn independently. Several photographs of one thing are not quite.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doubtless.calibration.promise import WORST
from doubtless.calibration.sentence import Sentence
from doubtless.errors import InputError

Array = NDArray[np.float64]
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.65, 0.8, 1.0)
"""Shares of the items whose hits are accepted."""
RATES = np.geomspace(0.002, 0.5, 100)
"""Shares of wrong hits that are tested."""
HOPED, STRENGTH = 0.1, 20.0
"""The first bets are as if this part of r were wrong, which counts for so many answers."""
BELOW = 0.999
"""Of r, the largest p that is bet on."""
BELIEVED = 5.0
"""Answers per level that the mixture counts for where the next question is chosen."""
OPTIMISM = 0.5
"""Deviations that the share of wrong hits is hoped to lie below what is expected: what was never asked is tried."""
PILOT = 30
"""Answers that are asked for anywhere, before a level is aimed at: they put right what the mixture expects."""
PLANNED = 200
"""Answers that people are expected to give; as many more once the target is promised, and half as many before."""
LEAST_RISK = 0.15
"""Part of the target that the share of wrong hits is not expected to lie below."""
LIKELIER = 0.5
"""Doubt up to which a hit is more probably the same thing than not."""
UNSAID, SAME, OTHER = -1, 0, 1


def capital(wrong: Array, rate: Array) -> Array:
    """(n + 1, r) logarithm of the capital after each of n answers (n,), 1 where wrong, against rates (r,).

    >>> (capital(np.zeros(70), np.array([0.05]))[-1] > np.log(20)).item()
    True
    """
    before = np.concatenate([[0.0], np.cumsum(wrong)])[:-1, None]
    count = np.arange(len(wrong))[:, None]
    bet = np.minimum((before + HOPED * rate * STRENGTH) / (count + STRENGTH), BELOW * rate)  # (n, r)
    steps = np.where(wrong[:, None] > 0, np.log(bet / rate), np.log1p(-bet) - np.log1p(-rate))
    return np.vstack([np.zeros((1, len(rate))), steps.cumsum(0)])


@dataclass(frozen=True)
class Level:
    """What is known of one way to be strict: accepting hits up to this doubt."""

    doubt: float
    items: int
    """Items whose first hit is accepted."""
    judged: int
    """Answers that count."""
    wrong: int
    bound: float
    """Share of the accepted hits that are wrong, at most; 1: nothing is shown."""
    capital: float
    """Logarithm of the capital against the target; its largest so far."""


@dataclass(frozen=True, eq=False)
class AskedPairs:
    """N items in random order: how doubtful the first hit of each is, and what was said of it.

    >>> doubt = torch.rand(1000, generator=torch.Generator().manual_seed(0))
    >>> asked = AskedPairs(doubt, torch.where(doubt < 0.5, SAME, OTHER), target_error=0.1)
    >>> asked.met, asked.coverage, round(asked.threshold, 2)
    (True, 0.5, 0.51)
    """

    doubt: Tensor
    """(N,) What was said may change it as long as it stays in one order."""
    said: Tensor
    """(N,) `SAME`, `OTHER` or `UNSAID`."""
    target_error: float = 0.05
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for name in ("target_error", "confidence"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"The {name} must lie between 0 and 1, got {getattr(self, name)}.")

    @cached_property
    def levels(self) -> list[Level]:
        """From stricter to looser; hits that are as doubtful are accepted alike."""
        rising = self.doubt.double().sort().values
        ends = {max(1, round(share * len(rising))) for share in LEVELS} if len(rising) else set()
        most = sorted({float(rising[end - 1]) for end in ends})
        return [self._level(one, len(most)) for one in most]

    def _level(self, doubt: float, levels: int) -> Level:
        said = self.said[self.doubt.double() <= doubt]
        unsaid = (said == UNSAID).nonzero()
        known = said[: int(unsaid[0])] if len(unsaid) else said
        wrong = (known == OTHER).double().numpy()
        rates = np.unique(np.append(RATES, self.target_error))
        largest = capital(wrong, rates).max(0)
        # From the largest rate down, as far as all of them are shown.
        shown = int((largest[::-1] >= self._needed(levels)).cumprod().sum())
        return Level(
            doubt,
            items=len(said),
            judged=len(known),
            wrong=int(wrong.sum()),
            bound=float(rates[len(rates) - shown]) if shown else 1.0,
            capital=float(largest[np.searchsorted(rates, self.target_error)]),
        )

    def _needed(self, levels: int) -> float:
        return math.log(levels / (1 - self.confidence))

    @cached_property
    def kept(self) -> Level | None:
        """The loosest level that keeps the target or, where none does, the one of least bound; None: too little."""
        keeping = [one for one in self.levels if one.bound <= self.target_error]
        if keeping:
            return keeping[-1]
        best = min(reversed(self.levels), key=lambda one: one.bound, default=None)
        return best if best is not None and best.bound <= WORST else None

    @property
    def answered(self) -> int:
        """Items that people have answered for."""
        return int((self.said != UNSAID).sum())

    @property
    def met(self) -> bool:
        """Whether the target is promised."""
        return self.kept is not None and self.kept.bound <= self.target_error

    @property
    def bound(self) -> float | None:
        """What is promised of the accepted hits: the target or, where that is not shown, the least that is."""
        if self.kept is None:
            return None
        return self.target_error if self.met else self.kept.bound

    @property
    def promised(self) -> float:
        """What a refusal names: the bound, or before there is one what was asked for."""
        return self.target_error if self.bound is None else self.bound

    @property
    def tested(self) -> Tensor:
        """Doubts (N,) of the items' first hits, which those of queries are compared with."""
        return self.doubt

    @property
    def threshold(self) -> float:
        """The largest doubt that is accepted; −inf: none."""
        return -math.inf if self.kept is None else self.kept.doubt

    @property
    def coverage(self) -> float:
        """Share of the items whose first hit is accepted."""
        return 0.0 if self.kept is None else self.kept.items / len(self.doubt)

    @property
    def queries(self) -> int:
        """Answers that the promise rests on."""
        return 0 if self.kept is None else self.kept.judged

    def answers(self, doubt: Tensor) -> Tensor:
        """Whether hits of this doubt (n,) are accepted, (n,) bool; the likelier ones where nothing is promised."""
        return doubt <= (LIKELIER if self.kept is None else self.threshold)

    def at(self, *, target_error: float | None = None, confidence: float | None = None) -> AskedPairs:
        """The same answers under another promise."""
        return replace(
            self,
            target_error=self.target_error if target_error is None else target_error,
            confidence=self.confidence if confidence is None else confidence,
        )

    def sentence(self) -> Sentence:
        """What is promised, or what would have to be answered first."""
        sure, told = (
            f"{self.confidence:.0%} confidence",
            f"{self.answered:,} pair{'s' * (self.answered != 1)}",
        )
        values = {"target_error": self.target_error, "bound": self.bound, "answered": self.answered}
        if self.kept is None:
            return Sentence(
                f"Nothing is promised of hits: people answered for {told}; `doubtless review` asks for more.",
                "nothing-answered",
                **values,
            )
        rests = (
            f"{self.coverage:.0%} of the items' first hits are accepted; people answered for {told}, of which "
            f"{self.queries:,} count here"
        )
        promised = f"At most {self.bound:.1%} of accepted hits are not the same thing, with {sure}"
        if self.met:
            return Sentence(f"{promised}: {rests}.", "answered", **values)
        return Sentence(
            f"{promised}, where {self.target_error:.1%} was asked for: {rests}.", "answered-less", **values
        )

    def next(self, most: int) -> list[int]:
        """Items (up to `most`) whose hits people should be asked about next, of the level that is aimed at."""
        if not self.levels:
            return []
        aims = [self._aim(), *range(len(self.levels))]
        for aim in aims:  # where all of a level was answered for, the next one
            inside = self.doubt.double() <= self.levels[aim].doubt
            waiting = (inside & (self.said == UNSAID)).nonzero()[:, 0]
            if len(waiting):
                return [int(item) for item in waiting[:most]]
        return []

    def _aim(self) -> int:
        """The loosest level that can be expected to be shown with as many answers as will come.

        If there is none it is the one that needs the fewest. Where no looser one is expected to keep the target, it
        is the level that does or, before there is one, the strictest.
        """
        items = np.array([one.items for one in self.levels])
        if self.answered < PILOT:
            return len(items) - 1
        expected = self._expected(items)
        target, needed = self.target_error, self._needed(len(items))
        risk = np.clip(expected, LEAST_RISK * target, 1 - 1e-9)
        gain = risk * np.log(risk / target) + (1 - risk) * np.log((1 - risk) / (1 - target))  # per answer
        missing = np.array([max(needed - one.capital, 0.5) for one in self.levels])
        kept = self.levels.index(self.kept) if self.met and self.kept is not None else -1
        open_ = (risk < target) & (np.arange(len(items)) > kept)
        answers = np.where(open_, missing / np.maximum(gain, 1e-12), np.inf)
        coming = PLANNED if self.met else max(PLANNED - self.answered, PLANNED / 2)
        if (answers <= coming).any():
            return int(np.flatnonzero(answers <= coming)[-1])
        return int(answers.argmin()) if open_.any() else max(kept, 0)

    def _expected(self, items: NDArray[np.int64]) -> Array:
        """Share of wrong hits that a level (L,) may well have, by answers and, like a few of them, by doubts."""
        sizes = np.diff(items, prepend=0)
        band = torch.zeros(len(self.doubt), dtype=torch.long)
        for one in self.levels[:-1]:
            band += self.doubt.double() > one.doubt
        doubt, wrong, said = (
            np.bincount(band.numpy(), weights=value.double().numpy(), minlength=len(items))
            for value in (self.doubt, self.said == OTHER, self.said != UNSAID)
        )
        rate = (BELIEVED * doubt / sizes + wrong) / (BELIEVED + said)
        share = (rate * sizes).cumsum() / items
        spread = np.sqrt((sizes**2 * rate * (1 - rate) / (BELIEVED + said)).cumsum()) / items
        return np.asarray(share - OPTIMISM * spread)
