"""Verification by loops over a list of pairs."""

from __future__ import annotations


def pair_scores(directions: list[list[float]], labels: list[int]) -> tuple[list[float], list[float]]:
    """Cosines of pairs of one class, and of two."""
    same, different = [], []
    for first in range(len(labels)):
        for second in range(first + 1, len(labels)):
            cosine = sum(a * b for a, b in zip(directions[first], directions[second], strict=True))
            (same if labels[first] == labels[second] else different).append(cosine)
    return same, different


def tar_at_far(same: list[float], different: list[float], rate: float) -> float:
    """The best share of `same` accepted by any threshold that accepts at most a share `rate` of `different`."""
    best = 0.0
    for threshold in {*same, *different}:
        if sum(score >= threshold for score in different) <= rate * len(different) + 1e-9:
            best = max(best, sum(score >= threshold for score in same) / len(same))
    return best


def equal_error_rate(same: list[float], different: list[float]) -> tuple[float, float]:
    """Between which two rates the equal error rate lies: around where the sign of FAR − FRR changes."""
    rates = []
    for threshold in sorted({*same, *different, 2.0}):
        far = sum(score >= threshold for score in different) / len(different)
        frr = sum(score < threshold for score in same) / len(same)
        rates.append((far, frr))
    after = next(place for place, (far, frr) in enumerate(rates) if far <= frr)
    edges = [*rates[max(0, after - 1)], *rates[after]]
    return min(edges), max(edges)
