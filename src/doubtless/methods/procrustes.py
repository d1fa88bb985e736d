"""Orthogonal Procrustes: turning embedding spaces onto each other.

Schönemann, *A generalized solution of the orthogonal Procrustes problem* (1966), for two spaces; Gower,
*Generalized Procrustes analysis* (1975), for several.
"""

from __future__ import annotations

import torch
from torch import Tensor

SWEEPS = 200
TOLERANCE = 1e-12  # relative gain of a sweep, in float64
ROWS = 65536  # embeddings in float64 at once


def procrustes(cross: Tensor) -> Tensor:
    """The orthogonal Q that maximises tr(Qᵀ C), C = XᵀY: X Q is then as near Y as it can be turned.

    Reflections are allowed: cosine and distance know no handedness, so neither do networks trained by them.

    >>> X, turn = torch.randn(100, 3), torch.linalg.qr(torch.randn(3, 3)).Q
    >>> torch.allclose(procrustes(X.T @ (X @ turn)), turn, atol=1e-5)
    True
    """
    left, _, right = torch.linalg.svd(cross)
    return left @ right


def align(embeddings: Tensor) -> Tensor:
    """Orthogonal maps Q (m, D, D) that bring m spaces together: all X_i Q_i as near to their mean as can be.

    Takes the embeddings (m, n, D) of the same n items in each. The maps maximise Σ_{i≠j} tr(Q_iᵀ X_iᵀ X_j Q_j),
    the sum of all inner products between spaces; one at a time, given the others, each is an ordinary
    Procrustes problem, so the sum only grows. The first map is the identity: the common space has the axes of
    the first. In float64, the result in the embeddings' precision.

    >>> align(torch.randn(5, 1000, 8)).shape
    torch.Size([5, 8, 8])
    """
    members, _, dim = embeddings.shape
    products = cross_products(embeddings)  # (m, m, D, D): all that is needed of the n items
    maps = torch.stack([procrustes(products[number, 0]) for number in range(members)])
    maps[0] = torch.eye(dim, dtype=maps.dtype)
    gained = inner_products(products, maps)
    for _ in range(SWEEPS):
        for number in range(members):
            others = (products[number] @ maps).sum(0) - products[number, number] @ maps[number]
            maps[number] = procrustes(others)
        before, gained = gained, inner_products(products, maps)
        if gained - before <= TOLERANCE * abs(gained):
            break
    return (maps @ maps[0].T).to(embeddings)


def cross_products(embeddings: Tensor) -> Tensor:
    """X_iᵀ X_j of all pairs of (m, n, D), as (m, m, D, D): float64, on the CPU, where its SVDs are quick."""
    members, _, dim = embeddings.shape
    total = torch.zeros(members * dim, members * dim, dtype=torch.float64, device=embeddings.device)
    for some in embeddings.split(ROWS, dim=1):
        flat = some.transpose(0, 1).reshape(-1, members * dim).double()  # (rows, m · D)
        total += flat.T @ flat
    return total.view(members, dim, members, dim).transpose(1, 2).cpu()


def inner_products(products: Tensor, maps: Tensor) -> float:
    """Σ_{i≠j} tr(Q_iᵀ X_iᵀ X_j Q_j): over n · m · (m − 1), the mean cosine between two unit embeddings."""
    turned = maps.mT.unsqueeze(1) @ products @ maps.unsqueeze(0)  # (m, m, D, D)
    traces = turned.diagonal(dim1=-2, dim2=-1).sum(-1)
    return float(traces.sum() - traces.diagonal().sum())
