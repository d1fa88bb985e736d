"""Open-set identification, votes of labels and means over labels by loops over thresholds and queries.

Nothing here imports doubtless. A query is answered where its uncertainty is at most the threshold.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from fractions import Fraction

Scores = Sequence[float]
Right = Sequence[bool]


def thresholds(known: Scores, unknown: Scores) -> list[float]:
    return sorted({*known, *unknown})


def answered_rightly(known: Scores, correct: Right, threshold: float) -> Fraction:
    hits = sum(value <= threshold and right for value, right in zip(known, correct, strict=True))
    return Fraction(hits, len(known))


def false_alarms(unknown: Scores, threshold: float) -> Fraction:
    return Fraction(sum(value <= threshold for value in unknown), len(unknown))


def fnir_at_fpir(known: Scores, correct: Right, unknown: Scores, fpir: Fraction) -> float:
    if not known or not unknown:
        return math.nan
    best = Fraction(1)
    for threshold in thresholds(known, unknown):
        if false_alarms(unknown, threshold) <= fpir:
            best = min(best, 1 - answered_rightly(known, correct, threshold))
    return float(best)


def oscr(known: Scores, correct: Right, unknown: Scores) -> float:
    """Trapezoids under the points (FPR, CCR) of all thresholds, from (0, 0) on."""
    if not known or not unknown:
        return math.nan
    area, x, y = Fraction(0), Fraction(0), Fraction(0)
    for threshold in thresholds(known, unknown):
        fpr, ccr = false_alarms(unknown, threshold), answered_rightly(known, correct, threshold)
        area += (fpr - x) * (ccr + y) / 2
        x, y = fpr, ccr
    return float(area)


def points(
    known: Scores, correct: Right, unknown: Scores, share: Fraction
) -> list[tuple[Fraction, Fraction]]:
    """(coverage, errors) of all queries at every threshold, a share of them being unknown; from nothing on."""
    found = [(Fraction(0), Fraction(0))]
    for threshold in thresholds(known, unknown):
        coverage = errors = Fraction(0)
        if share < 1:
            some = [right for value, right in zip(known, correct, strict=True) if value <= threshold]
            coverage += (1 - share) * Fraction(len(some), len(known))
            errors += (1 - share) * Fraction(len(some) - sum(some), len(known))
        if share > 0:
            coverage += share * false_alarms(unknown, threshold)
            errors += share * false_alarms(unknown, threshold)
        found.append((coverage, errors))
    return found


def open_aurc(known: Scores, correct: Right, unknown: Scores, share: Fraction, slices: int = 2000) -> float:
    """Midpoints of many slices of ∫ errors/coverage, slices of equal ratio where coverage begins above nothing."""
    area, (start, first) = 0.0, (0.0, 0.0)
    for coverage, errors in points(known, correct, unknown, share):
        end, last = float(coverage), float(errors)
        if end > start:
            slope = (last - first) / (end - start)
            edges = (
                [start * (end / start) ** (place / slices) for place in range(slices + 1)]
                if start
                else [start, end]
            )
            for low, high in itertools.pairwise(edges):
                middle = (low + high) / 2
                area += (high - low) * (first + slope * (middle - start)) / middle
        start, first = end, last
    return area


def open_augrc(known: Scores, correct: Right, unknown: Scores, share: Fraction) -> float:
    found = points(known, correct, unknown, share)
    return float(sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(found)))


def open_coverage_at_risk(
    known: Scores, correct: Right, unknown: Scores, risk: Fraction, share: Fraction
) -> float:
    return float(
        max(
            coverage
            for coverage, errors in points(known, correct, unknown, share)
            if errors <= risk * coverage
        )
    )


def balanced_accuracy(right: Right, labels: Sequence[int]) -> float:
    shares = []
    for label in set(labels):
        own = [good for good, name in zip(right, labels, strict=True) if name == label]
        shares.append(Fraction(sum(own), len(own)))
    return float(sum(shares) / len(shares)) if shares else math.nan


def most_evident_label(labels: Sequence[int], evidence: Sequence[float]) -> int:
    """Of one query; −1 is no label. A later label must have more to win."""
    winner, most = -1, -math.inf
    for label in dict.fromkeys(labels):
        if label != -1:
            total = math.fsum(value for name, value in zip(labels, evidence, strict=True) if name == label)
            if winner == -1 or total > most:
                winner, most = label, total
    return winner
