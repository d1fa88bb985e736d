"""What a query's hits say of each label among them: one row of numbers per label, not per item.

Several items of one label support it together: by a kernel over their scores, narrow and wide, and by where the
query lies from the mean of the label's items among the hits, in the metric within labels. Nothing but the hits is
looked at, so it costs the same in a gallery of any size, and a filter or a new item needs no table to be rebuilt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.linalg import vecdot
from torch.nn.functional import embedding_bag

from doubtless.calibration.evidence.background import Background
from doubtless.calibration.evidence.within import LabelSpread, WithinMetric
from doubtless.errors import InputError
from doubtless.search.hits import Hits

NARROW, WIDE = 0.25, 1.0
"""Widths of the two kernels, in deviations of the first score."""
NEIGHBORHOOD = 10
AT_ONCE = 2**24
"""Numbers of items' vectors that are held at a time."""
IN_CACHE = 2**20
SMALLEST = 1e-8
"""Length below which a vector has no direction, as in `torch.cosine_similarity`."""
OF_SCORES = ("narrow", "wide")
OF_VECTORS = ("distance", "cosine")

Vectors = Callable[[Tensor], Tensor]
"""Rows of the gallery (m,) → their vectors (m, D)."""


@dataclass(frozen=True, eq=False)
class LabelHits:
    """What n queries found: labels and scores, and, where there are vectors, of which items.

    >>> LabelHits(torch.tensor([[3, 3, 8]]), torch.tensor([[0.9, 0.8, 0.8]])).labelled.all()
    tensor(True)
    """

    label: Tensor
    """(n, k) int64 codes; −1 for an item without a label, or where there is no item."""
    score: Tensor
    """(n, k), higher is nearer, in any order; −inf where there is no item."""
    row: Tensor | None = None
    """(n, k) of the items in the gallery; anything where there is none."""
    query: Tensor | None = None
    """(n, D) vectors of the queries."""

    def __post_init__(self) -> None:
        shapes = [
            self.label.shape,
            self.score.shape,
            self.label.shape if self.row is None else self.row.shape,
        ]
        if self.label.dim() != 2 or len(set(shapes)) > 1:
            raise InputError(
                "Labels, scores and rows of hits must have one shape (queries, k), got "
                f"{', '.join(str(tuple(shape)) for shape in shapes)}."
            )
        if (self.row is None) != (self.query is None):
            raise InputError("Vectors of queries need the rows of their hits, and rows the vectors.")

    @classmethod
    def of(cls, hits: Hits, query: Tensor) -> LabelHits:
        """Of a search by labelled items, with the queries' vectors (n, D)."""
        assert hits.label is not None
        return cls(hits.label, hits.score, hits.row, query)

    def __len__(self) -> int:
        return self.label.shape[0]

    @property
    def labelled(self) -> Tensor:
        """(n, k) bool: hits that carry a label; the others have no say."""
        return (self.label >= 0) & self.score.isfinite()

    def __getitem__(self, queries: Tensor | slice) -> LabelHits:
        return LabelHits(
            self.label[queries],
            self.score[queries],
            None if self.row is None else self.row[queries],
            None if self.query is None else self.query[queries],
        )

    def best_of(self, label: Tensor) -> Tensor:
        """The best score (n,) of a label (n,) among its query's hits, float64; −inf where it is not among them."""
        there = self.labelled & (self.label == label.unsqueeze(1))
        return self.score.double().masked_fill(~there, -torch.inf).amax(1)


@dataclass(frozen=True, eq=False)
class Statistics:
    """What evidence is measured by, fitted once per gallery."""

    scale: float
    """Deviation of first scores: the unit of scores."""
    spread: LabelSpread
    metric: WithinMetric | None = None
    """None: scores alone, without vectors."""
    background: Background | None = None
    """None: as metric; or it was fitted before there was one."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Per query and label among its hits; labels stand in columns, in the order of their first hit."""

    label: Tensor
    """(n, M) int64; −1 where a query found fewer labels than another."""
    table: dict[str, Tensor]
    """Name → (n, M) float64, 0 where there is no label."""
    scores: dict[str, Tensor]
    """Name → (n,) float64: of all labelled hits, whatever their label, and of the query among all items."""

    @property
    def there(self) -> Tensor:
        """(n, M) bool: whether there is a label."""
        return self.label >= 0

    def __len__(self) -> int:
        return self.label.shape[0]

    def __getitem__(self, queries: Tensor) -> Evidence:
        return Evidence(
            self.label[queries],
            {name: value[queries] for name, value in self.table.items()},
            {name: value[queries] for name, value in self.scores.items()},
        )


