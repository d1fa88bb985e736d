"""The loss of each image, and a loss for predicting which of them are larger.

Yoo and Kweon, *Learning Loss for Active Learning* (2019), rank predictions in pairs, because the scale of a loss
says nothing; Kirchhof et al., *URL: A Representation Learning Benchmark for Transferable Uncertainty Estimates*
(2023), found predicted losses the strongest cheap uncertainty.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize, softplus

from doubtless.errors import InputError
from doubtless.losses.reduction import mean_over

SCORES_AT_A_TIME = 2**24


def neighbor_loss_per_image(embeddings: Tensor, labels: Tensor, *, temperature: float = 0.1) -> Tensor:
    """How badly each image finds its own class among all others, (n,), 0 or more:

        −log Σ_{j ≠ i, same label} exp(c_ij / T)  +  log Σ_{j ≠ i} exp(c_ij / T),    c the cosine,

    minus the log-probability that a neighbour drawn by similarity is right (Goldberger et al. 2005). Unlike a
    margin loss it does not become 0 for most images of a network that has fitted them, so there is an order left
    to learn. An image without a second of its class has none to find: its loss is NaN.

    embeddings (n, D), not normalised; labels (n,). Works on blocks of rows, never (n, n).

    >>> z = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])                  # the right one near, the other far
    >>> neighbor_loss_per_image(z, torch.tensor([4, 4, 7]))
    tensor([2.0612e-09, 2.0612e-09,        nan])
    """
    unit = normalize(embeddings, dim=-1)
    rows = max(1, SCORES_AT_A_TIME // max(1, len(unit)))
    parts = []
    for start in range(0, len(unit), rows):
        block = torch.arange(start, min(start + rows, len(unit)), device=unit.device)
        score = (unit[block] @ unit.T / temperature).scatter(1, block[:, None], -torch.inf)  # (rows, n)
        same = labels[block, None] == labels[None, :]
        right = score.masked_fill(~same, -torch.inf).logsumexp(1)
        wrong = score.masked_fill(same, -torch.inf).logsumexp(1)
        loss = softplus(wrong - right)  # log((right + wrong)/right), exact where it is small
        parts.append(loss.masked_fill(right.isneginf(), torch.nan))
    return torch.cat(parts) if parts else unit.new_zeros(0)


def ranking_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """Mean over pairs with different targets of log(1 + exp(−(p_i − p_j))), i the one with the larger target.

    Smooth, so a pair that is ranked right by little still counts: each pair is a logistic regression on "which
    loss is larger" (RankNet, Burges et al. 2005). The margin loss of Yoo and Kweon has the same aim, with one more
    number to choose. Targets that are NaN take no part.

    predicted and target (n,). 0 where no two targets differ.

    >>> ranking_loss(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 2.0]))
    tensor(0.6931)
    """
    if predicted.dim() != 1 or predicted.shape != target.shape:
        raise InputError(
            "The predicted and target losses must be one number per image each, got shapes "
            f"{tuple(predicted.shape)} and {tuple(target.shape)}."
        )
    larger = target[:, None] > target[None, :]  # (n, n), each unordered pair once; False with NaN
    order = softplus(predicted[None, :] - predicted[:, None])
    return mean_over(order, larger)
