"""The protocol of URL, an outside bar: does what sees the picture alone know which neighbours are wrong?

Kirchhof, Mucsányi, Oh and Kasneci, "URL: A Representation Learning Benchmark for Transferable Uncertainty
Estimates", 2023. On classes that were not trained on every image searches all others by cosine: recall@1, and
R-AUROC, the AUROC of the uncertainty for "the nearest neighbour is wrong" (our `error_auroc`). A crop of an image
should be less certain than the image: the share of images for which it is. Where people have labelled the images,
the rank correlation of the uncertainty with the entropy of their labels.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation.setting import check_labels
from doubtless.metrics.ood import auroc
from doubtless.metrics.ranking import spearman
from doubtless.metrics.uncertainty import error_auroc
from doubtless.search.neighbors import nearest

PUBLISHED = {
    "best that sees the picture alone, a ViT": {"r_auroc": 0.61},
    "nivMF, ResNet-50": {"r_auroc": 0.567},
}
"""Means over CUB, Cars and Stanford Online Products of networks trained on ImageNet alone."""
AGREEING = 0.5  # of people's most frequent labels with the data set's: below that the order is another


@dataclass(frozen=True)
class UrlFigures:
    """What URL measures of one data set; None where there was nothing to measure it by.

    recall            share of images whose nearest neighbour is of their class
    r_auroc           of the learned uncertainty; of points, of the norm
    r_auroc_norm      of minus the embedding's length, which is free
    cropped           share of images that are surer than a crop of them
    human_spearman    rank correlation of the uncertainty with the entropy of people's labels
    human_auroc       AUROC of the uncertainty for images whose entropy is above the median
    """

    images: int
    classes: int
    recall: float
    r_auroc: float
    r_auroc_norm: float
    cropped: float | None = None
    human_spearman: float | None = None
    human_auroc: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def picture_uncertainty(embedding: Embedding) -> Tensor:
    """What an embedding knows of a picture alone, (n,): the learned uncertainty; of points minus their length.

    >>> picture_uncertainty(Embedding.point(torch.tensor([[3.0, 4.0]])))
    tensor([-5.], dtype=torch.float64)
    """
    learned = embedding.uncertainty
    return _shortness(embedding) if learned is None else learned.double()


def url_figures(
    embedding: Embedding, labels: Tensor, *, cropped: Tensor | None = None, human: Tensor | None = None
) -> UrlFigures:
    """URL's figures of n images with labels (n,).

    cropped   (n,) the uncertainty of a crop of each
    human     (n, classes) how people labelled each: counts, or shares

    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> rows = torch.tensor([[1.0, 0.0], [9.0, 1.0], [0.0, 9.0], [8.0, 4.0]])
    >>> figures = url_figures(Embedding.point(rows), labels)
    >>> figures.recall, figures.r_auroc
    (0.75, 0.6666666666666666)
    """
    labels = check_labels(labels, len(embedding), "labels").to(embedding.device)
    if len(labels) < 2:
        raise InputError(f"Every image searches all others: two are needed, got {len(labels)}.")
    itself = torch.arange(len(labels), device=labels.device)
    first = nearest(embedding.direction, embedding.direction, k=1, exclude=itself).index[:, 0]
    correct, doubt = labels[first] == labels, picture_uncertainty(embedding)
    spearman_human, auroc_human = (None, None) if human is None else _human(doubt, labels, human)
    return UrlFigures(
        images=len(labels),
        classes=len(labels.unique()),
        recall=float(correct.double().mean()),
        r_auroc=error_auroc(doubt, correct),
        r_auroc_norm=error_auroc(_shortness(embedding), correct),
        cropped=None if cropped is None else float((doubt < cropped.to(doubt)).double().mean()),
        human_spearman=spearman_human,
        human_auroc=auroc_human,
    )


def read_human_labels(path: str | Path) -> Tensor:
    """People's labels (n, classes) from a .npy file such as CIFAR-10H's cifar10h-probs.npy, as shares."""
    try:
        values = np.load(path, allow_pickle=False)
    except Exception as error:  # numpy raises many kinds for files that are missing or damaged
        raise InputError(f"{path} is no readable .npy file of people's labels: {error}.") from error
    if values.ndim != 2 or values.dtype.kind not in "fiu" or not np.isfinite(values).all():
        raise InputError(
            f"{path} must hold finite numbers (images, classes), got {values.dtype} {values.shape}."
        )
    counts = torch.from_numpy(values.astype(np.float64))
    if bool((counts < 0).any()) or not bool((counts.sum(1) > 0).all()):
        raise InputError(f"{path} must say of every image how people labelled it, with no number below 0.")
    return counts / counts.sum(1, keepdim=True)


def _human(doubt: Tensor, labels: Tensor, human: Tensor) -> tuple[float, float]:
    if len(human) != len(labels):
        raise InputError(
            f"People labelled {len(human)} images, and {len(labels)} are measured; they must be the same, in order."
        )
    human = human.to(doubt)
    share = human / human.sum(1, keepdim=True)
    agreeing = float((share.argmax(1) == labels).double().mean())
    if agreeing < AGREEING:
        raise InputError(
            f"People's most frequent labels are the data set's for {agreeing:.0%} of the images: the order of the "
            "images or of the classes must be another."
        )
    entropy = torch.special.entr(share).sum(1)
    above = entropy > entropy.median()
    unsure = auroc(doubt[~above], doubt[above]) if bool(above.any()) else float("nan")
    return spearman(doubt, entropy), unsure


def _shortness(embedding: Embedding) -> Tensor:
    return -embedding.location.double().norm(dim=1)
