"""What benchmarks/open_set.py counts on test queries; its docstring says what each number is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from scipy.special import betainc
from torch import Tensor

from doubtless.calibration.distribution import Distribution
from doubtless.calibration.open_risk import share_wrong
from doubtless.calibration.promise import Promise
from doubtless.metrics.open_set import open_set_form
from doubtless.metrics.ranking import Ranking, before, steps

LEVEL = 0.05
"""Of the test that a promise was surely broken."""
FALSE_ALARMS = (0.01, 0.1)
BINS = 15
DRAWS = 10
"""Of outcomes from the distribution itself, for a perfect one's ECE."""
Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Asked:
    """Uncertainty of known queries (n,), whether they are right, of unknown ones (m,), and the labels of these."""

    known: Tensor
    correct: Tensor
    unknown: Tensor
    unknown_label: Tensor
    gate: Tensor | None = None
    """(n + m,) the uncertainty with what is never answered infinite, if that is another."""

    @property
    def unknown_weight(self) -> Tensor:
        """(m,) that makes unknown labels equally likely; they sum to 1."""
        _, place, size = self.unknown_label.unique(return_inverse=True, return_counts=True)
        return 1 / (size[place].double() * len(size))

    def weight(self, share: float) -> Tensor:
        """(n + m,) of all queries where a share π is unknown; they sum to 1."""
        known = torch.full((len(self.known),), (1 - share) / len(self.known), dtype=torch.double)
        return torch.cat([known, share * self.unknown_weight])

    def came_to(self, answered: Tensor, share: float, bound: float) -> Record:
        """R and coverage of the answered queries (n + m,) bool, and whether R is above what was promised."""
        n = len(self.known)
        known, unknown = answered[:n].double(), (answered[n:].double() * self.unknown_weight).sum()
        wrong = float((known * ~self.correct).mean())
        risk = float(share_wrong(wrong, float(known.mean()), float(unknown), unknown=share))
        weight = self.weight(share)[answered]
        worth = float(weight.sum() ** 2 / weight.square().sum()) if float(weight.sum()) > 0 else 0.0
        surely = chance_of_as_many(risk * worth, worth, bound) < LEVEL if worth else False
        return {
            "risk": risk if worth else None,
            "coverage": (1 - share) * float(known.mean()) + share * float(unknown),
            "known_answered": float(known.mean()),
            "unknown_answered": float(unknown),
            "broken": bool(worth and risk > bound),
            "surely": bool(surely),
        }


def chance_of_as_many(wrong: float, answers: float, rate: float) -> float:
    """P(Bin(answers, rate) ≥ wrong), by the beta integral between whole numbers.

    >>> round(chance_of_as_many(1, 2, 0.5), 6), chance_of_as_many(0, 2, 0.5)
    (0.75, 1.0)
    """
    if wrong <= 0 or rate >= 1:
        return 1.0
    return float(betainc(wrong, max(answers - wrong, 0.0) + 1, rate))


def held(asked: Asked, promise: Promise) -> Record:
    """What came of a promise: at the threshold that keeps what it says, be that the target or not."""
    terms = promise.terms
    score = 1 - torch.cat([asked.known, asked.unknown])
    # The score was 1 − uncertainty before: rounding must not put a query on the other side of its threshold.
    answered = score >= promise.fallback - 1e-12
    found = asked.came_to(answered, terms.unknown, promise.bound)
    oracle = oracle_coverage(asked, terms.unknown, terms.target_error)
    return found | {"met": promise.met, "bound": promise.bound, "oracle": oracle}


def oracle_coverage(asked: Asked, share: float, target: float) -> float:
    """The largest coverage at a risk of the target on these very queries."""
    return _form(asked, share, (target,))[f"open_coverage@risk{target:g}"]


def of_open_sets(asked: Asked) -> dict[str, float]:
    """FNIR at FPIR, and OSCR."""
    found = _form(asked, 0.0, ())
    return {name: found[name] for name in ("oscr", *(f"fnir@fpir{rate:g}" for rate in FALSE_ALARMS))}


def _form(asked: Asked, share: float, risks: tuple[float, ...]) -> dict[str, float]:
    form = open_set_form(
        asked.known, asked.correct, asked.unknown, share=share, risks=risks, false_alarms=FALSE_ALARMS
    )
    ones = torch.ones(1, len(asked.known), dtype=torch.double)
    return {name: float(value) for name, value in form(ones, asked.unknown_weight.unsqueeze(0)).items()}


def auroc(score: Asked, answers: Asked, share: float) -> float:
    """Chance that a right answer is surer than a wrong one or an unknown query, ties counting half."""
    weight = answers.weight(share)
    right = torch.cat([answers.correct, torch.zeros(len(answers.unknown), dtype=torch.bool)])
    ranking = Ranking.of(torch.cat([score.known.double(), score.unknown.double()]))
    good, bad = (ranking.totals((weight * part).unsqueeze(0)) for part in (right, ~right))
    pairs = (steps(bad) * (before(good) + steps(good) / 2)).sum(1)
    return float(pairs / (good[:, -1] * bad[:, -1]))


def expected_error(chance: Tensor, outcome: Tensor, weight: Tensor, bins: int = BINS) -> float:
    """Σ over bins of equal weight of |Σ weight · (chance − outcome)|, weights (n,) summing to 1."""
    order = chance.argsort()
    apart, weight = (chance.double() - outcome.double())[order], weight[order]
    place = ((weight.cumsum(0) - weight / 2) * bins).long().clamp(0, bins - 1)
    return float(torch.zeros(bins, dtype=torch.double).index_add_(0, place, weight * apart).abs().sum())


def calibration_errors(
    found: Distribution, truth: Tensor, weight: Tensor, *, seed: int
) -> dict[str, list[float]]:
    """Name → ECE as measured and of a perfect one; truth (n,) is a label, −1 for one that is not in the gallery."""
    table = torch.cat([found.probability, found.none.unsqueeze(1)], dim=1)  # (n, M + 1), none last
    width = table.shape[1] - 1
    same = (found.label == truth.unsqueeze(1)) & (truth >= 0).unsqueeze(1)
    place = torch.where(same.any(1), same.to(torch.uint8).argmax(1), width)
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.multinomial(table, 1, generator=generator).squeeze(1) for _ in range(DRAWS)]
    ranked = found.probability.argsort(dim=1, descending=True, stable=True)
    of = {"top": table.argmax(1), "first": ranked[:, 0], "none": torch.full_like(place, width)}
    if width > 1:
        of["second"] = ranked[:, 1]

    def error(column: Tensor, outcome: Tensor) -> float:
        return expected_error(table.gather(1, column.unsqueeze(1)).squeeze(1), column == outcome, weight)

    return {
        name: [error(column, place), sum(error(column, outcome) for outcome in drawn) / DRAWS]
        for name, column in of.items()
    }
