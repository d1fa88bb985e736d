"""The soft contrastive loss of stochastic embeddings, and the price of knowing too much.

Oh, Murphy, Pan, Roth, Schroff and Gallagher, *Modeling Uncertainty with Hedged Instance Embedding* (2018), eq. 2,
3 and 6: a pair matches with probability E σ(−a‖z_i − z_j‖ + b) over both embeddings, estimated by all K² pairs of K
samples each, and every embedding pays its divergence from N(0, I).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from doubtless.errors import InputError
from doubtless.losses.reduction import mean_over
from doubtless.losses.triplet import squared_distances


def soft_contrastive_loss(
    samples: Tensor, labels: Tensor, *, scale: Tensor | float, shift: Tensor | float
) -> Tensor:
    """Cross-entropy of "same label" against the mean match probability of every pair of images i < j.

        ½ · mean over positive pairs of −log p_ij  +  ½ · mean over negative pairs of −log(1 − p_ij)
        p_ij = mean over K² pairs of samples of σ(−a d + b),   d = ‖z_i^k − z_j^l‖

    so both kinds weigh the same however rare positives are, as if half of all pairs were drawn from each: p is the
    probability of a match among as many matches as others. A kind that the batch lacks contributes 0. The
    logarithm is of the mean, not the mean of logarithms: samples may disagree, which is what hedging is.

    samples (K, batch, D), labels (batch,), scale a > 0, shift b. All distances are one product.

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
    return -0.5 * (mean_over(log_match, same & pair) + mean_over(log_other, ~same & pair))


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
