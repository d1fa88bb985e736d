"""How sure "same" and "different" must be, so that few of the pairs that are decided are decided wrongly.

Two promises, one about the pairs called the same and one about those called different: at most a share r of them
is called so wrongly, where a share `prior` of the pairs is the same. Both are a `Promise`, under one of two terms.
Where the share asked for cannot be promised, the least that can is promised in its place, unless that is too much.

"gallery"   A share of the pairs is of labels that are not in the gallery; the others are photos of its labels,
            which stay. Pairs of the gallery are known queries, right if the pair is what is said; of these, ones
            that share no photo are counted. Pairs with both labels left out are absent queries if they are not
            what is said; if they are, they are not counted at all, which errs to the safe side.
"drawn"     All labels are new: known queries are the pairs that are what is said, all of them right, absent ones
            those that are not, so that R = (1 − prior) d / (prior s + (1 − prior) d) for "same", with s and d the
            shares of pairs of one label and of two that are called so.

What is drawn, where labels are. A pair that is the same belongs to one label, so for "different", whose mistakes
are such pairs, labels are drawn. A pair of two labels belongs to both: two products that look alike are mistaken
for each other whichever is asked for, and a bet on both would win or lose twice. For "same", whose mistakes are
such pairs, labels are therefore coupled, the two that look most alike first, and couples are what is drawn. A label
that looks like several others is coupled with one of them; what the others still have in common with it is
neglected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from doubtless.calibration.open_risk import Terms
from doubtless.calibration.outcomes import Outcomes
from doubtless.calibration.pairs.labelled import LabelledPairs
from doubtless.calibration.promise import Promise
from doubtless.errors import InputError

Side = Literal["same", "different"]
CALLED = {"same": "the same", "different": "different"}
NAMES = ("odds", "beyond", "same", "label", "couple", "apart", "unknown")
THINNING_SEED = 0


@dataclass(frozen=True)
class PairTerms:
    """What is asked for."""

    prior: float = 0.5
    """Share of the pairs that are the same."""
    target_error: float = 0.05
    unknown: float = 0.1
    """Share of the pairs whose labels are not in the gallery; with known="drawn", as the pairs were drawn."""
    confidence: float = 0.95
    known: str = "gallery"

    def __post_init__(self) -> None:
        if not 0 < self.target_error < 1:
            raise InputError(f"The target_error must lie between 0 and 1, got {self.target_error}.")


@dataclass(frozen=True, eq=False)
class PairOutcomes:
    """What calibration pairs (m,) came to."""

    odds: Tensor
    """Cross-fitted log-odds of being the same, in the gallery."""
    beyond: Tensor
    """The same without both labels."""
    same: Tensor
    label: Tensor
    """The first item's."""
    couple: Tensor
    """Its label and the one that looks most like it."""
    apart: Tensor
    unknown: Tensor

    @classmethod
    def of(cls, odds: Tensor, beyond: Tensor, pairs: LabelledPairs) -> PairOutcomes:
        """From both log-odds (m,) of pairs."""
        same, label = pairs.same, pairs.label
        couple = coupled(beyond[~same], label[~same], label[:, 0])
        return cls(odds, beyond, same, label[:, 0].clone(), couple, pairs.apart, pairs.unknown)

    def promise(self, side: Side, chance: Callable[[Tensor], Tensor], terms: PairTerms) -> Promise:
        """How sure a side must be; `chance` takes log-odds to P(same), and a side that is less likely is not said.

        The promise's scores are log-odds of the side that is said.
        """
        sign = 1 if side == "same" else -1
        right = self.same if side == "same" else ~self.same
        group = self.couple if side == "same" else self.label

        def score(odds: Tensor) -> Tensor:
            likely = sign * (chance(odds) - 0.5) > 0
            return (sign * odds.double()).masked_fill(~likely, -torch.inf)

        if terms.known == "drawn":
            said = score(torch.where(self.unknown, self.beyond, self.odds))
            every = torch.ones_like(right)
            unknown = 1 - terms.prior if side == "same" else terms.prior
            outcomes = Outcomes(said[right], every[right], group[right], said[~right], group[~right])
        else:
            known = self.apart & self._thinned(terms.prior)
            wrong = terms.unknown * (1 - terms.prior if side == "same" else terms.prior)
            unknown = wrong / (1 - terms.unknown + wrong)
            absent = score(self.beyond)
            outcomes = Outcomes(
                *(score(self.odds)[known], right[known], group[known]), *(absent[~right], group[~right])
            )
        # Pairs are drawn evenly from labels, so that a couple weighs twice a label that is left alone.
        return Promise.of(
            outcomes, Terms(terms.target_error, unknown, terms.confidence, known=terms.known, per="query")
        )

    def _thinned(self, prior: float) -> Tensor:
        """Pairs (m,) to be kept so that a share `prior` is the same, where it was half."""
        draw = torch.rand(len(self.same), generator=torch.Generator().manual_seed(THINNING_SEED))
        odds = prior / (1 - prior)
        return draw < torch.where(self.same, min(1.0, odds), min(1.0, 1 / odds))

    def tensors(self, prefix: str) -> dict[str, Tensor]:
        """For `Index.attach`."""
        return {f"{prefix}{name}": getattr(self, name) for name in NAMES}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], prefix: str) -> PairOutcomes | None:
        """The outcomes whose `tensors` these are; None where none were saved."""
        if f"{prefix}odds" not in tensors:
            return None
        return cls(*(tensors[f"{prefix}{name}"] for name in NAMES))


