"""Is a confidence what it says? Consensus ECE, rank ECE@k, match ECE and Brier score, reliability curve.

ECE is Σ_B |B|/n · |mean right − mean confidence| over bins B of queries. The consensus of a query is what its
draws agree on: the most frequent answer, and the share of draws that give it. Draws come in chunks of
queries, so memory grows neither with the queries nor with the gallery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.metrics.bootstrap import Form
from doubtless.metrics.measure import Curve
from doubtless.metrics.metric import CALIBRATION, Metric, register
from doubtless.metrics.ranking import Ranking
from doubtless.metrics.uncertainty import interpolate
from doubtless.metrics.views import Agreed, Matched, Scored
from doubtless.search.neighbors import Neighbors, nearest
from doubtless.search.relevance import Positions, Truth, is_right

BINS = 10


def consensus_ece(count: Tensor, correct: Tensor, *, samples: int) -> float:
    """ECE of "count of the samples agree" (q,) against whether the prediction is right (q,).

    Bins are integers, min(⌊10 · count/samples⌋, 9), so full agreement is in the last one and no rounding
    moves a query.

    >>> consensus_ece(torch.tensor([100, 50]), torch.tensor([True, False]), samples=100)
    0.25
    """
    _, gaps = consensus_sums(count, correct, samples=samples)
    return float(gaps.abs().sum()) / (samples * len(count))


register(
    Metric(
        "ece",
        "Consensus ECE",
        "Mean gap between how often draws of the embedding agree on a label and how often that label is right.",
        of=Agreed,
        measure=lambda agreed: consensus_form(agreed.count, agreed.correct, samples=agreed.samples),
        group=CALIBRATION,
        higher=False,
    )
)


def rank_ece(uncertainty: Tensor, values: Tensor) -> float:
    """ECE@k: queries in ten bins by rank of uncertainty, against their map@k `values` (q,).

    Bin m of M (0 the most certain) has confidence (M − m)/M and ends at ⌊(m+1) q/M⌋. It is a rank, not a
    probability: a perfect retriever scores .45. Queries of equal uncertainty share their mean value.

    >>> round(rank_ece(torch.arange(100.0), torch.ones(100)), 10)
    0.45
    """
    return _value(rank_ece_form(uncertainty, {"ece": values}), uncertainty, "ece")


def _rank_eces(scored: Scored) -> Form | dict[str, Form]:
    """One per map@k, of the learned uncertainty only: the papers report it of what was learned."""
    precisions = {
        name.replace("map@", "ece@"): values
        for name, values in scored.values.items()
        if name.startswith("map@") and name != "map@r"
    }
    return rank_ece_form(scored.uncertainty, precisions) if scored.learned else {}


register(
    Metric(
        "ece@",
        "Rank ECE@{k}",
        "Gap between a bin's rank by uncertainty and its MAP@{k}. "
        "It is a rank, not a probability: a perfect retriever scores .45.",
        of=Scored,
        measure=_rank_eces,
        group=CALIBRATION,
        higher=False,
        paired=False,  # a rank says nothing of which method is better
        note="ece@k is of a rank, not of a probability: a perfect retriever scores 0.45.",
    )
)


def match_ece(probability: Tensor, right: Tensor) -> float:
    """ECE of calibrated match probabilities (n,) against "this hit is right" (n,).

    Ten bins of equal width [lo, hi); a probability of 1 is in the last.

    >>> round(match_ece(torch.tensor([0.9, 0.2]), torch.tensor([True, False])), 3)
    0.15
    """
    _check_probability(probability, right)
    bins = (probability.double() * BINS).long().clamp_max(BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.double, device=bins.device)
    gaps.scatter_add_(0, bins, right.double() - probability.double())
    return float(gaps.abs().sum() / len(bins))


def _matches(matched: Matched) -> Form:
    return match_form(matched.probability, matched.correct)


register(
    Metric(
        "match_ece",
        "Match ECE",
        "Mean gap between the calibrated match probability and how often the hit is right.",
        of=Matched,
        measure=_matches,
        group=CALIBRATION,
        higher=False,
    )
)


def match_brier(probability: Tensor, right: Tensor) -> float:
    """Mean squared difference of a match probability (n,) and "this hit is right" (n,).

    >>> round(match_brier(torch.tensor([0.9, 0.2]), torch.tensor([True, False])), 3)
    0.025
    """
    _check_probability(probability, right)
    return float((probability.double() - right.double()).square().mean())


register(
    Metric(
        "match_brier",
        "Match Brier score",
        "Mean squared error of the calibrated match probability.",
        of=Matched,
        measure=_matches,
        group=CALIBRATION,
        higher=False,
    )
)


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


def consensus_bins(count: Tensor, *, samples: int, bins: int = BINS) -> Tensor:
    """The bin of each count of agreeing samples, in integers."""
    return (bins * count // samples).clamp_max(bins - 1)


def consensus_sums(
    count: Tensor, correct: Tensor, *, samples: int, bins: int = BINS
) -> tuple[Tensor, Tensor]:
    """Queries in each bin, and samples · right − count summed over them, (…, bins) each, exact in integers.

    count (…, q) are the samples that agree, correct (…, q) whether they are right. Asks the device nothing.
    """
    count = count.long()
    place = consensus_bins(count, samples=samples, bins=bins)
    empty = count.new_zeros(*count.shape[:-1], bins)
    sizes = empty.scatter_add(-1, place, torch.ones_like(count))
    return sizes, empty.scatter_add(-1, place, samples * correct.long() - count)


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
    """`rank_ece` of weighted queries for several values per query at once: weights (b, q) → names → (b,)."""
    ranking = Ranking.of(uncertainty)

    def form(weights: Tensor) -> dict[str, Tensor]:
        count = ranking.totals(weights)  # (b, g)
        edges = count[:, -1:] * torch.arange(BINS + 1, dtype=torch.double, device=weights.device)
        edges = (edges / BINS).floor()  # (b, M + 1)
        confidence = torch.arange(BINS, 0, -1, dtype=torch.double, device=weights.device) / BINS
        promised = edges.diff(dim=1) * confidence
        gaps = {}
        for name, value in values.items():
            sums = interpolate(count, ranking.totals(weights * value.double()), edges).diff(dim=1)
            gaps[name] = (sums - promised).abs().sum(1) / count[:, -1]
        return gaps

    return form


class ConsensusCalibration:
    """Consensus ECE over queries that come in chunks; holds two sums per bin.

    >>> calibration = ConsensusCalibration(samples=100)
    >>> calibration.update(torch.tensor([100, 50]), torch.tensor([True, False]))
    >>> calibration.compute()
    0.25
    """

    def __init__(self, *, samples: int) -> None:
        self.samples = samples
        self._size = torch.zeros(BINS, dtype=torch.long)
        self._gaps = torch.zeros(BINS, dtype=torch.long)

    def update(self, count: Tensor, correct: Tensor) -> None:
        """Adds a chunk: draws that agree (q,) and whether the prediction is right (q,)."""
        sizes, gaps = consensus_sums(count.cpu(), correct.cpu(), samples=self.samples)
        self._size += sizes
        self._gaps += gaps

    def compute(self) -> float:
        """The consensus ECE of all queries so far."""
        total = int(self._size.sum())
        if not total:
            raise InputError("No query was given, so there is no calibration to compute.")
        return float(self._gaps.abs().sum()) / (self.samples * total)


def _check_probability(probability: Tensor, right: Tensor) -> None:
    if probability.shape != right.shape or probability.dim() != 1 or not len(right):
        raise InputError(
            f"One probability per hit is needed, got shapes {tuple(probability.shape)} and {tuple(right.shape)}."
        )
    if not bool(((probability >= 0) & (probability <= 1)).all()):
        raise InputError("A probability must lie between 0 and 1.")


def _value(form: Form, like: Tensor, name: str) -> float:
    return float(form(torch.ones(1, len(like), dtype=torch.double, device=like.device))[name])


DRAWN = 2**22  # numbers drawn at a time


@dataclass(frozen=True)
class Agreement:
    """What each query's draws say."""

    prediction: Tensor  # (q,) a label, or a gallery position for places
    count: Tensor  # (q,) draws that agree with it


