"""A test that a mean over labels lies below zero, valid for every distribution of bounded values, by betting.

Someone who believes it holds a capital of one and may bet, label by label, a part λ of it against the value X: the
capital becomes (1 − λX) times itself. If the mean is not below zero, no rule for choosing λ from the labels
before makes the capital grow on average, so it ever reaches 1/level with probability at most `level` (Ville 1939;
Waudby-Smith and Ramdas 2024). Only the power depends on the rule. Here the number of labels is known, so the bet is
that of someone who replicates a test at the last label: with n labels to go and a deviation σ learned from those
before, a capital W stands for a test that still rejects with probability p = level · W = Φ(z), and its change by X
is −X φ(z)/(σ√n) to first order. Bets that aim at a capital at a known end are also in Voráček and Orabona (2025).
Where values are 0 or the largest possible and none was seen, it is the exact binomial test: from twenty labels on,
or of shares up to a tenth. Of a larger share fewer labels show a little less than they could.

Labels must be in random order, or in one that has nothing to do with their values.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
PRIOR = 10.0
"""Labels that the widest spread counts as, before any was seen."""
ALMOST = 1 - 1e-12
SMALLEST = 1e-300
LOST = 1e-12
"""A capital that is given up: the promise only becomes safer."""
STRETCH = 64
"""Labels after which those that have won or lost are left out."""
NEARLY = 0.9
"""From this chance on bets stay as they are: the slope falls to 0 and would never bring the rest."""


def mean_is_below_zero(value: Array, floor: Array, ceiling: Array, level: Array) -> NDArray[np.bool_]:
    """Whether the mean of `value` (labels, tests) over labels is shown to be below 0, one verdict per test.

    Values lie within −floor and ceiling (tests,), both positive; each verdict is wrong with probability at most its
    level (tests,).

    >>> answered = np.zeros((59, 1))  # no unknown label of 59 was answered: fewer than 5 % are
    >>> allowed = np.array([0.05])
    >>> mean_is_below_zero(answered - allowed, allowed, 1 - allowed, np.array([0.05])).tolist()
    [True]
    >>> mean_is_below_zero(answered[:58] - allowed, allowed, 1 - allowed, np.array([0.05])).tolist()
    [False]
    """
    labels, tests = value.shape
    capital = level.copy()  # as a part of what is needed: the chance p of the replicated test
    mean, spread = (
        np.zeros(tests),
        PRIOR * floor * ceiling,
    )  # of a value that is −floor or ceiling, with mean 0
    for start in range(0, labels, STRETCH):
        playing = ((capital < ALMOST) & (capital > LOST)).nonzero()[0]
        if not len(playing):
            break
        seen = value[start : start + STRETCH, playing]
        state = capital[playing], mean[playing], spread[playing]
        capital[playing], mean[playing], spread[playing] = _bet(
            state, seen, 1 / ceiling[playing], start, labels
        )
    return np.asarray(capital >= ALMOST)


def _bet(
    state: tuple[Array, Array, Array], value: Array, largest: Array, start: int, labels: int
) -> tuple[Array, Array, Array]:
    """Capital, mean and spread (tests,) after some more of the labels, of which `start` came before."""
    capital, mean, spread = state
    for number, seen in enumerate(value, start):
        deviation = np.sqrt(spread * ((labels - number) / (PRIOR + number)))
        bet = np.minimum(_slope(capital) / deviation, largest)
        bet[capital >= ALMOST] = 0.0  # it is won
        capital = capital * np.maximum(1 - bet * seen, 0.0)
        before = seen - mean
        mean = mean + before / (PRIOR + number + 1)
        spread = spread + before * (seen - mean)
    return capital, mean, spread


def _slope(chance: Array) -> Any:
    """φ(z)/Φ(z) at Φ(z) = chance."""
    from scipy.special import ndtri

    bounded = np.minimum(np.maximum(chance, SMALLEST), NEARLY)  # of a few tests np.clip takes longer
    place = ndtri(bounded)
    return np.exp(-0.5 * place * place) / (np.sqrt(2 * np.pi) * bounded)
