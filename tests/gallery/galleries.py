"""Made-up galleries whose queries are sometimes wrong, for calibration and answers."""

from __future__ import annotations

import torch
from torch import Tensor

from doubtless.calibration.features import DEPTH
from doubtless.calibration.fit import Known
from doubtless.embedding import Embedding
from doubtless.search.hits import hits_among, hits_without_class


def gallery(
    count: int = 600, *, classes: int = 30, noise: float = 0.55, seed: int = 0, points: bool = False
) -> tuple[Embedding, Tensor]:
    """Classes around random centres; an item's noise is its own, and known to its variance."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    centre = torch.randn(classes, 8, generator=torch.Generator().manual_seed(99))
    own = noise * (0.3 + 1.4 * torch.rand(count, 1, generator=generator))
    rows = centre[labels] + own * torch.randn(count, 8, generator=generator)
    return (Embedding.point(rows) if points else Embedding.gaussian(rows, own.square())), labels


def known(embedding: Embedding, labels: Tensor) -> Known:
    """Every item searches the others, and once more without its class."""
    itself = torch.arange(len(labels))
    hits = hits_among(embedding, embedding, k=DEPTH, gallery_labels=labels, itself=itself)
    return Known(hits, labels, hits_without_class(embedding, labels, embedding, labels, k=DEPTH))
