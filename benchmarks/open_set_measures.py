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


def auroc(asked: Asked, share: float) -> float:
    """Chance that a right answer is surer than a wrong one or an unknown query, ties counting half."""
    weight = asked.weight(share)
    right = torch.cat([asked.correct, torch.zeros(len(asked.unknown), dtype=torch.bool)])
    ranking = Ranking.of(torch.cat([asked.known.double(), asked.unknown.double()]))
    good, bad = (ranking.totals((weight * part).unsqueeze(0)) for part in (right, ~right))
    pairs = (steps(bad) * (before(good) + steps(good) / 2)).sum(1)
    return float(pairs / (good[:, -1] * bad[:, -1]))


def mixture(asked: Asked, share: float, *, seed: int) -> Tensor:
    """Rows of the n + m queries: as many as can be with a share π of unknown ones, whose labels are equally likely.

    Queries count alike in it. Weights would not do: an outcome drawn for a heavy query scatters more than it does
    among the light ones that it stands for.
    """
    generator = torch.Generator().manual_seed(seed)
    known, unknown = len(asked.known), len(asked.unknown)
    wanted = min(unknown, round(known * share / (1 - share)))
    others = torch.multinomial(asked.unknown_weight, wanted, generator=generator)
    kept = torch.randperm(known, generator=generator)[: round(wanted * (1 - share) / share)]
    return torch.cat([kept, known + others])


def expected_error(chance: Tensor, outcome: Tensor, bins: int = BINS) -> float:
    """Mean over n queries of |mean of chance − outcome| in their bin, bins (of the sorted chances) equally full."""
    apart = (chance.double() - outcome.double())[chance.argsort()]
    place = torch.arange(len(apart)) * bins // max(1, len(apart))
    return float(torch.zeros(bins, dtype=torch.double).index_add_(0, place, apart).abs().sum() / len(apart))


def reliability(chance: Tensor, outcome: Tensor, weight: Tensor, bins: int = BINS) -> list[float]:
    """Σ weight · (chance − outcome) in bins of equal width: of many divisions together they say more."""
    place = (chance * bins).long().clamp(0, bins - 1)
    apart = weight * (chance.double() - outcome.double())
    return torch.zeros(bins, dtype=torch.double).index_add_(0, place, apart).tolist()


def calibration_errors(
    found: Distribution, truth: Tensor, asked: Asked, share: float, *, seed: int
) -> dict[str, dict[str, Any]]:
    """Name → ECE as measured and of a perfect one, and what all queries add to the bins of a pooled one.

    truth (n + m,) is a label, −1 for one that is not in the gallery.
    """
    table = torch.cat([found.probability, found.none.unsqueeze(1)], dim=1)  # (n + m, M + 1), none last
    width = table.shape[1] - 1
    same = (found.label == truth.unsqueeze(1)) & (truth >= 0).unsqueeze(1)
    place = torch.where(same.any(1), same.to(torch.uint8).argmax(1), width)
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.multinomial(table, 1, generator=generator).squeeze(1) for _ in range(DRAWS)]
    ranked = found.probability.argsort(dim=1, descending=True, stable=True)
    of = {"top": table.argmax(1), "first": ranked[:, 0], "none": torch.full_like(place, width)}
    if width > 1:
        of["second"] = ranked[:, 1]
    some, weight = mixture(asked, share, seed=seed), asked.weight(share)
    errors: dict[str, dict[str, Any]] = {}
    for name, column in of.items():
        chance = table.gather(1, column.unsqueeze(1)).squeeze(1)
        perfect = [expected_error(chance[some], (column == outcome)[some]) for outcome in drawn]
        errors[name] = {
            "error": expected_error(chance[some], (column == place)[some]),
            "perfect": sum(perfect) / DRAWS,
            "bins": reliability(chance, column == place, weight),
        }
    return errors