def evidence(
    hits: LabelHits,
    by: Statistics,
    *,
    vectors: Vectors | None = None,
    without: tuple[Tensor, Tensor] | None = None,
    parts: Sequence[tuple[Tensor, Statistics]] = (),
) -> Evidence:
    """The evidence of hits (n, k), measured by the gallery's statistics.

    vectors   of items by their row; needed where the statistics have a metric
    without   each query's own label and nearest score (n,) where these are part of `by.spread`
    parts     positions of queries (m,), each in one part, whose metric and background are others than `by`'s

    best            its nearest hit's score             narrow, wide   kernel sums over its hits, as a score
    own, own_mean   best, against the spread of the label's own items; and their mean
    distance        −‖z − mean of its hits‖² · m/(m + 1) in the metric within labels: what a mean of m items
                    adds to the distance of one more is taken out
    cosine          of the angle between them, seen from the gallery's mean

    Of the query as a whole: first and last score, mean of the first ten; mean and deviation of its cosines with all
    items (`Background`).
    """
    slot, label = columns(hits)
    there, width = label >= 0, label.shape[1]
    ignored = ~hits.labelled
    score = (hits.score.double() / by.scale).masked_fill(ignored, -torch.inf)
    best = _largest(score, slot, width)
    mean, deviation = by.spread.of(label, without=without)
    table = {
        "best": best,
        "narrow": _kernel(score, slot, width, NARROW),
        "wide": _kernel(score, slot, width, WIDE),
        "own": (best * by.scale - mean) / deviation,
        "own_mean": mean / by.scale,
    }
    of_vectors, among_all = _in_parts(hits, slot, label, by, parts, vectors)
    table = {name: value.masked_fill(~there, 0.0) for name, value in (table | of_vectors).items()}
    return Evidence(label, table, _whole(score) | among_all)