def draw_hits(
    draw: Callable[[Tensor], Tensor],
    rows: Tensor,
    *,
    gallery: Tensor,
    samples: int,
    exclude: Tensor | None = None,
) -> Iterator[tuple[Tensor, Neighbors]]:
    """The nearest gallery item of every draw of every query, a chunk of queries at a time.

    `draw` gives unit draws (samples, c, D) for c of the query positions `rows`; `exclude` (q,) is the gallery
    position each of `rows` must not find. Yields positions within `rows` (c,) and hits (samples, c).
    """
    size = max(1, DRAWN // (samples * gallery.shape[1]))
    for chunk in torch.arange(len(rows), device=rows.device).split(size):
        draws = draw(rows[chunk])  # (samples, c, D)
        without = None if exclude is None else exclude[chunk].repeat(samples)
        hits = nearest(draws.flatten(0, 1), gallery, k=1, exclude=without)
        shape = draws.shape[:2]
        yield chunk, Neighbors(hits.score.view(shape), hits.index.view(shape))


def agreement(truth: Truth, gallery: Truth, *, rows: Tensor, hits: Neighbors) -> tuple[Tensor, Tensor]:
    """Draws that agree with the most frequent answer (c,), and whether it is right (c,); hits (samples, c)."""
    if isinstance(gallery, Positions):
        agreed = agree_on_place(hits, gallery.metres, radius=gallery.radius)
        return agreed.count, is_right(truth, gallery, rows=rows, found=agreed.prediction)
    assert isinstance(truth, Tensor)
    agreed = agree_on_label(hits, gallery)
    return agreed.count, agreed.prediction == truth[rows]


def agree_on_label(hits: Neighbors, gallery_labels: Tensor) -> Agreement:
    """The most frequent label of the hits (samples, q); equally frequent: the one with the nearest hit.

    >>> hits = Neighbors(torch.tensor([[0.9], [0.8], [0.7]]), torch.tensor([[0], [1], [2]]))
    >>> agree_on_label(hits, torch.tensor([5, 6, 6]))
    Agreement(prediction=tensor([6]), count=tensor([2]))
    """
    labels = gallery_labels[hits.index]
    chosen, count = _most_frequent(labels, hits)
    return Agreement(chosen, count)


def agree_on_place(hits: Neighbors, positions: Tensor, *, radius: float = 25.0) -> Agreement:
    """The most frequent gallery item, and the draws whose hit lies within `radius` of it.

    "Within 25 m" is not transitive, so places have no label to vote on. positions (m, 2) in metres.
    """
    chosen, _ = _most_frequent(hits.index, hits)
    away = (positions[hits.index].double() - positions[chosen].double()).norm(dim=-1)  # (samples, q)
    return Agreement(chosen, (away <= radius).sum(0))


def _most_frequent(votes: Tensor, hits: Neighbors) -> tuple[Tensor, Tensor]:
    """The most frequent of the votes (samples, q) of each query, and how often it was given."""
    # Best hit first (by score, then by index); a stable sort by vote then keeps each vote's best hit in front.
    by_index = hits.index.T.sort(dim=1, stable=True).indices  # (q, samples)
    by_score = hits.score.T.gather(1, by_index).sort(dim=1, descending=True, stable=True).indices
    best_first = by_index.gather(1, by_score)
    given = votes.T.gather(1, best_first)
    sorted_votes, place = given.sort(dim=1, stable=True)  # place: rank of the hit, 0 the nearest
    starts = torch.ones_like(sorted_votes, dtype=torch.bool)
    starts[:, 1:] = sorted_votes[:, 1:] != sorted_votes[:, :-1]
    run = starts.cumsum(1) - 1  # (q, samples) number of the run of equal votes
    length = torch.zeros_like(run).scatter_add_(1, run, torch.ones_like(run)).gather(1, run)
    samples = votes.shape[0]
    winner = (length * samples - place).argmax(1, keepdim=True)  # longest run; its nearest hit, if several
    return sorted_votes.gather(1, winner).squeeze(1), length.gather(1, winner).squeeze(1)
