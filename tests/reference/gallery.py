"""Galleries of every family, and a search that looks at every pair by itself, in float64, term by term."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from doubtless.embedding import Embedding


def _positive(generator: torch.Generator, *shape: int) -> Tensor:
    return 0.05 + torch.rand(*shape, generator=generator)


DRAWN: dict[str, Callable[[Tensor, torch.Generator], Embedding]] = {
    "point": lambda location, _: Embedding.point(location),
    "gaussian-scalar": lambda location, draw: Embedding.gaussian(location, _positive(draw, len(location), 1)),
    "gaussian-diagonal": lambda location, draw: Embedding.gaussian(
        location, _positive(draw, *location.shape)
    ),
    "vmf": lambda location, draw: Embedding.vmf(location, 40 * _positive(draw, len(location))),
    "projected-scalar": lambda location, draw: Embedding.projected_gaussian(
        location, _positive(draw, len(location), 1)
    ),
    "projected-diagonal": lambda location, draw: Embedding.projected_gaussian(
        location, _positive(draw, *location.shape)
    ),
}


def drawn(name: str, count: int, *, dim: int = 8, seed: int = 0) -> Embedding:
    """`count` items of a family, doubts of very different size among them."""
    generator = torch.Generator().manual_seed(seed)
    return DRAWN[name](torch.randn(count, dim, generator=generator), generator)


def _described(embedding: Embedding) -> list[tuple[list[float], list[float], float, float]]:
    """Direction, location, R and the sum of the variances of every item."""
    variance = embedding.parameters.get("variance", torch.zeros(len(embedding), 1))
    doubts = variance.double().expand(-1, embedding.dim).sum(1).tolist()
    lists = (embedding.direction.double().tolist(), embedding.location.double().tolist())
    return list(zip(*lists, embedding.resultant.tolist(), doubts, strict=True))


def brute_force(
    queries: Embedding, gallery: Embedding, k: int, *, score: str
) -> list[list[tuple[int, float, float]]]:
    """(position, cosine, expected squared distance) of the k best of every query, best first."""
    found, items = [], _described(gallery)
    for direction, location, resultant, doubt in _described(queries):
        pairs = []
        for position, (other_direction, other_location, other_resultant, other_doubt) in enumerate(items):
            cosine = math.fsum(a * b for a, b in zip(direction, other_direction, strict=True))
            distance = 2 - 2 * resultant * other_resultant * cosine
            if queries.family == "gaussian":
                between = math.fsum((a - b) ** 2 for a, b in zip(location, other_location, strict=True))
                distance = between + doubt + other_doubt
            pairs.append((position, cosine, distance))
        key = (lambda pair: -pair[1]) if score == "direction" else (lambda pair: pair[2])
        found.append(sorted(pairs, key=key)[:k])
    return found