def _in_parts(
    hits: LabelHits,
    slot: Tensor,
    label: Tensor,
    by: Statistics,
    parts: Sequence[tuple[Tensor, Statistics]],
    vectors: Vectors | None,
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What metric and background say of labels (n, M) and of queries (n,), each part's by its own."""
    if not parts:
        return _of_vectors(hits, slot, label, by, vectors), _among_all(hits, by)
    vectors = _looked_up(hits, vectors)
    each = [
        (_of_vectors(hits[chosen], slot[chosen], label[chosen], own, vectors), _among_all(hits[chosen], own))
        for chosen, own in parts
    ]
    order = torch.cat([chosen for chosen, _ in parts]).argsort()

    def joined(values: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {name: torch.cat([value[name] for value in values])[order] for name in values[0]}

    return joined([table for table, _ in each]), joined([scores for _, scores in each])


def _looked_up(hits: LabelHits, vectors: Vectors | None) -> Vectors | None:
    """The same vectors, looked up once for all parts if they are few: a gallery reads its version each time."""
    if vectors is None or hits.row is None or hits.query is None:
        return vectors
    rows = hits.row[hits.labelled].unique()
    if len(rows) * hits.query.shape[1] > AT_ONCE:
        return vectors
    table = vectors(rows)
    return lambda wanted: table[torch.searchsorted(rows, wanted)]


def columns(hits: LabelHits) -> tuple[Tensor, Tensor]:
    """The column (n, k) of each hit's label, and the labels (n, M) of the columns, −1 where there is none.

    Hits without a label have some column all the same; whoever adds up must leave them out.

    >>> columns(LabelHits(torch.tensor([[5, 2, 5, -1]]), torch.tensor([[0.9, 0.8, 0.7, 0.6]])))
    (tensor([[0, 1, 0, 1]]), tensor([[5, 2]]))
    """
    label = torch.where(hits.labelled, hits.label, -1)
    n, k = label.shape
    if not n or not k:
        return label, label.new_full((n, 1), -1)
    first = (label.unsqueeze(2) == label.unsqueeze(1)).to(torch.uint8).argmax(2)  # (n, k): first of its label
    leads = (first == torch.arange(k, device=label.device)) & (label >= 0)
    width = max(1, int(leads.sum(1).max()))
    slot = (leads.cumsum(1) - 1).gather(1, first).clamp(0, width - 1)
    names = label.new_full((n, width), -1)
    return slot, names.scatter_reduce_(1, slot, label, "amax")


def _largest(value: Tensor, slot: Tensor, width: int) -> Tensor:
    empty = value.new_full((len(value), width), -torch.inf)
    return empty.scatter_reduce_(1, slot, value, "amax")


def _kernel(score: Tensor, slot: Tensor, width: int, temperature: float) -> Tensor:
    """temperature · log Σ exp(score/temperature) over each label's hits, (n, M); −inf where there are none."""
    top = score.amax(1, keepdim=True) if score.shape[1] else score.new_zeros(len(score), 1)
    top = torch.where(top.isfinite(), top, 0.0)
    mass = ((score - top) / temperature).exp()
    total = score.new_zeros(len(score), width).scatter_add_(1, slot, mass)
    # A label far behind the first one underflows; its own nearest hit is then all there is to say of it.
    sum_of_all = top + temperature * total.log()
    return torch.maximum(sum_of_all, _largest(score, slot, width))


def _whole(score: Tensor) -> dict[str, Tensor]:
    """First and last score, and the mean of the first ten, (n,); 0 where nothing was found."""
    found = score.isfinite()
    if not score.shape[1]:
        return {name: score.new_zeros(len(score)) for name in ("first", "last", "mean")}
    near = score.topk(min(NEIGHBORHOOD, score.shape[1]), dim=1).values
    counted = near.isfinite()
    mean = torch.where(counted, near, 0.0).sum(1) / counted.sum(1).clamp_min(1)
    any_found = found.any(1)
    first, last = score.amax(1), torch.where(found, score, torch.inf).amin(1)
    return {
        "first": torch.where(any_found, first, 0.0),
        "last": torch.where(any_found, last, 0.0),
        "mean": mean,
    }


def _among_all(hits: LabelHits, by: Statistics) -> dict[str, Tensor]:
    """Mean and deviation (n,) of the queries' scores with all items; nothing without vectors."""
    if by.background is None:
        return {}
    assert hits.query is not None
    mean, deviation = by.background(hits.query)
    return {"all": mean / by.scale, "all_deviation": deviation / by.scale}


def _of_vectors(
    hits: LabelHits, slot: Tensor, label: Tensor, by: Statistics, vectors: Vectors | None
) -> dict[str, Tensor]:
    """What labels' means say (n, M); nothing where there is no metric."""
    if by.metric is None:
        return {}
    if vectors is None or hits.query is None:
        raise InputError("This model was fitted with vectors; the queries' and the items' are needed.")
    return _from_means(hits, slot, label, by.metric, vectors)


def _from_means(
    hits: LabelHits, slot: Tensor, label: Tensor, metric: WithinMetric, vectors: Vectors
) -> dict[str, Tensor]:
    """Distance and cosine (n, M) from each query to the mean of each label's hits, some queries at a time."""
    assert hits.row is not None
    assert hits.query is not None
    there, labelled = label >= 0, hits.labelled
    found: dict[str, Tensor] = {
        name: torch.zeros(label.shape, dtype=torch.double, device=label.device) for name in OF_VECTORS
    }
    means_of, at_once = _means(hits.row[labelled], int(there.sum()), hits.query.shape[1], metric, vectors)
    step = max(1, at_once // max(1, hits.row.shape[1] * hits.query.shape[1]))
    for start in range(0, len(hits), step):
        part = slice(start, start + step)
        query, pair = there[part].nonzero(as_tuple=True)[0], there[part].flatten().cumsum(0) - 1
        of_hit = pair.view(there[part].shape).gather(1, slot[part])[labelled[part]]  # (hits,)
        count = of_hit.bincount(minlength=len(query))
        means = means_of(hits.row[part][labelled[part]][of_hit.argsort(stable=True)], count)
        # In float64: products of a batch of one and of many differ in their last digits.
        wanted = metric(hits.query[part].double())
        product, length = vecdot(wanted[query], means), vecdot(means, means)
        own = vecdot(wanted, wanted)[query]
        apart = (own - 2 * product + length).clamp_min(0)
        found["distance"][part][there[part]] = -apart * count / (count + 1)
        found["cosine"][part][there[part]] = product / (own * length).sqrt().clamp_min(SMALLEST)
    return found


def _means(
    row: Tensor, pairs: int, dim: int, metric: WithinMetric, vectors: Vectors
) -> tuple[Callable[[Tensor, Tensor], Tensor], int]:
    """Rows of items (h,) one label after the other and how many each has (pairs,) → means (pairs, D) in the metric.

    The metric is affine. Where fewer items than `pairs` means are asked for they go through it once, and the second
    number says how many of their numbers are then looked at at a time: few, which stay near the processor.
    """
    rows = row.unique()
    if len(rows) < pairs and len(rows) * dim <= AT_ONCE:
        items = metric(vectors(rows).double())
        return lambda row, count: _mean(torch.searchsorted(rows, row), count, items), IN_CACHE

    def of(row: Tensor, count: Tensor) -> Tensor:
        some, place = row.unique(return_inverse=True)
        items = vectors(some).double()
        if len(some) < len(count):
            return _mean(place, count, metric(items))
        return metric(_mean(place, count, items))

    return of, AT_ONCE


def _mean(place: Tensor, count: Tensor, items: Tensor) -> Tensor:
    """Means (pairs, D) of the items at `place` (h,), of which `count` (pairs,) follow each other."""
    sums = embedding_bag(place, items, count.cumsum(0) - count, mode="sum")
    return sums.div_(count.unsqueeze(1))
