"""The mutual likelihood score: how likely two Gaussian embeddings are to be of the same thing.

Shi and Jain, *Probabilistic Face Embeddings* (2019), eq. 3:

    s = log ∫∫ N(z; μ_i, σ_i²) N(w; μ_j, σ_j²) δ(z − w) dz dw = log N(μ_i − μ_j; 0, σ_i² + σ_j²)
      = −½ Σ_l [ (μ_il − μ_jl)² / (σ_il² + σ_jl²) + log(σ_il² + σ_jl²) ] − (D/2) log 2π
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from doubtless.errors import InputError

NUMBERS_AT_A_TIME = {"cpu": 2**19, "cuda": 2**26}
"""Pairs times dimensions worked on at once: on a CPU what its caches hold."""


def mutual_likelihood_score(mean_a: Tensor, variance_a: Tensor, mean_b: Tensor, variance_b: Tensor) -> Tensor:
    """The score of item i of a with item i of b, (n,). Higher: more likely the same.

    Means (n, D), variances (n, D), or (n, 1) where all dimensions have the same.

    >>> mean, variance = torch.zeros(1, 2), torch.full((1, 1), 0.5)
    >>> mutual_likelihood_score(mean, variance, mean, variance)        # log of a standard normal's peak, D = 2
    tensor([-1.8379])
    """
    _check(mean_a, variance_a, mean_b, variance_b)
    if len(mean_a) != len(mean_b):
        raise InputError(f"Row by row needs equal lengths, got {len(mean_a)} and {len(mean_b)} items.")
    return _score(mean_a, variance_a, mean_b, variance_b)


def pairwise_mutual_likelihood_score(
    mean_a: Tensor, variance_a: Tensor, mean_b: Tensor, variance_b: Tensor
) -> Tensor:
    """The score of every pair, (n, m), from means (n, D) and (m, D) and variances of the same shapes or (·, 1).

    Works on blocks of pairs and, where there is a gradient, works them out again in the backward pass: memory
    is that of the answer and one block, never (n, m, D).
    """
    _check(mean_a, variance_a, mean_b, variance_b)
    n, m, dim = len(mean_a), len(mean_b), mean_a.shape[1]
    budget = NUMBERS_AT_A_TIME.get(mean_a.device.type, 2**22)
    columns = max(1, min(m, budget // dim))
    rows = max(1, budget // (columns * dim))
    needs_gradient = torch.is_grad_enabled() and any(
        value.requires_grad for value in (mean_a, variance_a, mean_b, variance_b)
    )
    bands = []
    for start in range(0, n, rows):
        band = (mean_a[start : start + rows, None], variance_a[start : start + rows, None])
        blocks = []
        for first in range(0, m, columns):
            block = (*band, mean_b[None, first : first + columns], variance_b[None, first : first + columns])
            scores = checkpoint(_score, *block, use_reentrant=False) if needs_gradient else _score(*block)
            blocks.append(scores)  # (rows, columns)
        bands.append(torch.cat(blocks, dim=1) if blocks else mean_a.new_zeros(len(band[0]), 0))
    return torch.cat(bands) if bands else mean_a.new_zeros(0, m)


def _score(mean_a: Tensor, variance_a: Tensor, mean_b: Tensor, variance_b: Tensor) -> Tensor:
    """Over the last axis, the others broadcast."""
    variance = variance_a + variance_b
    difference = mean_a - mean_b
    terms = difference.square() / variance + variance.log()  # (…, D), also from variances (…, 1)
    return -0.5 * (terms.sum(-1) + difference.shape[-1] * math.log(2 * math.pi))


def _check(mean_a: Tensor, variance_a: Tensor, mean_b: Tensor, variance_b: Tensor) -> None:
    for name, mean, variance in (("a", mean_a, variance_a), ("b", mean_b, variance_b)):
        if mean.dim() != 2 or mean.shape[1] == 0:
            raise InputError(f"The mean_{name} must have shape (n, D), got {tuple(mean.shape)}.")
        n, dim = mean.shape
        if tuple(variance.shape) not in {(n, 1), (n, dim)}:
            raise InputError(
                f"The variance_{name} must have shape ({n}, 1) or ({n}, {dim}), got {tuple(variance.shape)}."
            )
    if mean_a.shape[1] != mean_b.shape[1]:
        raise InputError(f"Scores need equal dimensions, got {mean_a.shape[1]} and {mean_b.shape[1]}.")