def coupled(odds: Tensor, label: Tensor, wanted: Tensor) -> Tensor:
    """The couple (m,) of labels (m,), named by its smaller label; pairs of two labels (n, 2) and their odds (n,).

    >>> pairs = torch.tensor([[1, 2], [2, 3], [3, 4]])
    >>> coupled(torch.tensor([0.5, 0.75, 0.25]), pairs, torch.arange(1, 5)).tolist()
    [1, 2, 2, 4]
    """
    partner: dict[int, int] = {}
    for one, other in label[odds.argsort(descending=True, stable=True)].tolist():
        if one not in partner and other not in partner:
            partner[one], partner[other] = other, one
    every, place = wanted.unique(return_inverse=True)
    names = torch.tensor([min(one, partner.get(one, one)) for one in every.tolist()], dtype=wanted.dtype)
    return names[place]


def promised(promise: Promise, side: Side, terms: PairTerms) -> str:
    """What is promised of pairs that are called so, in a sentence."""
    units = "couples of labels" if side == "same" else "labels"
    wrong, called = "not the same" if side == "same" else "the same", CALLED[side]
    among = f"where {terms.prior:.3g} of the pairs are the same"
    if terms.known == "drawn":
        among += " and all labels are new"
    elif terms.unknown > 0:
        among += f" and {terms.unknown:.3g} of labels that are not in the gallery"
    kept = (
        f"At most {promise.bound:.1%} of the pairs called {called} are {wrong}, with {terms.confidence:.0%} "
        f"confidence, {among}"
    )
    if promise.met:
        return f"{kept}."
    needed = promise.outlook.labels
    more = "" if needed is None else f"; it would take about {needed} {units} like these"
    refused = f"{terms.target_error:.1%} cannot be promised from {promise.labels} {units}{more}"
    if promise.is_worth_keeping:
        return f"{kept}; {refused}."
    least = f"the least that can is {promise.bound:.1%}" if promise.bound < 1 else "nothing below 100% can"
    return f"Of pairs called {called}, {among}, an error of at most {refused}; {least}."


def least_score(promise: Promise) -> float:
    """The log-odds from which on a side is said; inf: never."""
    return promise.fallback if promise.is_worth_keeping else math.inf


def figures(promise: Promise) -> dict[str, Any]:
    """What a record keeps of a promise; `decided` is the share of the known queries that are called so."""
    return {
        "met": promise.met,
        "bound": promise.bound,
        "error": promise.error,
        "decided": promise.known_answered if promise.is_worth_keeping else 0.0,
        "drawn": promise.labels,
    }
