"""Is the label right, rather than the first hit? The label with the most evidence, and means over labels.

A label's evidence is the sum of what its hits give, so that several images of one thing help it. Means over labels
count a rare label as much as a frequent one. BAKS and BAUS are the balanced accuracies on known and on unknown
samples of Adam et al., "WildlifeReID-10k: Wildlife Re-Identification Dataset with 10k Individual Animals", 2025:
right answers to queries whose label is in the gallery, and withheld ones to queries whose label is not.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.metrics.bootstrap import Form
from doubtless.metrics.metric import RETRIEVAL, Metric, register
from doubtless.metrics.views import Voted

NONE = -1
"""In place of a label: no hit, or no answer."""
TEMPERATURE = 0.07  # of the weighted vote of Wu et al., "Unsupervised Feature Learning via …", 2018


def most_evident_label(labels: Tensor, evidence: Tensor) -> Tensor:
    """The label with the greatest sum of evidence for each query, (n,).

    labels (n, k) are those of a query's hits, best hit first, `NONE` where there is no hit; evidence (n, k) is what
    each hit gives its label. Of labels with equal sums it is the one whose hit comes first. A query without any
    hit has `NONE`.

    >>> most_evident_label(torch.tensor([[7, 3, 3], [7, 3, -1]]), torch.tensor([[0.5, 0.4, 0.3], [0.5, 0.5, 0.0]]))
    tensor([3, 7])
    """
    _check_evidence(labels, evidence)
    if not labels.shape[1]:
        return labels.new_full((len(labels),), NONE)
    # sorted by label, each label is a run; the sort is stable, so a run begins with the label's best hit
    ordered, place = labels.sort(dim=1, stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    run = first.long().cumsum(1) - 1
    found = evidence.double().gather(1, place).masked_fill(ordered == NONE, 0.0)
    candidate = first & (ordered != NONE)
    sums = (
        torch.zeros_like(found).scatter_add(1, run, found).gather(1, run).masked_fill(~candidate, -math.inf)
    )
    best = candidate & (sums == sums.amax(1, keepdim=True))
    chosen = torch.where(best, place, labels.shape[1]).argmin(1, keepdim=True)
    winner = ordered.gather(1, chosen).squeeze(1)
    return torch.where((labels == NONE).all(1), NONE, winner)


def vote_weights(cosines: Tensor) -> Tensor:
    """Evidence exp((cos − 1)/0.07) of each hit in a similarity-weighted vote, (n, k) → (n, k), in (0, 1].

    >>> vote_weights(torch.tensor([[1.0, 0.93]])).round(decimals=3).tolist()
    [[1.0, 0.368]]
    """
    return ((cosines.double() - 1) / TEMPERATURE).exp()


def label_top1(labels: Tensor, evidence: Tensor, truth: Tensor) -> float:
    """Share of queries whose label of the most evidence (see `most_evident_label`) is their own, `truth` (n,).

    In [0, 1], higher is better; NaN without queries.

    >>> label_top1(torch.tensor([[7, 3, 3]]), torch.tensor([[0.5, 0.4, 0.3]]), torch.tensor([3]))
    1.0
    """
    answer = most_evident_label(labels, evidence)
    _check_truth(answer, truth)
    return float((answer == truth).double().mean())


register(
    Metric(
        "label_top1",
        "Top-1 by label",
        "Share of queries whose own label gets most of a vote of the first ten hits, weighted by similarity.",
        of=Voted,
        measure=lambda voted: voted.correct.double(),
        group=RETRIEVAL,
    )
)


def balanced_accuracy(right: Tensor, labels: Tensor) -> float:
    """Mean over labels of the share of their queries that are right: right (n,) bool, labels (n,).

    In [0, 1], higher is better; a label counts the same however many queries it has. NaN without queries.

    >>> balanced_accuracy(torch.tensor([True, True, False, False]), torch.tensor([0, 0, 0, 1]))
    0.3333333333333333
    """
    _check_truth(right, labels)
    ones = torch.ones(1, len(right), dtype=torch.double, device=right.device)
    return float(label_means(labels)(ones, right))


def _balanced(voted: Voted) -> Form:
    means = label_means(voted.labels)
    return lambda weights: {"label_top1_balanced": means(weights, voted.correct)}


register(
    Metric(
        "label_top1_balanced",
        "Top-1 by label, mean over labels",
        "The same share for each label, then the mean over labels: rare labels count as much as frequent ones.",
        of=Voted,
        measure=_balanced,
        group=RETRIEVAL,
    )
)


def baks(predicted: Tensor, labels: Tensor) -> float:
    """Balanced accuracy on known samples: mean over labels of the share of their queries answered with it.

    predicted (n,) are the answers, `NONE` where there is none, which is wrong here; labels (n,) are of queries
    whose label is in the gallery. In [0, 1], higher is better; NaN without queries.

    >>> baks(torch.tensor([4, 4, NONE, 5]), torch.tensor([4, 4, 4, 5]))
    0.8333333333333333
    """
    _check_truth(predicted, labels)
    return balanced_accuracy(predicted == labels, labels)


def baus(predicted: Tensor, labels: Tensor) -> float:
    """Balanced accuracy on unknown samples: mean over labels of the share of their queries left without an answer.

    predicted (m,) are the answers, `NONE` where there is none, which is right here; labels (m,) are of queries
    whose label is not in the gallery. In [0, 1], higher is better; NaN without queries.

    >>> baus(torch.tensor([NONE, 4, NONE]), torch.tensor([8, 8, 9]))
    0.75
    """
    _check_truth(predicted, labels)
    return balanced_accuracy(predicted == NONE, labels)


def label_means(labels: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """`balanced_accuracy` of weighted queries with these labels (n,).

    The function takes weights (b, n) and right, (n,) or (b, n), and gives (b,). Labels not drawn do not count.
    """
    names, label = labels.unique(return_inverse=True)

    def means(weights: Tensor, right: Tensor) -> Tensor:
        empty = weights.new_zeros(len(weights), len(names))
        size = empty.index_add(1, label, weights)
        good = empty.index_add(1, label, weights * right)
        drawn = size > 0
        share = torch.where(drawn, good / size.clamp_min(torch.finfo(size.dtype).tiny), 0.0)
        return share.sum(1) / drawn.sum(1)

    return means


def _check_evidence(labels: Tensor, evidence: Tensor) -> None:
    if labels.dim() != 2 or labels.shape != evidence.shape:
        raise InputError(
            "The labels of hits and their evidence must both have shape (n, k), got shapes "
            f"{tuple(labels.shape)} and {tuple(evidence.shape)}."
        )
    if bool((evidence.isnan() & (labels != NONE)).any()):
        raise InputError("The evidence of a hit is NaN; numbers can be compared, NaN cannot.")


def _check_truth(first: Tensor, second: Tensor) -> None:
    if first.shape != second.shape or second.dim() != 1:
        raise InputError(
            f"One answer and one label per query are needed, got shapes {tuple(first.shape)} and "
            f"{tuple(second.shape)}."
        )
