"""One distribution per query: over the labels among its hits and *none of these*, summing to one.

Which label it is, if it is one of them: a conditional logit over the labels' evidence, fitted on searches whose
label was found. Whether it is none: a logistic regression on the evidence of the labels that come into question, on
the scores and on how much the labels disagree, fitted on the same queries in a gallery with their label (present)
and without it (absent). Absent searches stand in for things that are not there.

A query must not have shaped what it is measured by. Present searches are measured in a metric fitted without their
own item, absent ones without their whole label, just as queries from outside will find it; and every probability
that a promise is made from comes from weights that saw no query of its label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from doubtless.calibration.choice import ConditionalLogit, shares
from doubtless.calibration.evidence.background import Background
from doubtless.calibration.evidence.evidence import (
    NARROW,
    OF_SCORES,
    OF_VECTORS,
    WIDE,
    Evidence,
    LabelHits,
    Statistics,
    Vectors,
    evidence,
)
from doubtless.calibration.evidence.within import LabelSpread, WithinMetric
from doubtless.calibration.regression import Logistic
from doubtless.errors import InputError

ATTACHMENT = "distribution"
DEPTH = 50
"""Hits of a query that labels are looked for among."""
FOLDS = 5
AT_FITTING = 0.5
"""Share of absent queries that the regression of *none* is fitted at; any other is a shift of its odds."""
UNKNOWN = 0.1
"""Share of queries whose label is not in the gallery, where nobody says another."""
WORTH = 0.03
"""Of an independent query, what one among others of its label counts for against the ridge: where labels are few,
the regression of *none* would else describe these labels, not labels."""
NEVER_CERTAIN = 1e-6
"""A share this close to 1 counts as this close: its log-odds stay finite."""


@dataclass(frozen=True, eq=False)
class Distribution:
    """Probabilities of n queries: of up to M labels each, in the order of their first hit, and of none of them."""

    label: Tensor
    """(n, M) int64; −1 where a query found fewer labels."""
    probability: Tensor
    """(n, M) float64; 0 where there is no label."""
    none: Tensor
    """(n,) float64: 1 where no labelled item was found."""

    def __len__(self) -> int:
        return len(self.none)

    @property
    def first(self) -> tuple[Tensor, Tensor]:
        """The most probable label (n,), −1 where there is none at all, and its probability (n,)."""
        chance, place = self.probability.max(1)
        return self.label.gather(1, place.unsqueeze(1)).squeeze(1), chance

    @property
    def sureness(self) -> Tensor:
        """What is answered by, (n,): the most probable label's probability; −inf where none is more probable."""
        best = self.first[1]
        return best.masked_fill(self.none >= best, -torch.inf)

    def of(self, label: Tensor) -> Tensor:
        """The probability (n, k) of labels (n, k), such as those of the hits; 0 of one that is not among them."""
        same = (label.unsqueeze(2) == self.label.unsqueeze(1)) & (label >= 0).unsqueeze(2)
        return torch.einsum("nkm,nm->nk", same.double(), self.probability)

    def outcome(self, label: Tensor) -> Tensor:
        """The probability (n,) that was given to what it was: a label (n,) if it is among them, else none."""
        chance = self.of(label.unsqueeze(1)).squeeze(1)
        among = ((self.label == label.unsqueeze(1)) & (label >= 0).unsqueeze(1)).any(1)
        return torch.where(among, chance, self.none)

    def with_foreign(self, share: Tensor) -> Distribution:
        """The same where each query may, with a probability (n,), show nothing of the kind at all."""
        rest = 1 - share.double()
        return Distribution(self.label, self.probability * rest.unsqueeze(1), 1 - (1 - self.none) * rest)

    def by_probability(self) -> Distribution:
        """The same, each query's labels in falling order of probability; the nearer first where they are equal."""
        order = self.probability.argsort(dim=1, descending=True, stable=True)
        return Distribution(self.label.gather(1, order), self.probability.gather(1, order), self.none)

    def holding(self, share: float) -> Tensor:
        """How many labels (n,), in their order, hold a share of what is not none; all of them where fewer do not.

        >>> one = Distribution(torch.tensor([[4, 2, 7]]), torch.tensor([[0.6, 0.2, 0.1]]), torch.tensor([0.1]))
        >>> one.holding(0.6).item(), one.holding(0.7).item(), one.holding(0.99).item()
        (1, 2, 3)
        """
        down_to = self.probability.cumsum(1)
        # 1e-6: a sum of all labels may be a digit less than 1 − none
        short = down_to < share * (1 - self.none).unsqueeze(1) - 1e-6
        return torch.minimum(1 + short.sum(1), (self.label >= 0).sum(1))

    def __getitem__(self, queries: Tensor) -> Distribution:
        return Distribution(self.label[queries], self.probability[queries], self.none[queries])


