"""Pairs that take part in a triplet, by three loops."""

from __future__ import annotations

import torch
from torch import Tensor


def pairs_of_triplets(unit: Tensor, labels: Tensor, *, kind: str, margin: float) -> Tensor:
    """(batch, batch) booleans from unit embeddings (batch, D): both pairs of every triplet of the kind."""
    batch = len(labels)
    distance = [[float((one - other).norm()) for other in unit] for one in unit]
    chosen = torch.zeros(batch, batch, dtype=torch.bool)
    for a in range(batch):
        for p in range(batch):
            for n in range(batch):
                if p == a or labels[p] != labels[a] or labels[n] == labels[a]:
                    continue
                gap = distance[a][n] - distance[a][p]
                if gap <= 0 if kind == "hard" else 0 < gap <= margin:
                    chosen[a, p] = chosen[p, a] = chosen[a, n] = chosen[n, a] = True
    return chosen
