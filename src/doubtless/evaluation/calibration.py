"""Is a confidence what it says? Consensus ECE, rank ECE@k, match ECE and Brier score, reliability curve.

ECE is Σ_B |B|/n · |mean right − mean confidence| over bins B of queries.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.evaluation.ranking import Ranking
from doubtless.evaluation.result import Curve
from doubtless.evaluation.uncertainty import Form, interpolate

BINS = 10


def consensus_ece(count: Tensor, correct: Tensor, *, samples: int) -> float:
    """ECE of "count of the samples agree" (q,) against whether the prediction is right (q,).

    Bins are integers, min(⌊10 · count/samples⌋, 9), so full agreement is in the last one and no rounding
    moves a query.

    >>> consensus_ece(torch.tensor([100, 50]), torch.tensor([True, False]), samples=100)
    0.25
    """
    return _value(consensus_form(count, correct, samples=samples), count, "ece")


def rank_ece(uncertainty: Tensor, values: Tensor) -> float:
    """ECE@k: queries in ten bins by rank of uncertainty, against their map@k `values` (q,).

    Bin m of M (0 the most certain) has confidence (M − m)/M and ends at ⌊(m+1) q/M⌋. It is a rank, not a
    probability: a perfect retriever scores .45. Queries of equal uncertainty share their mean value.
    """
    return _value(rank_ece_form(uncertainty, {"ece": values}), uncertainty, "ece")


def match_ece(probability: Tensor, right: Tensor) -> float:
    """ECE of calibrated match probabilities (n,) against "this hit is right" (n,).

    Ten bins of equal width [lo, hi); a probability of 1 is in the last.
    """
    _check_probability(probability, right)
    bins = (probability.double() * BINS).long().clamp_max(BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.double, device=bins.device)
    gaps.scatter_add_(0, bins, right.double() - probability.double())
    return float(gaps.abs().sum() / len(bins))


def match_brier(probability: Tensor, right: Tensor) -> float:
    """Mean squared difference of a match probability (n,) and "this hit is right" (n,)."""
    _check_probability(probability, right)
    return float((probability.double() - right.double()).square().mean())


def reliability_curve(confidence: Tensor, right: Tensor, *, bins: Tensor | None = None) -> Curve:
    """x: mean confidence of a bin, y: share right, weight: the bin's share of the queries. No empty bins."""
    _check_probability(confidence, right)
    if bins is None:
        bins = (confidence.double() * BINS).long().clamp_max(BINS - 1)
    size = bins.bincount(minlength=BINS)
    used = size > 0
    sums = [
        torch.zeros(BINS, dtype=torch.double, device=bins.device).scatter_add_(0, bins, part.double())[used]
        for part in (confidence, right)
    ]
    x, y = (total / size[used] for total in sums)
    return Curve(x.tolist(), y.tolist(), (size[used] / len(bins)).tolist())


def consensus_bins(count: Tensor, *, samples: int) -> Tensor:
    """The bin of each count of agreeing samples, in integers."""
    return (BINS * count // samples).clamp_max(BINS - 1)


def consensus_form(count: Tensor, correct: Tensor, *, samples: int) -> Form:
    """`consensus_ece` of weighted queries: per-bin gaps are one product with the weights (b, q)."""
    gap = correct.double() - count.double() / samples
    columns = torch.zeros(len(count), BINS, dtype=torch.double, device=count.device)
    columns.scatter_(1, consensus_bins(count, samples=samples).unsqueeze(1), gap.unsqueeze(1))

    def form(weights: Tensor) -> dict[str, Tensor]:
        return {"ece": (weights @ columns).abs().sum(1) / weights.sum(1)}

    return form


def match_form(probability: Tensor, right: Tensor) -> Form:
    """`match_ece` and `match_brier` of weighted hits: weights (b, n) → names → (b,)."""
    _check_probability(probability, right)
    gap = right.double() - probability.double()
    bins = (probability.double() * BINS).long().clamp_max(BINS - 1)
    columns = torch.zeros(len(gap), BINS, dtype=torch.double, device=gap.device)
    columns.scatter_(1, bins.unsqueeze(1), gap.unsqueeze(1))

    def form(weights: Tensor) -> dict[str, Tensor]:
        total = weights.sum(1)
        return {
            "match_ece": (weights @ columns).abs().sum(1) / total,
            "match_brier": weights @ gap.square() / total,
        }

    return form


def rank_ece_form(uncertainty: Tensor, values: Mapping[str, Tensor]) -> Form:
    """`rank_ece` of weighted queries for several values a query at once: weights (b, q) → names → (b,)."""
    ranking = Ranking.of(uncertainty)

    def form(weights: Tensor) -> dict[str, Tensor]:
        count = ranking.totals(weights)  # (b, g)
        edges = count[:, -1:] * torch.arange(BINS + 1, dtype=torch.double, device=weights.device)
        edges = (edges / BINS).floor()  # (b, M + 1)
        confidence = torch.arange(BINS, 0, -1, dtype=torch.double, device=weights.device) / BINS
        promised = edges.diff(dim=1) * confidence
        found = {}
        for name, value in values.items():
            sums = interpolate(count, ranking.totals(weights * value.double()), edges).diff(dim=1)
            found[name] = (sums - promised).abs().sum(1) / count[:, -1]
        return found

    return form


class ConsensusCalibration:
    """Consensus ECE over queries that come in chunks; holds ten sums.

    >>> calibration = ConsensusCalibration(samples=100)
    >>> calibration.update(torch.tensor([100, 50]), torch.tensor([True, False]))
    >>> calibration.compute()
    0.25
    """

    def __init__(self, *, samples: int) -> None:
        self.samples = samples
        self._size = torch.zeros(BINS, dtype=torch.long)
        self._agreeing = torch.zeros(BINS, dtype=torch.long)
        self._right = torch.zeros(BINS, dtype=torch.long)

    def update(self, count: Tensor, correct: Tensor) -> None:
        """Adds a chunk: draws that agree (q,) and whether the prediction is right (q,)."""
        count = count.cpu().long()
        bins = consensus_bins(count, samples=self.samples)
        self._size += bins.bincount(minlength=BINS)
        self._agreeing.scatter_add_(0, bins, count)
        self._right.scatter_add_(0, bins, correct.cpu().long())

    def compute(self) -> float:
        total = int(self._size.sum())
        if not total:
            raise InputError("no query was given, so there is no calibration to compute.")
        gaps = self._right * self.samples - self._agreeing  # integers
        return float(gaps.abs().sum()) / (self.samples * total)


def _check_probability(probability: Tensor, right: Tensor) -> None:
    if probability.shape != right.shape or probability.dim() != 1 or not len(right):
        raise InputError(
            f"one probability a hit is needed, got shapes {tuple(probability.shape)} and {tuple(right.shape)}."
        )
    if not bool(((probability >= 0) & (probability <= 1)).all()):
        raise InputError("a probability must lie between 0 and 1.")


def _value(form: Form, like: Tensor, name: str) -> float:
    return float(form(torch.ones(1, len(like), dtype=torch.double, device=like.device))[name])