@dataclass(frozen=True, eq=False)
class Weights:
    """The two regressions, without the statistics that evidence is measured by."""

    choice: ConditionalLogit
    none: Logistic
    missed: float
    """Share of the present queries whose label is not among their hits: for them it is none of these, too."""

    @classmethod
    def fit(cls, present: Evidence, label: Tensor, absent: Evidence) -> Weights:
        """From evidence of queries of known labels (n,), and of queries in a gallery without their label."""
        right = (present.label == label.unsqueeze(1)) & present.there
        found = right.any(1)
        if not bool(found.any()) or not len(absent):
            raise InputError(
                "No query found its label, or none searched a gallery without it; the distribution is fitted on "
                "both."
            )
        table = _stacked(present)
        choice = ConditionalLogit.fit(
            table[found], present.there[found], right[found].to(torch.uint8).argmax(1), rising=_rising(table)
        )
        both = torch.cat(
            [none_features(present, choice(table)), none_features(absent, choice(_stacked(absent)))]
        )
        outcome = torch.cat([~found, torch.ones(len(absent), dtype=torch.bool)])
        weight = torch.empty(len(outcome), dtype=torch.double)
        weight[: len(present)] = (1 - AT_FITTING) * WORTH * len(outcome) / len(present)
        weight[len(present) :] = AT_FITTING * WORTH * len(outcome) / len(absent)
        none = Logistic.fit(both, outcome, weight=weight)
        return cls(choice, none, float((~found).double().mean()))

    def __call__(self, given: Evidence, *, unknown: float = UNKNOWN) -> Distribution:
        """The distribution where a share `unknown` of the queries has a label that is not in the gallery."""
        return self.told(given, *self.shares_and_odds(given), unknown=unknown)

    def shares_and_odds(self, given: Evidence) -> tuple[Tensor, Tensor]:
        """Shares (n, M) of labels if it is one of them, and log-odds (n,) of none as at the fitting."""
        # Calibrations saved before there were as many columns know the first of them only.
        utility = self.choice(_stacked(given)[:, :, : len(self.choice.weight)])
        return shares(utility, given.there), self.none(none_features(given, utility))

    def told(self, given: Evidence, share: Tensor, odds: Tensor, *, unknown: float) -> Distribution:
        """From what `shares_and_odds` says: another share of unknown queries only moves the odds."""
        moved = odds + shift_of_none(unknown, missed=self.missed)
        none = torch.sigmoid(moved).masked_fill(~given.there.any(1), 1.0)
        return Distribution(given.label, share * (1 - none).unsqueeze(1), none)


