"""What is known of a hit before its label is checked: the numbers a match probability is made from.

Every feature is (n, k), one number per query and hit, and looks only at the hits of the same query. Which of them
exist depends on the gallery: points have no uncertainty, an unlabelled gallery no agreement.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.search.hits import Hits

NEIGHBORHOOD = 10
"""First hits whose labels and similarities describe the surroundings of a query."""
DEPTH = 20
"""Hits searched for a calibrated answer: the neighbourhood, and what a covering set may take."""
PAIR = ("similarity", "distance", "query_uncertainty", "item_uncertainty", "expected_distance")
"""Features of any two items, with or without a search around them."""
SMALLEST, LARGEST = 1e-30, 1e30
"""Variances of dead networks and infinite spreads have a logarithm all the same."""


def hit_features(hits: Hits) -> dict[str, Tensor]:
    """Name → (n, k) float64, of all features these hits have; 0 where there is no item.

    similarity          cosine s                      distance      √(2 − 2s), which bends near s = 1
    gap                 s less that of the next hit   behind        s of the first hit, less s
    crowd               s less the mean of the first ten hits
    rank                log of the place, 0 for the first hit
    query_uncertainty   item_uncertainty   expected_distance        logarithms
    agreement           share of the other first ten hits that carry this hit's label
    lead                best s with this label, less the best with another one (or the last hit's, if none)

    >>> hits = Hits(torch.tensor([[4, 2]]), torch.tensor([[0.9, 0.7]]), torch.tensor([[0.2, 0.6]]))
    >>> sorted(hit_features(hits))
    ['behind', 'crowd', 'distance', 'expected_distance', 'gap', 'rank', 'similarity']
    """
    found = hits.found
    score = hits.score.double().masked_fill(~found, 0.0)
    place = torch.arange(1, hits.depth + 1, dtype=torch.double, device=score.device)
    features = {
        "similarity": score,
        "distance": (2 - 2 * score).clamp_min(0).sqrt(),
        "gap": _gap(score, found),
        "behind": score[:, :1] - score,
        "crowd": score - _mean(score[:, :NEIGHBORHOOD], found[:, :NEIGHBORHOOD]),
        "rank": place.log().expand_as(score),
        "expected_distance": _log(hits.expected_squared_distance),
    }
    if hits.query_uncertainty is not None:
        features["query_uncertainty"] = _log(hits.query_uncertainty).unsqueeze(1).expand_as(score)
    if hits.uncertainty is not None:
        features["item_uncertainty"] = _log(hits.uncertainty)
    if hits.label is not None:
        features["agreement"], features["lead"] = _labels(hits.label, score, found)
    return {name: value.masked_fill(~found, 0.0) for name, value in features.items()}


def pair_features(first: Embedding, second: Embedding, *, symmetric: bool = True) -> dict[str, Tensor]:
    """Name → (n,) float64 of item i of one embedding with item i of the other.

    symmetric   the two may be swapped: the surer one stands in the place of the query

    >>> points = Embedding.point(torch.eye(2))
    >>> pair_features(points, points[[1, 1]])["similarity"].tolist()
    [0.0, 1.0]
    """
    score = (first.direction.double() * second.direction.double()).sum(-1).clamp(-1, 1)
    features = {
        "similarity": score,
        "distance": (2 - 2 * score).clamp_min(0).sqrt(),
        "expected_distance": _log(first.expected_squared_distance(second)),
    }
    if first.uncertainty is not None and second.uncertainty is not None:
        query, item = _log(first.uncertainty), _log(second.uncertainty)
        features["query_uncertainty"] = torch.minimum(query, item) if symmetric else query
        features["item_uncertainty"] = torch.maximum(query, item) if symmetric else item
    return features


def stacked(features: dict[str, Tensor], names: Sequence[str]) -> Tensor:
    """The named features side by side, (…, F)."""
    if missing := [name for name in names if name not in features]:
        raise InputError(
            f"The calibrator was fitted with {', '.join(missing)}, which these hits do not have; a calibrator "
            "answers for the family and the labels it was fitted on."
        )
    return torch.stack([features[name] for name in names], dim=-1)


def _gap(score: Tensor, found: Tensor) -> Tensor:
    """Lead over the next hit; 0 for the last one, of which nobody knows what would come next.

    Hits from `DEPTH` on count as last, so that a deeper search does not change what a hit is worth.
    """
    gap = torch.zeros_like(score)
    both = found[:, :-1] & found[:, 1:]
    gap[:, :-1] = torch.where(both, score[:, :-1] - score[:, 1:], 0.0)
    gap[:, DEPTH - 1 :] = 0.0
    return gap


def _mean(score: Tensor, found: Tensor) -> Tensor:
    return (score * found).sum(1, keepdim=True) / found.sum(1, keepdim=True).clamp_min(1)


def _labels(label: Tensor, score: Tensor, found: Tensor) -> tuple[Tensor, Tensor]:
    """Agreement and lead, (n, k) each; an item without a label agrees with nobody."""
    known = (label >= 0) & found
    near = label[:, :NEIGHBORHOOD]
    same = (label.unsqueeze(2) == near.unsqueeze(1)) & known.unsqueeze(2) & known[:, None, :NEIGHBORHOOD]
    itself = torch.eye(label.shape[1], near.shape[1], dtype=torch.bool, device=label.device)
    others = (found[:, None, :NEIGHBORHOOD] & ~itself).sum(2)
    agreement = (same & ~itself).sum(2).double() / others.clamp_min(1)
    best = score[:, None, :NEIGHBORHOOD].expand(same.shape)
    with_label = torch.where(same | itself, best, -torch.inf).amax(2)
    with_label = torch.maximum(with_label, score)  # a hit behind the tenth has itself at least
    different = found[:, None, :NEIGHBORHOOD] & ~same & ~itself
    rival = torch.where(different, best, -torch.inf).amax(2)
    last = torch.where(found[:, :NEIGHBORHOOD], score[:, :NEIGHBORHOOD], torch.inf).amin(1, keepdim=True)
    return agreement, with_label - torch.where(rival.isfinite(), rival, last.expand_as(with_label))


def _log(value: Tensor) -> Tensor:
    return value.double().clamp(SMALLEST, LARGEST).log()
