"""Do the classes fall into clusters? k-means on directions, NMI and F1 over pairs."""

from __future__ import annotations

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.metrics.metric import CLUSTERING, Metric, register
from doubtless.metrics.views import Clustered

ITERATIONS = 20


def kmeans(direction: Tensor, clusters: int, *, seed: int = 0) -> Tensor:
    """Cluster of each row (n,): FAISS k-means, 20 iterations, every row used (FAISS would take a sample).

    >>> clusters = kmeans(torch.eye(2).repeat(3, 1), 2)
    >>> bool((clusters[::2] == clusters[0]).all()), bool(clusters[0] == clusters[1])
    (True, False)
    """
    import faiss

    if not 1 <= clusters <= len(direction):
        raise InputError(f"A k-means needs 1 to {len(direction)} clusters for as many rows, got {clusters}.")
    rows = direction.detach().float().cpu().contiguous().numpy()
    model = faiss.Kmeans(
        rows.shape[1],
        clusters,
        niter=ITERATIONS,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(rows),
    )
    model.train(rows)
    _, assigned = model.index.search(rows, 1)
    return torch.from_numpy(assigned).squeeze(1).to(direction.device)


def nmi(labels: Tensor, clusters: Tensor) -> float:
    """Mutual information over the arithmetic mean of both entropies, in [0, 1].

    One class and one cluster agree fully: 1.

    >>> nmi(torch.tensor([0, 0, 1, 1]), torch.tensor([5, 5, 3, 3]))
    1.0
    """
    joint, rows, columns = _contingency(labels, clusters)
    entropies = _entropy(rows) + _entropy(columns)
    if entropies == 0:
        return 1.0
    information = entropies - _entropy(joint)
    return min(1.0, max(0.0, 2 * information / entropies))


register(
    Metric(
        "nmi",
        "NMI",
        "Agreement of k-means clusters with the labels (normalised mutual information).",
        of=Clustered,
        measure=lambda clustered: nmi(clustered.labels, clustered.clusters),
        group=CLUSTERING,
    )
)


def pair_f1(labels: Tensor, clusters: Tensor) -> float:
    """F1 of "these two items share a cluster" for "these two share a class", over all pairs.

    NaN where no two items share a class or a cluster.

    >>> pair_f1(torch.tensor([0, 0, 1, 1]), torch.tensor([0, 0, 0, 1]))
    0.4
    """
    together, same_class, same_cluster = (_pairs(part) for part in _contingency(labels, clusters))
    if same_class + same_cluster == 0:
        return float("nan")
    return 2 * together / (same_class + same_cluster)


register(
    Metric(
        "f1",
        "Pairwise F1",
        "F1 over pairs of images: same cluster against same label.",
        of=Clustered,
        measure=lambda clustered: pair_f1(clustered.labels, clustered.clusters),
        group=CLUSTERING,
        undefined="no two items share a class or a cluster",
    )
)


def _contingency(labels: Tensor, clusters: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sizes of the non-empty cells, of the classes, of the clusters."""
    if labels.shape != clusters.shape or not len(labels):
        raise InputError(
            f"There must be as many labels as clusters, got {tuple(labels.shape)} and {tuple(clusters.shape)}."
        )
    _, row, rows = labels.unique(return_inverse=True, return_counts=True)
    _, column, columns = clusters.unique(return_inverse=True, return_counts=True)
    _, joint = (row * len(columns) + column).unique(return_counts=True)
    return joint, rows, columns


def _entropy(counts: Tensor) -> float:
    share = counts.double() / counts.sum()
    return float(-(share * share.log()).sum())


def _pairs(counts: Tensor) -> int:
    return int((counts * (counts - 1) // 2).sum())