@dataclass(frozen=True, eq=False)
class LabelDistribution:
    """Hits → `Distribution`: the weights, and the statistics of the gallery they were fitted with."""

    weights: Weights
    by: Statistics

    def __call__(
        self, hits: LabelHits, *, vectors: Vectors | None = None, unknown: float = UNKNOWN
    ) -> Distribution:
        """Probabilities of queries from outside. The hits must reach as deep as when it was fitted."""
        found = self.weights(evidence(hits, self.by, vectors=vectors), unknown=unknown)
        # What is asked beside a query must not change what it is told, not even in the last digits.
        chance = found.probability.round(decimals=9)
        return Distribution(found.label, chance, (1 - chance.sum(1)).clamp_min(0).round(decimals=9))

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON for `Index.attach`."""
        tensors = self.weights.choice.tensors("choice.") | self.weights.none.tensors("none.")
        tensors |= self.by.spread.tensors("spread.")
        if self.by.metric is not None:
            tensors |= self.by.metric.tensors("metric.")
        if self.by.background is not None:
            tensors |= self.by.background.tensors("background.")
        record = {
            "scale": self.by.scale,
            "missed": self.weights.missed,
            "vectors": self.by.metric is not None,
            "background": self.by.background is not None,
        }
        return tensors, record

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> LabelDistribution:
        """The model whose `state` this is."""
        metric = WithinMetric.from_tensors(tensors, "metric.") if record["vectors"] else None
        background = None
        if record.get("background", False):  # calibrations saved before there was one have none
            background = Background.from_tensors(tensors, "background.")
        by = Statistics(record["scale"], LabelSpread.from_tensors(tensors, "spread."), metric, background)
        choice = ConditionalLogit.from_tensors(tensors, "choice.")
        return cls(Weights(choice, Logistic.from_tensors(tensors, "none."), record["missed"]), by)


def shift_of_none(unknown: float, *, missed: float = 0.0) -> float:
    """What is added to the log-odds of none where a share `unknown` of the queries is not in the gallery.

    None of these are the unknown and, of the others, the share `missed` that does not find its label. −inf: never.

    >>> round(shift_of_none(0.5), 6), round(shift_of_none(0.1), 3)
    (0.0, -2.197)
    """
    if not 0 <= unknown < 1:
        raise InputError(f"The share of unknown queries must be at least 0 and less than 1, got {unknown}.")

    def odds(share: float) -> float:
        return (share + (1 - share) * missed) / ((1 - share) * (1 - missed))

    return float(torch.tensor(odds(unknown) / odds(AT_FITTING), dtype=torch.double).log())


def none_features(given: Evidence, utility: Tensor) -> Tensor:
    """(n, G) float64: what speaks for none of these. Labels' evidence counts as far as a label is probable.

    Expectations, not the first label's own numbers: two labels that are equally probable then have an equal say,
    whichever of them comes first.
    """
    chance = shares(utility, given.there)
    features = [*given.scores.values(), *_disagreement(chance, chance)]
    for kernel, width in (("narrow", NARROW), ("wide", WIDE)):
        features += _disagreement(shares(given.table[kernel] / width, given.there), chance)
    names = [name for name in given.table if name != "best"]
    features += [(chance * given.table[name]).sum(1) for name in names]
    features.append((chance * _best_other(given)).sum(1))
    return torch.stack(features, dim=1)


def _disagreement(vote: Tensor, chance: Tensor) -> list[Tensor]:
    """−log(1 − expected vote) and the entropy of the votes (n, M), (n,) each."""
    expected = (vote * chance).sum(1).clamp_max(1 - NEVER_CERTAIN)
    return [-torch.log1p(-expected), torch.special.entr(vote).sum(1)]


def _best_other(given: Evidence) -> Tensor:
    """The best score (n, M) of another label, the last score where there is no other."""
    best = given.table["best"].masked_fill(~given.there, -torch.inf)
    two = best.topk(min(2, best.shape[1]), dim=1)
    first, second = two.values[:, :1], two.values[:, -1:]
    is_first = torch.arange(best.shape[1], device=best.device) == two.indices[:, :1]
    if best.shape[1] < 2:
        second = torch.full_like(first, -torch.inf)
    other = torch.where(is_first, second, first)
    return torch.where(other.isfinite(), other, given.scores["last"].unsqueeze(1))


def _stacked(given: Evidence) -> Tensor:
    """The evidence that chooses among labels, (n, M, F).

    The cosine stands there twice, as it is and as −(1 − cosine)²/2, so that what it adds may be less the nearer a
    label is: where labels have an item or two each, a query is now and then far nearer to a wrong one.
    """
    names = (*OF_SCORES, *(name for name in OF_VECTORS if name in given.table))
    columns = [given.table[name] for name in names]
    if "cosine" in given.table:
        columns.append(-(1 - given.table["cosine"]).square() / 2)
    return torch.stack(columns, dim=2)


def _rising(table: Tensor) -> Tensor:
    """Which columns (F,) of the evidence may never speak against a label: those of the cosine.

    Each of them rises up to a cosine of 1, and so does their sum, beyond what calibration queries came to as well.
    """
    rising = torch.zeros(table.shape[2], dtype=torch.bool, device=table.device)
    rising[len(OF_SCORES) + 1 :] = True
    return rising
