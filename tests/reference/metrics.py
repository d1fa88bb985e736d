"""The metrics of `doubtless.metrics` by brute force: loops, fractions, all orders of ties; slow on purpose.

Nothing here imports doubtless. Lists in, numbers out.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

Rows = Sequence[Sequence[float]]


def score(query: Sequence[float], item: Sequence[float]) -> float:
    """Inner product of float32 numbers, exact, rounded to float32."""
    return float(np.float32(math.fsum(float(a) * float(b) for a, b in zip(query, item, strict=True))))


def ranking(query: Sequence[float], gallery: Rows, *, exclude: int | None = None) -> list[int]:
    """Gallery positions, best score first, equal scores by position."""
    places = [place for place in range(len(gallery)) if place != exclude]
    return sorted(places, key=lambda place: (-score(query, gallery[place]), place))


def recall_at(relevant: Sequence[bool], k: int) -> float:
    return 1.0 if any(relevant[:k]) else 0.0


def average_precision_at(relevant: Sequence[bool], positives: int, k: int) -> float:
    total = Fraction(0)
    for place in range(k):
        if relevant[place]:
            total += Fraction(sum(relevant[: place + 1]), place + 1)
    return float(total / min(positives, k))


def map_at_r(relevant: Sequence[bool], positives: int) -> float:
    return average_precision_at(relevant, positives, positives)


def r_precision(relevant: Sequence[bool], positives: int) -> float:
    return sum(relevant[:positives]) / positives


def auroc(negatives: Sequence[float], positives: Sequence[float]) -> float:
    wins = Fraction(0)
    for positive in positives:
        for negative in negatives:
            wins += Fraction(1) if positive > negative else Fraction(1, 2) if positive == negative else 0
    count = len(negatives) * len(positives)
    return float(wins / count) if count else math.nan


def average_precision(
    negatives: Sequence[float], positives: Sequence[float], ratio: Fraction | None = None
) -> float:
    """Threshold by threshold, from the highest score down."""
    weight = Fraction(1) if ratio is None else Fraction(len(positives)) / (ratio * len(negatives))
    area, recalled = Fraction(0), Fraction(0)
    for threshold in sorted({*negatives, *positives}, reverse=True):
        true = sum(value >= threshold for value in positives)
        false = sum(value >= threshold for value in negatives) * weight
        recall = Fraction(true, len(positives))
        area += (recall - recalled) * (true / (true + false))
        recalled = recall
    return float(area)


def fpr95(negatives: Sequence[float], positives: Sequence[float]) -> float:
    rates = [
        Fraction(sum(value >= threshold for value in negatives), len(negatives))
        for threshold in {*negatives, *positives}
        if Fraction(sum(value >= threshold for value in positives), len(positives)) >= Fraction(95, 100)
    ]
    return float(min(rates))


def orders(uncertainty: Sequence[float]) -> Iterator[tuple[int, ...]]:
    """Every order from most to least certain: ties in all their orders."""
    for order in itertools.permutations(range(len(uncertainty))):
        if all(uncertainty[a] <= uncertainty[b] for a, b in itertools.pairwise(order)):
            yield order


def ausc(uncertainty: Sequence[float], correct: Sequence[bool]) -> float:
    """Mean over all orders of the mean recall@1 of all prefixes."""
    areas = []
    for order in orders(uncertainty):
        prefixes = [
            Fraction(sum(correct[item] for item in order[:kept]), kept) for kept in range(1, len(order) + 1)
        ]
        areas.append(sum(prefixes) / len(prefixes))
    return float(sum(areas) / len(areas))


def augrc(uncertainty: Sequence[float], correct: Sequence[bool]) -> float:
    """Mean over all orders of the trapezoids under wrong answers/n against coverage, from (0, 0) on."""
    count, areas = len(correct), []
    for order in orders(uncertainty):
        risk = [Fraction(sum(not correct[item] for item in order[:kept]), count) for kept in range(count + 1)]
        areas.append(sum((a + b) / 2 for a, b in itertools.pairwise(risk)) / count)
    return float(sum(areas) / len(areas))


def coverage_at_risk(uncertainty: Sequence[float], correct: Sequence[bool], risk: Fraction) -> float:
    best = Fraction(0)
    for threshold in set(uncertainty):
        kept = [right for value, right in zip(uncertainty, correct, strict=True) if value <= threshold]
        if Fraction(len(kept) - sum(kept), len(kept)) <= risk:
            best = max(best, Fraction(len(kept), len(correct)))
    return float(best)


def rank_ece(uncertainty: Sequence[float], values: Sequence[float], bins: int = 10) -> float:
    """Expected value of each bin over all orders, then the gaps."""
    count = len(values)
    sums = [0.0] * bins
    seen = 0
    for order in orders(uncertainty):
        seen += 1
        for place in range(bins):
            start, end = place * count // bins, (place + 1) * count // bins
            sums[place] += math.fsum(values[item] for item in order[start:end])
    total = 0.0
    for place in range(bins):
        size = (place + 1) * count // bins - place * count // bins
        total += abs(sums[place] / seen - size * (bins - place) / bins)
    return total / count


def means_by_tenth(uncertainty: Sequence[float], values: Sequence[float]) -> list[tuple[Fraction, float]]:
    """Middle, and mean over all orders, of each tenth that has items."""
    count, found = len(values), []
    ways = list(orders(uncertainty))
    for place in range(10):
        start, end = place * count // 10, (place + 1) * count // 10
        if end > start:
            sums = [math.fsum(values[item] for item in order[start:end]) for order in ways]
            mean = math.fsum(sums) / len(ways) / (end - start)
            found.append((Fraction(start + end, 2 * count), mean))
    return found


def consensus(hits: Sequence[tuple[float, int]], labels: Sequence[int]) -> tuple[int, int]:
    """(label, votes) of one query from its draws' (score, gallery position)."""
    votes = Counter(labels[place] for _, place in hits)
    most = max(votes.values())
    for _, place in sorted(hits, key=lambda hit: (-hit[0], hit[1])):
        if votes[labels[place]] == most:
            return labels[place], most
    raise AssertionError("a query without draws")


