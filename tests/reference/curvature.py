"""Curvature of the contrastive loss by brute force: explicit Jacobians, one pair at a time, from autograd.

Knows nothing of the closed form. The model is what is linearised, the loss is differentiated twice:
`euclidean`: model h ↦ z/‖z‖, loss ½ y ‖o_i − o_j‖²; `arccos`: model h ↦ z, loss y (1 − cos(z_i, z_j));
`linear`: model h ↦ z, loss ½ y ‖z_i − z_j‖².
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd.functional import hessian, jacobian


def pair_weight(
    i: int,
    j: int,
    embeddings: Tensor,
    labels: Tensor,
    margin: float,
    w: float = 0.5,
    reduction: str = "active",
) -> float:
    """y_ij by counting, pair by pair."""
    unit = [row / row.norm() if row.norm() > 0 else row for row in embeddings]
    counts = {"positive": 0, "negative": 0}
    mine = 0.0
    for a in range(len(unit)):
        for b in range(a + 1, len(unit)):
            kind = "positive" if labels[a] == labels[b] else "negative"
            squared = 2 - 2 * float(unit[a] @ unit[b])
            zero = abs(squared) < 1e-14 if kind == "positive" else squared >= margin**2
            counts[kind] += not (zero and reduction == "active")
            if (a, b) == (i, j) and not (zero and (kind == "negative" or reduction == "active")):
                mine = 2 * (1 - w) if kind == "positive" else -2 * w
    return mine / max(counts["positive" if mine > 0 else "negative"], 1)


def brute_force_ggn(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    weights: Tensor,
    *,
    geometry: str,
    approximation: str,
) -> tuple[Tensor, Tensor]:
    """Diagonal GGN of weight (D, F) and bias (D,); weights (B, B) holds y_ij for i<j."""
    whole = brute_force_whole_ggn(
        features, weight, bias, weights, geometry=geometry, approximation=approximation
    ).diagonal()
    dim, width = weight.shape
    return whole[: dim * width].reshape(dim, width), whole[dim * width :]


def brute_force_whole_ggn(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    weights: Tensor,
    *,
    geometry: str,
    approximation: str,
) -> Tensor:
    """The GGN itself, (D·F + D, D·F + D): the weights row by row, then the biases."""
    dim, width = weight.shape
    offset = torch.zeros(dim, dtype=weight.dtype) if bias is None else bias
    flat = torch.cat([weight.reshape(-1), offset])
    total = torch.zeros(len(flat), len(flat), dtype=flat.dtype)
    outputs = features @ weight.T + offset
    for i in range(len(features)):
        for j in range(i + 1, len(features)):
            y = float(weights[i, j])
            if y == 0 or (approximation == "positive" and y < 0):
                continue
            if outputs[i].norm() == 0 or outputs[j].norm() == 0:
                continue  # a direction that does not exist
            total += _pair(features[[i, j]], flat, y, (dim, width), geometry, approximation)
    return total


def _pair(h: Tensor, flat: Tensor, y: float, shape: tuple[int, int], geometry: str, approx: str) -> Tensor:
    dim, width = shape

    def model(parameters: Tensor) -> Tensor:  # (2, D), flattened
        z = h @ parameters[: dim * width].reshape(dim, width).T + parameters[dim * width :]
        return (z / z.norm(dim=1, keepdim=True) if geometry == "euclidean" else z).reshape(-1)

    def loss(output: Tensor) -> Tensor:
        first, second = output.reshape(2, dim)
        if geometry != "arccos":
            return 0.5 * y * (first - second).square().sum()
        return y * (1 - torch.dot(first, second) / (first.norm() * second.norm()))

    J = jacobian(model, flat)  # (2D, parameters)
    H = hessian(loss, model(flat))  # (2D, 2D)
    if approx == "fixed":
        H[:dim, dim:] = 0
        H[dim:, :dim] = 0
    return J.T @ H @ J
