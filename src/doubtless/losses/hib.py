"""The soft contrastive loss of stochastic embeddings, and the price of knowing too much.

Oh, Murphy, Pan, Roth, Schroff and Gallagher, *Modeling Uncertainty with Hedged Instance Embedding* (2018), eq. 2,
3 and 6: a pair matches with probability E σ(−a‖z_i − z_j‖ + b) over both embeddings, estimated by all K² pairs of K
samples each, and every embedding pays its divergence from N(0, I).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from doubtless.errors import InputError
from doubtless.logistic import fit_logistic
from doubtless.losses.reduction import mean_over
from doubtless.losses.triplet import squared_distances

FAINT = 1e-3  # the pull on the slope in `fitted_match`


def soft_contrastive_loss(
    samples: Tensor,
    labels: Tensor,
    *,
    scale: Tensor | float,
    shift: Tensor | float,
    negative_weight: float = 1.0,
) -> Tensor:
    """Cross-entropy of "same label" against the mean match probability of every pair of images i < j.

        (mean over positive pairs of −log p_ij  +  w · mean over negative pairs of −log(1 − p_ij)) / (1 + w)
        p_ij = mean over K² pairs of samples of σ(−a d + b),   d = ‖z_i^k − z_j^l‖

    so p is the probability of a match where there are w times as many others, however rare positives are in the
    batch. With w = 1, the paper's, both kinds weigh the same; with more, p is high for nearer pairs only, and what
    pushes are the nearest of the negatives. A kind that the batch lacks contributes 0. The logarithm is of the
    mean, not the mean of logarithms: samples may disagree, which is what hedging is.

    samples (K, batch, D), labels (batch,), scale a > 0, shift b, negative_weight w. All distances are one product.

    >>> z = torch.tensor([[[0.0], [1.0]]])                                         # K = 1, two images, d = 1
    >>> soft_contrastive_loss(z, torch.tensor([5, 5]), scale=2.0, shift=2.0)       # p = σ(0), no negative pair
    tensor(0.3466)
    """
    if samples.dim() != 3 or samples.shape[1] != len(labels):
        raise InputError(
            f"The samples must have shape (K, {len(labels)}, D) for {len(labels)} labels, "
            f"got {tuple(samples.shape)}."
        )
    count, batch, dim = samples.shape
    distance = _distances(samples.reshape(count * batch, dim)).view(count, batch, count, batch)
    logit = shift - scale * distance
    pairs_of_samples = 2 * math.log(count)
    # 1 − mean σ(x) = mean σ(−x): no subtraction from 1, which would lose small probabilities
    log_match = logsigmoid(logit).logsumexp(dim=(0, 2)) - pairs_of_samples  # (batch, batch)
    log_other = logsigmoid(-logit).logsumexp(dim=(0, 2)) - pairs_of_samples
    same = labels[:, None] == labels[None, :]
    pair = torch.ones_like(same).triu(diagonal=1)
    total = mean_over(log_match, same & pair) + negative_weight * mean_over(log_other, ~same & pair)
    return -total / (1 + negative_weight)


class Match(NamedTuple):
    """a and b of the probability σ(−a d + b) that two embeddings at distance d match."""

    scale: float
    shift: float


@torch.no_grad()
def fitted_match(distance: Tensor, same: Tensor, *, negative_weight: float = 1.0) -> Match | None:
    """a > 0 and b that tell matches (n,) from others best by their distances (n,): logistic regression.

    Weighted as in `soft_contrastive_loss`, with a faint pull to 0 on a, in units of the distances' deviation, where
    distances tell matches from others without a fault. None where there is nothing to tell: pairs of one kind
    only, equal distances, or matches that are no nearer than others.

    >>> fitted_match(torch.tensor([1.0, 2.0, 2.0, 3.0]), torch.tensor([True, True, False, False])).shift > 0
    True
    """
    distance = distance.double()
    centre, spread = distance.mean(), distance.std()
    if not (bool(same.any()) and bool((~same).any()) and float(spread) > 0):
        return None
    truth = same.double()
    weight = truth / truth.sum() + negative_weight * (1 - truth) / (1 - truth).sum()
    # Rows that weigh much beside the solver's penalty are a faint one beside rows that weigh 1 together.
    found = fit_logistic(
        ((centre - distance) / spread).unsqueeze(1), same, weight=weight / (1 + negative_weight) / FAINT
    )
    slope, level = (float(value) for value in found)
    if not slope > 0:
        return None
    return Match(slope / float(spread), level + slope * float(centre / spread))


def kl_to_standard_normal(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(μ, σ²) ‖ N(0, I)) = ½ Σ_l (σ² + μ² − 1 − log σ²), (n,) from mean (n, D) and log σ² (n, D). Never < 0.

    >>> kl_to_standard_normal(torch.zeros(1, 4), torch.zeros(1, 4))
    tensor([0.])
    """
    return 0.5 * (log_variance.expm1() - log_variance + mean.square()).sum(-1)


def _distances(points: Tensor) -> Tensor:
    """‖x_i − x_j‖, (n, n); its gradient is 0 where two points are one, not 0/0."""
    centered = points - points.mean(0).detach()  # the same distances from smaller numbers
    squared = squared_distances(centered)
    apart = squared > 0
    return torch.where(apart, squared, 1.0).sqrt() * apart
