"""Queries of labels that are in the gallery, and of labels that are not: is the right one answered, and no other?

Every function takes the uncertainty of known queries (n,), whether their answer is right (n,), and the uncertainty
of unknown queries (m,), whose label is not in the gallery. A query is answered where its uncertainty is at most a
threshold; thresholds are all values there are, so that ties are answered together, and one below them all, which
answers nothing. All numbers depend on the order of the uncertainties only. Infinite uncertainty is the least sure
of all; NaN is refused.

FNIR and FPIR are the false-negative and false-positive identification rates of ISO/IEC 19795-1 at rank 1; DIR at
FAR (detection and identification rate at a false alarm rate) is of Phillips, Grother and Micheals, "Evaluation
Methods in Face Recognition", 2011; OSCR (open-set classification rate) of Dhamija, Günther and Boult, "Reducing
Network Agnostophobia", 2018; its area is OpenAUC of Wang et al., "OpenAUC: Towards AUC-Oriented Open-Set
Recognition", 2022.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.metrics.labels import label_means
from doubtless.metrics.measure import Curve
from doubtless.metrics.metric import OPEN_SET, Metric, register
from doubtless.metrics.ood import CURVE_POINTS, PairForm
from doubtless.metrics.ranking import Ranking, before, steps
from doubtless.metrics.views import FALSE_ALARMS, RISKS, OpenSet

SLACK = 1 + 1e-12  # as in coverage@risk: a tenth of ten must be one, whatever floating point makes of it


@dataclass(frozen=True, eq=False)
class OpenSetRates:
    """What is answered at each threshold (g,), rising; all are shares of the known or of the unknown queries.

    answered   c₁, of known queries; wrong: e₁, of known queries; alarms: a₀, of unknown queries
    """

    threshold: Tensor
    answered: Tensor
    wrong: Tensor
    alarms: Tensor

    def coverage(self, share: float) -> Tensor:
        """(1−π) c₁ + π a₀, the share of all queries that is answered where a share π is unknown, (g,)."""
        return _mixed(self.answered, self.alarms, share)

    def errors(self, share: float) -> Tensor:
        """(1−π) e₁ + π a₀, the share of all queries that is answered and wrong, (g,)."""
        return _mixed(self.wrong, self.alarms, share)

    def risk(self, share: float) -> Tensor:
        """R = errors/coverage, the share of wrong answers among all answers, (g,)."""
        return self.errors(share) / self.coverage(share)


def open_set_rates(known: Tensor, correct: Tensor, unknown: Tensor) -> OpenSetRates:
    """The rates at every threshold: one for each value that an uncertainty has, ties together.

    >>> rates = open_set_rates(torch.tensor([0.1, 0.4]), torch.tensor([True, False]), torch.tensor([0.2]))
    >>> rates.risk(0.5).tolist()
    [0.0, 0.6666666666666666, 0.75]
    """
    ranking = _ranked(known, correct, unknown)
    counts = _Counts.of(ranking, correct, *_ones(known, unknown))
    answered, right, alarms = (part.squeeze(0) for part in (counts.answered, counts.right, counts.alarms))
    values = torch.cat([known.double(), unknown.double()])[ranking.order][ranking.ends]
    return OpenSetRates(values, answered / len(known), (answered - right) / len(known), alarms / len(unknown))


def fnir_at_fpir(known: Tensor, correct: Tensor, unknown: Tensor, *, fpir: float) -> float:
    """Share of known queries not answered rightly, at the threshold that answers most with FPIR at most `fpir`.

    FNIR(t) = 1 − |known with u ≤ t and a right answer|/n, FPIR(t) = |unknown with u ≤ t|/m; the smallest FNIR of
    all t with FPIR(t) ≤ fpir. In [0, 1], lower is better; NaN where there are no known or no unknown queries.

    >>> known, right = torch.tensor([0.1, 0.3, 0.5]), torch.tensor([True, True, True])
    >>> round(fnir_at_fpir(known, right, torch.tensor([0.4, 0.9]), fpir=0.1), 3)
    0.333
    """
    return 1 - dir_at_far(known, correct, unknown, far=fpir)


def dir_at_far(known: Tensor, correct: Tensor, unknown: Tensor, *, far: float) -> float:
    """Share of known queries answered rightly, where at most a share `far` of the unknown ones is answered.

    It is 1 − `fnir_at_fpir`: face recognition has both names. In [0, share of right answers], higher is better.

    >>> known, right = torch.tensor([0.1, 0.3, 0.5]), torch.tensor([True, True, True])
    >>> round(dir_at_far(known, right, torch.tensor([0.4, 0.9]), far=0.1), 3)
    0.667
    """
    form = open_set_form(known, correct, unknown, share=0.0, risks=(), false_alarms=(far,))
    return _value(form, known, unknown, f"dir@far{far:g}")


def oscr(known: Tensor, correct: Tensor, unknown: Tensor) -> float:
    """Area under the open-set classification rate: CCR(t) against FPR(t), straight lines between thresholds.

    CCR(t) = |known with u ≤ t and a right answer|/n and FPR(t) = |unknown with u ≤ t|/m, so the area is the chance
    that a known query is right *and* surer than an unknown one, ties counting half. In [0, share of right
    answers], higher is better; NaN where there are no known or no unknown queries.

    >>> oscr(torch.tensor([0.1, 0.3]), torch.tensor([True, False]), torch.tensor([0.2, 0.9]))
    0.5
    """
    return _value(open_set_form(known, correct, unknown, share=0.0), known, unknown, "oscr")


def oscr_curve(known: Tensor, correct: Tensor, unknown: Tensor) -> Curve:
    """x: share of unknown queries answered (FPR); y: share of known ones answered rightly (CCR); from (0, 0) on."""
    rates = open_set_rates(known, correct, unknown)
    points = _points(rates.threshold)
    x, y = rates.alarms[points], (rates.answered - rates.wrong)[points]
    return Curve([0.0, *x.tolist()], [0.0, *y.tolist()])


def open_risk_curve(known: Tensor, correct: Tensor, unknown: Tensor, *, share: float) -> Curve:
    """x: coverage, the share of all queries answered; y: R, the share of wrong answers among them.

    R(t) = ((1−π) e₁ + π a₀)/((1−π) c₁ + π a₀) with π = `share`, the share of queries that are unknown, and the
    rates of `OpenSetRates`: errors and unknowns together. Where every query is answered it is π + (1−π) e₁.

    >>> open_risk_curve(torch.tensor([0.1, 0.4]), torch.tensor([True, False]), torch.tensor([0.2]), share=0.5).y
    [0.0, 0.6666666666666666, 0.75]
    """
    _check_share(share)
    rates = open_set_rates(known, correct, unknown)
    points = _points(rates.threshold)
    coverage, risk = rates.coverage(share)[points], rates.risk(share)[points]
    some = coverage > 0  # with a share of 0 or 1 the first answers may all be of a kind that there is not
    return Curve(coverage[some].tolist(), risk[some].tolist())


def open_aurc(known: Tensor, correct: Tensor, unknown: Tensor, *, share: float) -> float:
    """Area under `open_risk_curve`: R averaged over all coverages, π = `share` of the queries being unknown.

    From one threshold to the next, coverage c grows from c₀ to c₁ and errors as E₀ + s(c − c₀), as they do in the
    mean over all orders of a tie; its part of ∫R dc is s(c₁ − c₀) + (E₀ − s c₀) ln(c₁/c₀). It is what `aurc` tends
    to when every query is there many times. In [0, 1], lower is better; NaN where queries of a share above 0 are
    missing.

    >>> round(open_aurc(torch.tensor([0.1]), torch.tensor([True]), torch.tensor([0.2]), share=0.5), 4)
    0.1534
    """
    return _value(open_set_form(known, correct, unknown, share=share), known, unknown, "open_aurc")


def open_augrc(known: Tensor, correct: Tensor, unknown: Tensor, *, share: float) -> float:
    """`augrc` with unknowns: ∫E dc, E = (1−π) e₁ + π a₀ being the share of all queries that is answered and wrong.

    With e the share of all queries that are wrong or unknown it is in [e²/2, e − e²/2], lower is better; trapezoids
    are the expected value inside ties. NaN where queries of a share above 0 are missing.

    >>> open_augrc(torch.tensor([0.1]), torch.tensor([True]), torch.tensor([0.2]), share=0.5)
    0.125
    """
    return _value(open_set_form(known, correct, unknown, share=share), known, unknown, "open_augrc")


def open_coverage_at_risk(
    known: Tensor, correct: Tensor, unknown: Tensor, *, risk: float, share: float
) -> float:
    """Largest share of all queries answered at a threshold with R ≤ risk, π = `share` being unknown; 0 if none.

    It is what one who knew these very queries could answer; a promise made before seeing them answers less. In
    [0, 1], higher is better.

    >>> known, right = torch.tensor([0.1, 0.4]), torch.tensor([True, False])
    >>> open_coverage_at_risk(known, right, torch.tensor([0.2]), risk=0.7, share=0.5)
    0.75
    """
    form = open_set_form(known, correct, unknown, share=share, risks=(risk,))
    return _value(form, known, unknown, f"open_coverage@risk{risk:g}")


def open_set_form(
    known: Tensor,
    correct: Tensor,
    unknown: Tensor,
    *,
    share: float,
    risks: Sequence[float] = RISKS,
    false_alarms: Sequence[float] = FALSE_ALARMS,
) -> PairForm:
    """All of this for weighted queries, from one sort: weights (b, n) and (b, m) → metric → (b,)."""
    ranking = _ranked(known, correct, unknown)
    _check_share(share)
    for rate, name in [(risk, "risk") for risk in risks] + [
        (rate, "false alarm rate") for rate in false_alarms
    ]:
        if not 0 <= rate <= 1:  # NaN is no such number either
            raise InputError(f"A {name} is a share between 0 and 1, got {rate}.")

    def form(known_weights: Tensor, unknown_weights: Tensor) -> dict[str, Tensor]:
        counts = _Counts.of(ranking, correct, known_weights, unknown_weights)
        size, others = counts.answered[:, -1], counts.alarms[:, -1]
        pairs = steps(counts.alarms) * (before(counts.right) + steps(counts.right) / 2)
        values = {"oscr": pairs.sum(1) / (size * others)}
        for rate in false_alarms:
            found = (counts.right * counts.allowed(rate)).amax(1) / size
            found = torch.where(others > 0, found, torch.nan)
            values |= {f"fnir@fpir{rate:g}": 1 - found, f"dir@far{rate:g}": found}
        return values | _risks_together(counts, share, risks)

    return form


def balanced_rates_form(view: OpenSet) -> PairForm:
    """BAKS and BAUS at the threshold of each false alarm rate: weights (b, n) and (b, m) → metric → (b,)."""
    ranking = _ranked(view.known, view.correct, view.unknown)
    place = torch.empty_like(ranking.order)
    place[ranking.order] = torch.searchsorted(
        ranking.ends, torch.arange(len(place), device=place.device)
    )  # which group each query is in
    over_known, over_unknown = label_means(view.known_labels), label_means(view.unknown_labels)
    of_known, of_unknown = place[: len(view.known)], place[len(view.known) :]

    def form(known_weights: Tensor, unknown_weights: Tensor) -> dict[str, Tensor]:
        counts = _Counts.of(ranking, view.correct, known_weights, unknown_weights)
        values: dict[str, Tensor] = {}
        for rate in view.false_alarms:
            groups = counts.allowed(rate).sum(1, keepdim=True)  # the first so many are answered
            right, refused = (of_known < groups) & view.correct, of_unknown >= groups
            values[f"baks@fpir{rate:g}"] = over_known(known_weights, right)
            values[f"baus@fpir{rate:g}"] = over_unknown(unknown_weights, refused)
        return values

    return form


@dataclass(frozen=True, eq=False)
class _Counts:
    """Weights of what is answered down to each group of equal uncertainty, (b, g) each."""

    answered: Tensor
    right: Tensor
    alarms: Tensor

    @classmethod
    def of(cls, ranking: Ranking, correct: Tensor, known: Tensor, unknown: Tensor) -> _Counts:
        nothing = torch.zeros_like(unknown)
        return cls(
            ranking.totals(torch.cat([known, nothing], dim=1)),
            ranking.totals(torch.cat([known * correct, nothing], dim=1)),
            ranking.totals(torch.cat([torch.zeros_like(known), unknown], dim=1)),
        )

    def allowed(self, rate: float) -> Tensor:
        """Whether at most this share of the unknown queries is answered down to each group, (b, g): a prefix."""
        return self.alarms <= rate * self.alarms[:, -1:] * SLACK


def _risks_together(counts: _Counts, share: float, risks: Sequence[float]) -> dict[str, Tensor]:
    wrong, alarms = counts.answered - counts.right, counts.alarms
    size, others = counts.answered[:, -1:], alarms[:, -1:]
    coverage = _mixed(counts.answered / size, alarms / others, share)
    errors = _mixed(wrong / size, alarms / others, share)
    start, grown = before(coverage), steps(coverage)
    slope = torch.where(grown > 0, steps(errors) / grown, 0.0)
    ratio = torch.where(start > 0, coverage / start, 1.0)  # the first group's logarithm is of nothing
    area = slope * grown + (before(errors) - slope * start) * ratio.log()
    total = (before(errors) + errors) / 2 * grown
    defined = coverage[:, -1].isfinite()
    values = {"open_aurc": area.sum(1), "open_augrc": total.sum(1)}
    for risk in risks:
        values[f"open_coverage@risk{risk:g}"] = (coverage * (errors <= risk * coverage * SLACK)).amax(1)
    return {name: torch.where(defined, value, torch.nan) for name, value in values.items()}


def _mixed(known: Tensor, unknown: Tensor, share: float) -> Tensor:
    """(1−π) known + π unknown; what has no share need not be there."""
    if share == 0:
        return known
    return unknown if share == 1 else (1 - share) * known + share * unknown


def _ranked(known: Tensor, correct: Tensor, unknown: Tensor) -> Ranking:
    if known.shape != correct.shape or known.dim() != 1 or unknown.dim() != 1:
        raise InputError(
            "Known queries need one uncertainty and one entry of `correct` each, unknown ones one uncertainty, got "
            f"shapes {tuple(known.shape)}, {tuple(correct.shape)} and {tuple(unknown.shape)}."
        )
    return Ranking.of(torch.cat([known.double(), unknown.double()]))


def _check_share(share: float) -> None:
    if not 0 <= share <= 1 or math.isnan(share):
        raise InputError(f"A share of unknown queries lies between 0 and 1, got {share}.")


def _points(values: Tensor) -> Tensor:
    """A figure's worth of positions, the first and the last among them."""
    count = min(len(values), CURVE_POINTS)
    return torch.linspace(0, len(values) - 1, count, dtype=torch.double, device=values.device).round().long()


