"""Does the uncertainty know which queries go wrong? error_auroc, ausc, aurc, augrc, coverage@risk and curves.

Every function takes `uncertainty` (n,), higher is less sure, and `correct` (n,), whether the first hit is
right. Queries of equal uncertainty share their expected value over all their orders: the order of the data
never matters. Infinite uncertainty is the least sure of all; NaN is refused.

error_auroc is R-AUROC of Kirchhof et al., "URL: A Representation Learning Benchmark for Transferable
Uncertainty Estimates", 2023. aurc is of Geifman, Uziel and El-Yaniv, "Bias-Reduced Uncertainty Estimation for
Deep Neural Classifiers", 2019; augrc of Traub et al., "Overcoming Common Flaws in the Evaluation of Selective
Classification Systems", 2024.

Beside them stand uncertainties that cost nothing: what the neighbours and the embedding's length already say. Each
is higher where the query is less sure, so a learned uncertainty can stand beside them. One that does not
beat them is not worth its cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.metrics.bootstrap import Form
from doubtless.metrics.measure import Curve
from doubtless.metrics.metric import ERRORS, Metric, register
from doubtless.metrics.ranking import Ranking, area_under_roc, before, steps
from doubtless.metrics.views import RISKS, Answered, Scored

CURVE_POINTS = 200


def error_auroc(uncertainty: Tensor, correct: Tensor) -> float:
    """AUROC of the uncertainty for "the first hit is wrong"; NaN if all are right or all wrong.

    >>> error_auroc(torch.tensor([0.1, 0.9, 0.2, 0.3]), torch.tensor([True, False, True, False]))
    1.0
    """
    return _value(selective_form(uncertainty, correct), correct, "error_auroc")


def _selective(scored: Scored) -> Form:
    return selective_form(scored.uncertainty, scored.correct, risks=scored.risks)


register(
    Metric(
        "error_auroc",
        "Error AUROC",
        "Chance that a query with a wrong first hit is more uncertain than one with a right one; 0.5 is guessing.",
        of=Scored,
        measure=_selective,
        group=ERRORS,
        undefined="every first hit is right, or every one is wrong",
    )
)


def ausc(uncertainty: Tensor, correct: Tensor) -> float:
    """Area under the sparsification curve: mean over j = 0…n−1 of the recall@1 of the n−j most certain.

    At most `ausc_oracle(correct)`; an uncertainty that says nothing scores `correct.mean()`.

    >>> ausc(torch.tensor([0.1, 0.9]), torch.tensor([True, False]))
    0.75
    """
    return _value(selective_form(uncertainty, correct), correct, "ausc")


def _of_the_match(scored: Scored) -> dict[str, Form]:
    if scored.match is None:
        return {}
    form = selective_form(scored.match, scored.correct, risks=())
    return {"ausc_match": lambda weights: {"ausc_match": form(weights)["ausc"]}}


register(
    Metric(
        "ausc",
        "AUSC",
        "Recall@1 averaged while the most uncertain queries leave one by one: area under the sparsification curve.",
        of=Scored,
        measure=_selective,
        group=ERRORS,
    )
)
register(
    Metric(
        "ausc_match",
        "AUSC of the match",
        "The same, ordered by the uncertainty of query and first hit together.",
        of=Scored,
        measure=_of_the_match,
        group=ERRORS,
    )
)


def aurc(uncertainty: Tensor, correct: Tensor) -> float:
    """Area under the risk-coverage curve: mean over j = 1…n of the share of wrong answers among the j most certain.

    In [0, 1], lower is better; it is 1 − `ausc`, so that an oracle has 1 − `ausc_oracle` and an uncertainty that
    says nothing the share of wrong answers. Ties count by their expected value over all orders.

    >>> aurc(torch.tensor([0.1, 0.9]), torch.tensor([True, False]))
    0.25
    """
    return _value(selective_form(uncertainty, correct), correct, "aurc")


def augrc(uncertainty: Tensor, correct: Tensor) -> float:
    """Area under the generalised risk-coverage curve: mean share of queries that are wrong *and* answered.

    The generalised risk of the j most certain is (wrong among them)/n; the area is the trapezoid's over coverages
    0, 1/n, …, 1, straight inside a tie, which is the expected value over all its orders. With the share e of wrong
    answers it is (1 − error_auroc) e (1 − e) + e²/2: in [e²/2, e − e²/2], lower is better.

    >>> augrc(torch.tensor([0.1, 0.9]), torch.tensor([True, False]))
    0.125
    """
    return _value(selective_form(uncertainty, correct), correct, "augrc")


register(
    Metric(
        "aurc",
        "AURC",
        "Share of wrong answers averaged over how many queries are answered, the most certain first: 1 − AUSC.",
        of=Scored,
        measure=_selective,
        group=ERRORS,
        higher=False,
        noted=False,  # ausc says the same
        brief=False,
    )
)
register(
    Metric(
        "augrc",
        "AUGRC",
        "Share of all queries that are wrong and answered, averaged over how many are answered.",
        of=Scored,
        measure=_selective,
        group=ERRORS,
        higher=False,
        noted=False,
        brief=False,
    )
)


def coverage_at_risk(uncertainty: Tensor, correct: Tensor, *, risk: float) -> float:
    """Share of queries in the largest prefix of the most certain with error ≤ risk, no tie split; 0 if none.

    >>> coverage_at_risk(torch.tensor([0.1, 0.2, 0.9, 0.3]), torch.tensor([True, True, False, True]), risk=0.1)
    0.75
    """
    form = selective_form(uncertainty, correct, risks=(risk,))
    return _value(form, correct, coverage_name(risk))


def ausc_oracle(correct: Tensor) -> float:
    """The largest AUSC there can be, wrong answers removed first: (k/n)(1 + H_n − H_k), k right of n.

    >>> ausc_oracle(torch.tensor([True, False]))
    0.75
    """
    return _value(oracle_form(correct), correct, "ausc_oracle")


register(
    Metric(
        "ausc_oracle",
        "AUSC, upper bound",
        "What an oracle reaches that leaves out exactly the wrong queries first.",
        of=Answered,
        measure=lambda answered: oracle_form(answered.correct),
        group=ERRORS,
        higher=None,
    )
)


def coverage_name(risk: float) -> str:
    """The name of a coverage.

    >>> coverage_name(0.05)
    'coverage@risk0.05'
    """
    return f"coverage@risk{risk:g}"


register(
    Metric(
        "coverage@",
        "Coverage at {k} risk",
        "Largest share of queries, the most certain first, with at most {k} wrong first hits.",
        of=Scored,
        measure=_selective,
        group=ERRORS,
        percent=True,
        noted=False,
        brief=False,
    )
)


def selective_form(uncertainty: Tensor, correct: Tensor, *, risks: Sequence[float] = RISKS) -> Form:
    """All metrics of this file for weighted queries, from one sort: weights (b, n) → (b,) each.

    A group of g queries with equal uncertainty, c of them right, that follows a queries with A right, adds to
    the AUSC's sum Σ_{t ≤ g} (A + t c/g)/(a + t) = c + (A − a c/g)(H_{a+g} − H_a). A query drawn w times by
    the bootstrap is a group of w, so the same line serves the replicates.
    """
    _check(uncertainty, correct, risks)
    ranking = Ranking.of(uncertainty)
    right = correct.double()
    harmonic = _harmonic(len(right), right.device)

    def form(weights: Tensor) -> dict[str, Tensor]:
        count, good = ranking.totals(weights), ranking.totals(weights * right)  # (b, g) each
        total, size, share = count[:, -1], steps(count), steps(good)
        rate = share / size.clamp_min(1)
        grown = harmonic[count.long()] - harmonic[before(count).long()]
        area = (share + (before(good) - before(count) * rate) * grown).sum(1)
        wrong = count - good
        values = {
            "error_auroc": area_under_roc(wrong, good),
            "ausc": area / total,
            "aurc": 1 - area / total,
            "augrc": ((before(wrong) + wrong) / 2 * size).sum(1) / total.square(),
        }
        for risk in risks:
            # .29 · 100 is 28.999…96 in floating point: 29 wrong of 100 must still pass at risk .29
            safe = wrong <= risk * count * (1 + 1e-12)
            values[coverage_name(risk)] = (count * safe).amax(1) / total
        return values

    return form


def oracle_form(correct: Tensor) -> Form:
    """`ausc_oracle` of weighted queries."""
    right = correct.double()
    harmonic = _harmonic(len(right), right.device)

    def form(weights: Tensor) -> dict[str, Tensor]:
        total, good = weights.sum(1), weights @ right
        grown = harmonic[total.long()] - harmonic[good.long()]
        return {"ausc_oracle": good / total * (1 + grown)}

    return form


def sparsification_curve(uncertainty: Tensor, correct: Tensor) -> Curve:
    """x: share of queries removed, least certain first; y: recall@1 of those that stay."""
    kept, recall = _kept_recall(uncertainty, correct)
    x = 1 - kept / len(correct)
    return Curve(x.flip(0).tolist(), recall.flip(0).tolist())


def oracle_sparsification_curve(correct: Tensor) -> Curve:
    """The upper bound: wrong answers are removed first."""
    return sparsification_curve(-correct.double(), correct)


def risk_coverage_curve(uncertainty: Tensor, correct: Tensor) -> Curve:
    """x: share of queries answered, most certain first; y: share of wrong answers among them."""
    kept, recall = _kept_recall(uncertainty, correct)
    return Curve((kept / len(correct)).tolist(), (1 - recall).tolist())


def expected_prefix_sums(uncertainty: Tensor, values: Tensor, *, counts: Tensor) -> Tensor:
    """Expected sum of `values` (n,) over the `counts` (c,) most certain queries, ties in random order, (c,)."""
    ranking = Ranking.of(uncertainty)
    return interpolate(
        ranking.totals(torch.ones_like(values)).unsqueeze(0),
        ranking.totals(values).unsqueeze(0),
        counts.to(values).unsqueeze(0),
    ).squeeze(0)


def interpolate(count: Tensor, total: Tensor, at: Tensor) -> Tensor:
    """Running totals (b, g) over groups that end after `count` (b, g) items, read at any item (b, c).

    Inside a group each item counts its group's mean: the expected value over all orders of the group.
    """
    group = torch.searchsorted(count, at.contiguous()).clamp_max(count.shape[1] - 1)
    start, size = before(count).gather(1, group), steps(count).gather(1, group)
    share = (at - start) / size.clamp_min(1)
    return before(total).gather(1, group) + share * steps(total).gather(1, group)


def _kept_recall(uncertainty: Tensor, correct: Tensor) -> tuple[Tensor, Tensor]:
    """A figure's worth of prefix sizes and the expected recall@1 of each prefix."""
    _check(uncertainty, correct)
    points = min(len(correct), CURVE_POINTS)
    kept = torch.linspace(1, len(correct), points, dtype=torch.double, device=correct.device).round()
    return kept, expected_prefix_sums(uncertainty, correct.double(), counts=kept) / kept


