"""Scores for choosing a posterior's scale on validation data, higher is better.

Each takes an `Embedding` and labels (n,), and retrieves leave-one-out: every item's neighbours are all the
others, found by direction. They are what `tune` maximises, not what is reported: `doubtless.evaluation` does that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from doubtless.errors import InputError

if TYPE_CHECKING:
    from doubtless.embedding import Embedding

Criterion = Callable[["Embedding", Tensor], float]

ELEMENTS = 2**24  # of the largest intermediate: similarities are computed for so many rows at a time
SUREST = 1e12  # a concentration above this is as good as none: the soft maximum is a maximum


def error_auroc(embedding: Embedding, labels: Tensor) -> float:
    """How well uncertainty tells wrong nearest neighbours from right ones: the chance that a wrong one is less
    sure than a right one, ties half. ½ where all are wrong or all are right."""
    wrong = torch.cat(
        [labels[best.argmax(1)] != labels[rows] for rows, best in _similarities(embedding.direction)]
    )
    uncertainty = _uncertainty(embedding)
    wrongs, rights = uncertainty[wrong], uncertainty[~wrong].sort().values
    if len(wrongs) == 0 or len(rights) == 0:
        return 0.5
    below = torch.searchsorted(rights, wrongs) + torch.searchsorted(rights, wrongs, right=True)
    return float(below.double().sum()) / (2 * len(wrongs) * len(rights))


def match_likelihood(embedding: Embedding, labels: Tensor) -> float:
    """Mean log probability of a right match, where item i picks j with probability ∝ exp(κ_i u_i·u_j).

    κ_i = 1/uncertainty: sure items bet on their nearest neighbours, unsure ones spread their bet. The density
    of a von Mises-Fisher query at each of the others, normalised over them: too sure and too unsure both cost.
    Items whose label no other has are left out.
    """
    concentration = _uncertainty(embedding).double().reciprocal().clamp_max(SUREST)
    logs = []
    for rows, similarity in _similarities(embedding.direction):
        bets = concentration[rows].unsqueeze(1) * similarity.double()  # (rows, n); −inf for the item itself
        matches = labels[rows].unsqueeze(1) == labels
        matches[torch.arange(len(rows), device=rows.device), rows] = False
        right = bets.masked_fill(~matches, -torch.inf).logsumexp(1)
        logs.append((right - bets.logsumexp(1))[matches.any(1)])
    found = torch.cat(logs)
    return float(found.mean()) if len(found) else 0.0


def negative_consensus_ece(
    embedding: Embedding,
    labels: Tensor,
    *,
    draws: int = 100,
    bins: int = 10,
    generator: torch.Generator | None = None,
) -> float:
    """Minus the expected calibration error of votes: every item is drawn many times, each draw votes for the
    label of its nearest neighbour, and the winner's share should be how often winners are right."""
    classes, labels = labels.unique(return_inverse=True)
    gallery, n = embedding.direction, len(labels)
    counts, correct = [], []
    for rows, similarity in _similarities(gallery, copies=draws):
        sampled = embedding[rows].sample(draws, generator=generator)  # (draws, rows, D)
        votes = sampled @ gallery.T  # (draws, rows, n)
        votes[:, torch.arange(len(rows), device=rows.device), rows] = -torch.inf
        ballot = torch.zeros(len(rows), len(classes), dtype=torch.int64, device=rows.device)
        chosen = labels[votes.argmax(2)].T  # (rows, draws)
        ballot.scatter_add_(1, chosen, torch.ones_like(chosen))
        # Ties go to the label of the nearest neighbour, if it is among the winners.
        ballot = 2 * ballot
        ballot.scatter_add_(1, labels[similarity.argmax(1)].unsqueeze(1), torch.ones_like(rows).unsqueeze(1))
        most, winner = ballot.max(1)
        counts.append(most // 2)
        correct.append(winner == labels[rows])
    share, right = torch.cat(counts), torch.cat(correct).double()
    bin_of = (share * bins // draws).clamp_max(bins - 1)  # in integers: no share falls between two bins
    gap = torch.zeros(bins, dtype=torch.float64, device=right.device)
    gap.index_add_(0, bin_of, right - share.double() / draws)
    return -float(gap.abs().sum()) / n


def _similarities(direction: Tensor, copies: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows (r,) and their cosines to all (r, n), −inf to themselves; few rows at a time."""
    n, dim = direction.shape
    if n < 2:
        raise InputError(f"leave-one-out retrieval needs at least 2 items, got {n}.")
    for rows in torch.arange(n, device=direction.device).split(max(1, ELEMENTS // (copies * max(n, dim)))):
        similarity = direction[rows] @ direction.T
        similarity[torch.arange(len(rows), device=rows.device), rows] = -torch.inf
        yield rows, similarity


def _uncertainty(embedding: Embedding) -> Tensor:
    if embedding.uncertainty is None:
        raise InputError(f"a {embedding.family} embedding has no uncertainty to score.")
    return embedding.uncertainty