def _ones(*parts: Tensor) -> list[Tensor]:
    return [torch.ones(1, len(part), dtype=torch.double, device=part.device) for part in parts]


def _value(form: PairForm, known: Tensor, unknown: Tensor, name: str) -> float:
    return float(form(*_ones(known, unknown))[name])


def _open_set(view: OpenSet) -> PairForm:
    return open_set_form(
        view.known,
        view.correct,
        view.unknown,
        share=view.share,
        risks=view.risks,
        false_alarms=view.false_alarms,
    )


def _register(
    name: str,
    title: str,
    sentence: str,
    *,
    measure: Callable[[OpenSet], PairForm] = _open_set,
    higher: bool = True,
    brief: bool = False,
) -> None:
    register(
        Metric(
            name,
            title,
            sentence,
            of=OpenSet,
            measure=measure,
            group=OPEN_SET,
            higher=higher,
            percent=name.endswith("@"),
            noted=brief,
            brief=brief,
        )
    )


_register(
    "oscr",
    "OSCR",
    "Chance that a known query is right and surer than one whose label is not in the gallery.",
    brief=True,
)
_register(
    "fnir@",
    "FNIR at {k} FPIR",
    "Share of known queries without a right answer when {k} of the unknown ones are answered.",
    higher=False,
)
_register(
    "dir@",
    "DIR at {k} FAR",
    "Share of known queries answered rightly when {k} of the unknown ones are answered.",
)
_register(
    "baks@",
    "BAKS at {k} FPIR",
    "Share of known queries answered rightly, mean over labels, when {k} of the unknown ones are answered.",
    measure=balanced_rates_form,
)
_register(
    "baus@",
    "BAUS at {k} FPIR",
    "Share of unknown queries left without an answer, mean over their labels, at the same threshold.",
    measure=balanced_rates_form,
)
_register(
    "open_aurc",
    "AURC with unknowns",
    "Share of wrong answers, every answer to an unknown query being one, averaged over how much is answered; "
    "the share of unknown queries is in the protocol.",
    higher=False,
)
_register(
    "open_augrc",
    "AUGRC with unknowns",
    "Share of all queries that are answered and wrong or unknown, averaged over how much is answered.",
    higher=False,
)
_register(
    "open_coverage@",
    "Coverage at {k} risk, with unknowns",
    "Largest share of queries, the most certain first, with at most {k} of answers wrong or to unknown queries.",
)