def _harmonic(n: int, device: torch.device) -> Tensor:
    """H_0 … H_n, (n + 1,)."""
    terms = torch.arange(1, n + 1, dtype=torch.double, device=device).reciprocal()
    return torch.cat([terms.new_zeros(1), terms.cumsum(0)])


def _value(form: Form, correct: Tensor, name: str) -> float:
    ones = torch.ones(1, len(correct), dtype=torch.double, device=correct.device)
    return float(form(ones)[name])


def _check(uncertainty: Tensor, correct: Tensor, risks: Sequence[float] = ()) -> None:
    if uncertainty.shape != correct.shape:
        raise InputError(
            "The uncertainty and `correct` must have one entry per query each, got shapes "
            f"{tuple(uncertainty.shape)} and {tuple(correct.shape)}."
        )
    for risk in risks:
        if not 0 <= risk <= 1 or math.isnan(risk):
            raise InputError(f"A risk is a share of wrong answers between 0 and 1, got {risk}.")


NAMES = ("distance", "ratio", "spread", "norm")
DEPTH = 10  # neighbours looked at


def free_uncertainties(scores: Tensor, location: Tensor) -> dict[str, Tensor]:
    """The four baselines, each (n,), from the neighbours' cosines (n, k), best first, and locations (n, D).

    >>> scores = free_uncertainties(torch.tensor([[0.9, 0.5], [0.6, 0.6]]), torch.tensor([[2.0], [1.0]]))
    >>> {name: value[1] > value[0] for name, value in scores.items() if name != "spread"}
    {'distance': tensor(True), 'ratio': tensor(True), 'norm': tensor(True)}
    """
    first = scores[:, :DEPTH].double()
    return {
        "distance": distance(first),
        "ratio": distance_ratio(first),
        "spread": spread(first),
        "norm": -location.double().norm(dim=1),  # networks give what they do not know short vectors
    }


def distance(scores: Tensor) -> Tensor:
    """Distance ‖q − g‖ = √(2 − 2 cos) to the first hit, (n,)."""
    return (2 - 2 * scores[:, 0]).clamp_min(0).sqrt()


def distance_ratio(scores: Tensor) -> Tensor:
    """First distance over second, (n,), in [0, 1]: 1 where the second hit is as near as the first.

    A gallery of one item has no second hit; every ratio is 1 then.
    """
    second = distance(scores[:, 1:2]) if scores.shape[1] > 1 else distance(scores)
    ratio = distance(scores) / second
    return torch.where(second > 0, ratio, 1.0)


def spread(scores: Tensor) -> Tensor:
    """Standard deviation of the first ten cosines, (n,): small inside a dense class, large at its edge."""
    return scores.std(dim=1, correction=0)
