"""What the draws of a query agree on: its most frequent answer, and the share of draws that give it.

Draws come in chunks of queries, so memory grows neither with the queries nor with the gallery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.evaluation.neighbors import Neighbors, nearest

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
