"""Does the uncertainty know what it was never shown? AUROC, AUPRC, FPR95 of OOD against in-distribution.

Every function takes the uncertainty of in-distribution items (n,) and of out-of-distribution items (m,);
the latter are the positives. Equal uncertainties count as one threshold. Infinite uncertainty is the least
sure of all; NaN is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.metrics.measure import Curve
from doubtless.metrics.metric import OOD, Metric, register
from doubtless.metrics.ranking import Ranking, area_under_roc, check_scores, steps
from doubtless.metrics.views import Separated

HISTOGRAM_BINS = 40
CURVE_POINTS = 200

PairForm = Callable[[Tensor, Tensor], dict[str, Tensor]]
"""Weights of both sets, (b, n) and (b, m), one row per replicate → metric → its value in each (b,)."""


def auroc(inside: Tensor, outside: Tensor) -> float:
    """Chance that an OOD item is less sure than an in-distribution item, ties counting half.

    >>> auroc(torch.tensor([0.1, 0.2]), torch.tensor([0.2, torch.inf]))
    0.875
    """
    return _value(inside, outside, "auroc")


def _detection(separated: Separated) -> PairForm:
    form = detection_form(separated.inside, separated.outside, ratio=separated.ratio)
    return lambda inside, outside: {f"ood_{name}": value for name, value in form(inside, outside).items()}


register(
    Metric(
        "ood_auroc",
        "OOD AUROC",
        "Chance that an out-of-distribution image is more uncertain than a known one; 0.5 is guessing.",
        of=Separated,
        measure=_detection,
        group=OOD,
    )
)


def auprc(inside: Tensor, outside: Tensor, *, ratio: float | None = None) -> float:
    """Average precision Σ_t (recall_t − recall_{t−1}) precision_t of finding the OOD items.

    It depends on how many OOD items stand against how many others: the same detector scores higher on a
    larger OOD set. `ratio`, OOD items to one in-distribution item, re-weights to a stated mix (1: as many of
    each; 0.5: a paper's 10,000 against 20,000), so that numbers can be compared.

    >>> known, others = torch.tensor([0.1, 0.5]), torch.tensor([0.4, 0.9])
    >>> round(auprc(known, others), 3), round(auprc(known, others[:1]), 3)
    (0.833, 0.5)
    """
    if ratio is None:
        return _value(inside, outside, "auprc")
    check_ratio(ratio, "ratio")
    return _value(inside, outside, "auprc_reweighted", ratio=ratio)


register(
    Metric(
        "ood_auprc",
        "OOD AUPRC",
        "Average precision of finding out-of-distribution images by uncertainty; depends on the ratio of the two "
        "set sizes.",
        of=Separated,
        measure=_detection,
        group=OOD,
        brief=False,
    )
)
register(
    Metric(
        "ood_auprc_balanced",
        "OOD AUPRC, balanced",
        "The same, re-weighted to as many out-of-distribution as known images: comparable between sets.",
        of=Separated,
        measure=_detection,
        group=OOD,
        noted=False,
        brief=False,
    )
)
register(
    Metric(
        "ood_auprc_reweighted",
        "OOD AUPRC at a stated ratio",
        "The same, re-weighted to the set sizes of the paper compared with; the ratio is in the protocol.",
        of=Separated,
        measure=_detection,
        group=OOD,
        noted=False,
        brief=False,
    )
)


def fpr95(inside: Tensor, outside: Tensor) -> float:
    """Smallest share of in-distribution items raised as OOD while at least 95 % of the OOD items are.

    >>> fpr95(torch.tensor([0.1, 0.2, 0.3, 0.6]), torch.tensor([0.5, 0.7]))
    0.25
    """
    return _value(inside, outside, "fpr95")


register(
    Metric(
        "ood_fpr95",
        "OOD FPR95",
        "Share of known images wrongly raised when 95 % of the out-of-distribution images are found.",
        of=Separated,
        measure=_detection,
        group=OOD,
        higher=False,
        brief=False,
    )
)


def check_ratio(ratio: float | None, name: str) -> None:
    """Refuses what no two sets can stand at; None asks for none."""
    if ratio is not None and not 0 < ratio < math.inf:
        raise InputError(
            f"The ratio {name} must be a positive number of OOD items to one other, got {ratio}."
        )


def detection_form(inside: Tensor, outside: Tensor, *, ratio: float | None = None) -> PairForm:
    """auroc, auprc, auprc_balanced, fpr95 of weighted items, and auprc_reweighted to a `ratio`; from one sort."""
    check_scores(inside, "in-distribution uncertainty")
    check_scores(outside, "out-of-distribution uncertainty")
    ranking = Ranking.of(torch.cat([inside.double(), outside.double()]), descending=True)

    def form(inside_weights: Tensor, outside_weights: Tensor) -> dict[str, Tensor]:
        false = ranking.totals(
            torch.cat([inside_weights, torch.zeros_like(outside_weights)], dim=1)
        )  # (b, g)
        true = ranking.totals(torch.cat([torch.zeros_like(inside_weights), outside_weights], dim=1))
        negatives, positives = false[:, -1:], true[:, -1:]
        equal = false * (positives / negatives)  # false alarms, were there as many of either set
        # as in coverage@risk: 95 % of 20 must be 19 whatever floating point makes of it
        enough = true >= 0.95 * positives * (1 - 1e-12)
        return {
            "auroc": area_under_roc(false, true),  # over falling scores: the inside lies below
            "auprc": _average_precision(true, false),
            "auprc_balanced": _average_precision(true, equal),
            **({} if ratio is None else {"auprc_reweighted": _average_precision(true, equal / ratio)}),
            "fpr95": torch.where(enough, false, torch.inf).amin(1) / negatives.squeeze(1),
        }

    return form


def roc_curve(inside: Tensor, outside: Tensor) -> Curve:
    """x: share of in-distribution items raised as OOD; y: share of OOD items raised, from (0, 0) to (1, 1)."""
    check_scores(inside, "in-distribution uncertainty")
    check_scores(outside, "out-of-distribution uncertainty")
    ranking = Ranking.of(torch.cat([inside.double(), outside.double()]), descending=True)
    is_outside = torch.cat([torch.zeros_like(inside), torch.ones_like(outside)]).double()
    true, false = ranking.totals(is_outside), ranking.totals(1 - is_outside)
    points = torch.linspace(0, len(true) - 1, min(len(true), CURVE_POINTS), device=true.device).round().long()
    x, y = false[points] / len(inside), true[points] / len(outside)
    return Curve([0.0, *x.tolist()], [0.0, *y.tolist()])


def histograms(inside: Tensor, outside: Tensor) -> dict[str, Curve]:
    """Shares of each set in common bins: "id" and "ood", x the bins' centres.

    Bins run from the smallest value to the 99 % quantile of both sets; what lies beyond, infinities too, is
    in the last bin (the first, for −∞), or one outlier would press all others into a single bar.
    """
    both = torch.cat([inside, outside]).double()
    finite = both[both.isfinite()]
    if not len(finite):
        finite = torch.zeros(1, dtype=torch.double, device=both.device)
    low = float(finite.min())
    high = float(finite.sort().values[int(0.99 * (len(finite) - 1))])
    width = (high - low) / HISTOGRAM_BINS or 1.0
    centres = [low + (place + 0.5) * width for place in range(HISTOGRAM_BINS)]
    lines = {}
    for name, values in (("id", inside), ("ood", outside)):
        bins = ((values.double() - low) / width).clamp(0, HISTOGRAM_BINS - 1).long()
        lines[name] = Curve(centres, (bins.bincount(minlength=HISTOGRAM_BINS) / len(values)).tolist())
    return lines


def _average_precision(true: Tensor, false: Tensor) -> Tensor:
    precision = true / (true + false).clamp_min(torch.finfo(true.dtype).tiny)  # 0 where nothing is raised yet
    return (steps(true) * precision).sum(1) / true[:, -1]


def _value(inside: Tensor, outside: Tensor, name: str, *, ratio: float | None = None) -> float:
    ones = [torch.ones(1, len(part), dtype=torch.double, device=part.device) for part in (inside, outside)]
    return float(detection_form(inside, outside, ratio=ratio)(*ones)[name])
