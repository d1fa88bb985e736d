"""What speaks of a query before anyone knows whether its answer is right: one number per signal, higher is odder.

signal        part      what it is
image         image     how poor the input looks: the log spread a network reads off the image (gaussian, vmf), or
                        minus the length of the embedding, which is short for what a network does not know (point,
                        projected-gaussian)
model         model     how unsure the weights are: the log spread of a posterior (projected-gaussian, empirical)
disagreement  gallery   share of the next nine hits that contradict the first: another label, or a place farther
                        than 25 m; without labels and places how even the first ten distances are
contested     gallery   the same share, hits weighted by how near they are: exp(−4 · distance / mean distance)
ratio         gallery   first distance over second, √(2 − 2 cos) each
distance      distance  √(2 − 2 cos) to the first hit
novelty       novelty   1 − cos to the nearest known feature (`doubtless.doubt.novelty`)
leverage      novelty   how far outside the space that the gallery's directions fill (`doubtless.doubt.leverage`);
                        where it is asked for
"""

from __future__ import annotations

import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.metrics.uncertainty import distance_ratio
from doubtless.search.hits import Hits
from doubtless.search.relevance import RADIUS

DEPTH = 10  # hits looked at
SMALLEST, LARGEST = 1e-30, 1e30  # no spread and all of the sphere have a logarithm all the same
NEARNESS = 4.0  # e-folds a hit's weight falls by over the mean distance of the first ten

PARTS = ("image", "model", "gallery", "distance", "novelty")
PART_OF = {
    "image": "image",
    "model": "model",
    "disagreement": "gallery",
    "contested": "gallery",
    "ratio": "gallery",
    "distance": "distance",
    "novelty": "novelty",
    "leverage": "novelty",
}

Signals = dict[str, Tensor]
"""Name → (n,) float64, higher is odder."""


def hit_signals(hits: Hits, *, positions: Tensor | None = None) -> Signals:
    """What the first ten hits say, for galleries with labels, with positions (n, k, 2) in metres, or with neither.

    >>> hits = Hits(row=torch.tensor([[0, 1, 2]]), score=torch.tensor([[0.9, 0.8, 0.5]]),
    ...             expected_squared_distance=torch.ones(1, 3), label=torch.tensor([[4, 4, 7]]))
    >>> hit_signals(hits)["disagreement"]
    tensor([0.5000], dtype=torch.float64)
    """
    if not hits.depth:
        raise InputError("A doubt needs at least one hit per query, got hits of depth 0.")
    hits = hits.first(DEPTH)
    cosine = torch.where(hits.found, hits.score, -1.0).double()  # what is missing is as far as can be
    away = (2 - 2 * cosine).clamp_min(0).sqrt()  # (n, k)
    of_distances = {"ratio": distance_ratio(cosine), "distance": away[:, 0]}
    if hits.label is None and positions is None:
        return {"disagreement": _evenness(hits, away), **of_distances}
    count, others = contradictions(hits, positions=positions)
    against = _contradicts(hits, positions) & hits.found[:, 1:]
    return {
        "disagreement": count.double() / others.clamp_min(1),
        "contested": (_nearness(hits, away)[:, 1:] * against).sum(1),
        **of_distances,
    }


def query_signals(queries: Embedding) -> Signals:
    """What the embedding says by itself; see the table above for which family says what."""
    length = -queries.location.detach().double().norm(dim=1)
    if queries.family == "point":
        return {"image": length}
    spread = queries.uncertainty
    assert spread is not None
    spread = spread.detach().double().clamp(SMALLEST, LARGEST).log()
    if queries.family in {"gaussian", "vmf"}:
        return {"image": spread}
    return {"model": spread} if queries.family == "empirical" else {"image": length, "model": spread}


def contradictions(hits: Hits, *, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """How many of the next nine hits contradict the first, and how many there are, (n,) each."""
    others = hits.found[:, 1:DEPTH]
    return (_contradicts(hits.first(DEPTH), positions) & others).sum(1), others.sum(1)


def _evenness(hits: Hits, away: Tensor) -> Tensor:
    """First distance over the mean one, (n,): 1 where all hits are as near as the first."""
    mean = _mean_distance(hits, away)
    return torch.where(mean > 0, away[:, 0] / mean, 1.0)


def _mean_distance(hits: Hits, away: Tensor) -> Tensor:
    """Mean distance (n,) of the hits that are there."""
    return torch.where(hits.found, away, 0.0).sum(1) / hits.found.sum(1).clamp_min(1)


def _nearness(hits: Hits, away: Tensor) -> Tensor:
    """Weights (n, k) of the hits that sum to 1, whatever the scale of distances; 0 for hits that are not there."""
    mean = _mean_distance(hits, away).unsqueeze(1)
    relative = torch.where(mean > 0, away / mean, 0.0)
    weight = torch.where(hits.found, (-NEARNESS * relative).exp(), 0.0)
    return weight / weight.sum(1, keepdim=True).clamp_min(SMALLEST)


def _contradicts(hits: Hits, positions: Tensor | None) -> Tensor:
    """(n, k − 1) bool. An item without a label agrees with nothing: it cannot confirm an answer."""
    if positions is not None:
        gap = (positions[:, 1 : hits.depth] - positions[:, :1]).double().norm(dim=-1)
        return gap > RADIUS
    if hits.label is None:
        return torch.zeros_like(hits.row[:, 1:], dtype=torch.bool)
    first = hits.label[:, :1]
    return (hits.label[:, 1:] != first) | (first < 0)