def place_consensus(hits: Sequence[tuple[float, int]], positions: Rows, radius: float) -> tuple[int, int]:
    """(gallery position, draws within the radius of it) of one query."""
    chosen, _ = consensus(hits, range(len(positions)))
    return chosen, sum(math.dist(positions[place], positions[chosen]) <= radius for _, place in hits)


def consensus_ece(counts: Sequence[int], correct: Sequence[bool], samples: int) -> float:
    total = Fraction(0)
    for place in range(10):
        members = [
            item for item, count in enumerate(counts) if min(Fraction(10 * count, samples) // 1, 9) == place
        ]
        if members:
            right = Fraction(sum(correct[item] for item in members), len(members))
            confidence = Fraction(sum(counts[item] for item in members), len(members) * samples)
            total += Fraction(len(members), len(counts)) * abs(right - confidence)
    return float(total)


def consensus_ece_floor_of_all_outcomes(counts: Sequence[int], samples: int) -> float:
    """The mean of `consensus_ece` over all outcomes, each as likely as the counts' confidences say."""
    total = Fraction(0)
    for outcome in itertools.product([False, True], repeat=len(counts)):
        chance = Fraction(1)
        for count, right in zip(counts, outcome, strict=True):
            chance *= Fraction(count if right else samples - count, samples)
        if chance:
            total += chance * Fraction(consensus_ece(counts, outcome, samples))
    return float(total)


def match_ece(probabilities: Sequence[float], right: Sequence[bool]) -> float:
    total = 0.0
    for place in range(10):
        members = [item for item, value in enumerate(probabilities) if min(int(value * 10), 9) == place]
        if members:
            gap = sum(right[item] for item in members) - math.fsum(probabilities[item] for item in members)
            total += abs(gap)
    return total / len(right)


def nmi(labels: Sequence[int], clusters: Sequence[int]) -> float:
    count = len(labels)
    shares = [
        [part / count for part in Counter(names).values()]
        for names in (labels, clusters, list(zip(labels, clusters, strict=True)))
    ]
    of_labels, of_clusters, joint = (-math.fsum(p * math.log(p) for p in part) for part in shares)
    if of_labels + of_clusters == 0:
        return 1.0
    return (of_labels + of_clusters - joint) / ((of_labels + of_clusters) / 2)


def pair_f1(labels: Sequence[int], clusters: Sequence[int]) -> float:
    both = classes = found = 0
    for a, b in itertools.combinations(range(len(labels)), 2):
        same_class, same_cluster = labels[a] == labels[b], clusters[a] == clusters[b]
        both += same_class and same_cluster
        classes += same_class
        found += same_cluster
    if not both:
        return 0.0 if classes + found else math.nan
    precision, recall = both / found, both / classes
    return 2 * precision * recall / (precision + recall)
