"""Several photos of one thing, asked as one: what they found becomes what one query found."""

from __future__ import annotations

import torch
from torch import Tensor

from doubtless.calibration.together import MOST_PHOTOS as MOST_PHOTOS
from doubtless.embedding import FAMILIES, Embedding
from doubtless.gallery.label_doubt import Oddness
from doubtless.search.hits import Hits


def as_one(hits: Hits) -> Hits:
    """The hits (n, k) of n photos as those of one query (1, n · k at most): each item once, at its best score.

    >>> row, score = torch.tensor([[4, 2], [2, 7]]), torch.tensor([[0.9, 0.5], [0.8, 0.1]])
    >>> as_one(Hits(row, score, 2 - 2 * score)).row.tolist()
    [[4, 2, 7]]
    """
    order = hits.score.flatten().argsort(descending=True, stable=True)
    row = hits.row.flatten()[order]
    same = row.unsqueeze(0) == row.unsqueeze(1)
    first = ~same.tril(-1).any(1) & (row >= 0)
    order = order[first]

    def chosen(value: Tensor | None) -> Tensor | None:
        return None if value is None else value.flatten()[order].unsqueeze(0)

    spread = hits.query_uncertainty
    return Hits(
        row[first].unsqueeze(0),
        hits.score.flatten()[order].unsqueeze(0),
        hits.expected_squared_distance.flatten()[order].unsqueeze(0),
        label=chosen(hits.label),
        uncertainty=chosen(hits.uncertainty),
        query_uncertainty=None if spread is None else spread.mean().unsqueeze(0),
    )


def with_mean(photos: Embedding) -> Embedding:
    """n photos and, as one more, their mean: of the directions, as long and as unsure as they are on average."""
    location, direction = photos.location, photos.direction.mean(0, keepdim=True)
    parameters = {name: value.mean(0, keepdim=True) for name, value in photos.parameters.items()}
    length = location.norm(dim=1).mean()
    parameters["location"] = torch.nn.functional.normalize(direction, dim=1) * length
    return Embedding.cat([photos, FAMILIES[photos.family](parameters)])


def odd_as_one(odd: Oddness) -> Oddness:
    """How odd one thing is of which n photos are this odd: as they are on average."""

    def mean(value: Tensor) -> Tensor:
        return value.mean().unsqueeze(0)

    return Oddness(
        mean(odd.foreign),
        {name: mean(value) for name, value in odd.sources.items()},
        {name: mean(value) for name, value in odd.chances.items()},
    )
