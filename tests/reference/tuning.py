"""Choosing τ and λ one point after the other, as it was written first: slow and plain."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.laplace import DiagonalPosterior


def marginal_prior_precision(posterior: DiagonalPosterior, scale: float) -> float:
    """Newton's method in log λ for one scale."""
    curvature = scale * posterior.flat_curvature()
    squared_norm = float(posterior.squared_norm())
    log_prior = math.log(int((curvature > 0).sum()) / squared_norm)
    for _ in range(60):
        share = curvature / (curvature + math.exp(log_prior))
        determined = float(share.sum())
        slope = 1 + float((share * (1 - share)).sum()) / determined
        step = (log_prior + math.log(squared_norm / determined)) / slope
        log_prior -= step
        if abs(step) < 1e-10:
            break
    return math.exp(log_prior)


def votes(
    embedding: Embedding, labels: Tensor, *, generator: torch.Generator, draws: int = 100
) -> tuple[Tensor, Tensor, Tensor]:
    """Draws that agree with the winner, whether it is right, and whether the nearest neighbour is, (n,) each."""
    classes, labels = labels.unique(return_inverse=True)
    gallery, n = embedding.direction, len(labels)
    counts, correct, without_votes = [], [], []
    for rows in torch.arange(n).split(max(1, 2**24 // (draws * max(gallery.shape)))):
        itself = torch.arange(len(rows)), rows
        similarity = gallery[rows] @ gallery.T
        similarity[itself] = -torch.inf
        drawn = embedding[rows].sample(draws, generator=generator) @ gallery.T  # (draws, rows, n)
        drawn[:, itself[0], rows] = -torch.inf
        chosen = labels[drawn.argmax(2)].T  # (rows, draws)
        ballot = 2 * torch.stack([row.bincount(minlength=len(classes)) for row in chosen])
        first = labels[similarity.argmax(1)]
        ballot[itself[0], first] += 1
        most, winner = ballot.max(1)
        counts.append(most // 2)
        correct.append(winner == labels[rows])
        without_votes.append(first == labels[rows])
    return torch.cat(counts), torch.cat(correct), torch.cat(without_votes)


def consensus_ece(
    embedding: Embedding, labels: Tensor, *, generator: torch.Generator, draws: int = 100, bins: int = 10
) -> float:
    """Of votes, and what they cost, all similarities of a few rows at once."""
    share, right, neighbours = votes(embedding, labels, generator=generator, draws=draws)
    bin_of = (share * bins // draws).clamp_max(bins - 1)
    gap = torch.zeros(bins, dtype=torch.float64)
    gap.index_add_(0, bin_of, right.double() - share.double() / draws)
    return (float(gap.abs().sum()) + max(0, int(neighbours.sum()) - int(right.sum()))) / len(labels)


def trials(
    posterior: DiagonalPosterior, features: Tensor, labels: Tensor, scales: Sequence[float], *, seed: int
) -> list[tuple[float, float, float]]:
    """τ, λ by the marginal likelihood, and minus the consensus error, a scale at a time."""
    found = []
    for scale in scales:
        prior = marginal_prior_precision(posterior, scale)
        embedding = posterior.with_scale(scale, prior).predict(features)
        error = consensus_ece(embedding, labels, generator=torch.Generator().manual_seed(seed))
        found.append((scale, prior, -error))
    return found
