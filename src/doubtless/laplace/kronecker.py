"""The whole curvature of the contrastive loss in its last linear layer, as a Kronecker product.

With x = (h, 1), the 1 for the bias, and z = W x, the generalised Gauss-Newton matrix of all of W is a sum over
points and pairs of Kronecker products of a D×D and an F×F matrix,

    H = Σ_i M_i ⊗ x_i x_iᵀ + Σ_{i≠j} C_ij ⊗ x_i x_jᵀ,

M_i of a point that moves alone (all there is with `fixed`), C_ij of two that move together, pairs in both orders:

    `linear`     M_i = (Y1)_i I                       C_ij = −y_ij I
    `euclidean`  M_i = (Y1)_i (I − u_i u_iᵀ)/r_i²     C_ij = −y_ij (I − u_i u_iᵀ)(I − u_j u_jᵀ)/(r_i r_j)
    `arccos`     M_i = (s_i I + u_i p_iᵀ + p_i u_iᵀ − 3 s_i u_i u_iᵀ)/r_i², and the same C_ij

with p = Yu and s_i = u_i·p_i. In the `linear` geometry, whose loss ½ y_ij ‖z_i − z_j‖² compares what the head puts
out before it is normalised, this is H = I ⊗ A without any approximation, whichever pairs are kept:

    `fixed`: A = Σ_i (Y1)_i x_i x_iᵀ,    `positive`, `full`: A = Σ_{i<j} y_ij (x_i − x_j)(x_i − x_j)ᵀ.

Where the loss normalises, H is no Kronecker product. B ⊗ A takes its place, the one with the same partial traces

    A = tr_D H / D,    B = tr_F H / tr A,    so tr B = D;

it is H itself wherever H is a Kronecker product. Partial traces of a sum are sums of partial traces: batches add
up, and no pair list is needed, not even for the cross terms, whose traces are products of B×B matrices:

    tr_D H = Gᵀ (diag(t) − Y∘(D − 2 + c²)) G,    g = x/r,    t_i = (D−1) (Y1)_i or (D−1) s_i.

Negative pairs enter with a minus, so A and B may have negative eigenvalues; they are taken as 0, once all is
summed. With `euclidean` or `linear`, `positive`, there are none. With `arccos`, `positive` and `full` they are
those along what all images share, and no posterior is made of them: see `check_kronecker`. Sums are float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.laplace.curvature import (
    Approximation,
    Geometry,
    _check,
    _embed,
    _pairs_of,
    _Points,
    _pull,
)
from doubtless.laplace.pairs import _pair_counts, _pair_types, _reciprocal
from doubtless.laplace.symmetric import SymmetricSum
from doubtless.losses.contrastive import Reduction


def check_kronecker(*, geometry: str, approximation: str) -> None:
    """Refuses the curvature whose Kronecker form would be widest where the data are."""
    if geometry == "arccos" and approximation != "fixed":
        raise InputError(
            "A Kronecker covariance of the geometry arccos takes the approximation 'fixed', "
            f"got {approximation!r}: with two points moving, pairs that are not yet alike curve the loss "
            "downwards along what all images share; cut off at 0 there, the posterior would doubt familiar images "
            "most. Take the geometry euclidean or linear."
        )


class KroneckerGGN(NamedTuple):
    """The two factors, not clamped."""

    of_inputs: Tensor
    """A, (F, F), or (F+1, F+1) with the bias last."""
    of_outputs: Tensor | None
    """B up to a factor, (D, D); None: the identity."""


def kronecker_ggn(
    features: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor | None,
    *,
    margin: float,
    geometry: Geometry = "arccos",
    approximation: Approximation = "fixed",
    negative_weight: float = 0.5,
    reduction: Reduction = "active",
    pair_weights: Tensor | None = None,
) -> KroneckerGGN:
    """The factors of the GGN over all pairs i<j of a batch; arguments as of `contrastive_ggn`.

    >>> features, labels = torch.randn(64, 128), torch.arange(64) % 8        # (B, F), (B,)
    >>> head = torch.nn.Linear(128, 16)
    >>> found = kronecker_ggn(features, head.weight, head.bias, labels, margin=0.7)
    >>> found.of_inputs.shape, found.of_outputs.shape
    (torch.Size([129, 129]), torch.Size([16, 16]))
    """
    _check(features, weight, bias, geometry=geometry, approximation=approximation)
    with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
        points = _embed(features, weight, bias)
        pairs = _pairs_of(points, labels, pair_weights, margin, negative_weight, reduction)
        if approximation == "positive":
            pairs = pairs.clamp_min(0)
        return ggn_of_pairs(points, pairs, geometry=geometry, cross=approximation != "fixed")


def ggn_of_pairs(points: _Points, pairs: Tensor, *, geometry: str, cross: bool) -> KroneckerGGN:
    """The factors for a batch at the head and pairs (B, B), y in both orders."""
    traces = _traces(points, pairs, geometry=geometry, cross=cross)
    return KroneckerGGN(traces.left.T @ traces.right, traces.output)


class KroneckerSums:
    """Sums over pairs, by type, to which batches are added; the average is taken once, at the end.

    >>> head, labels = torch.nn.Linear(8, 3), torch.arange(12) % 4
    >>> sums = KroneckerSums(3, 9, geometry="linear")
    >>> for features in torch.randn(2, 12, 8):
    ...     sums.add(features, head.weight, head.bias, labels, margin=0.7)
    >>> sums.average().of_inputs.shape
    torch.Size([9, 9])

    `inputs` counts the 1 of a bias. Without `negatives` only positive pairs are summed, at half of the cost.
    """

    def __init__(
        self,
        dim: int,
        inputs: int,
        *,
        geometry: Geometry = "arccos",
        approximation: Approximation = "fixed",
        reduction: Reduction = "all",
        negatives: bool = True,
        device: torch.device | str = "cpu",
    ) -> None:
        self.geometry, self.approximation, self.reduction = geometry, approximation, reduction
        kinds = 2 if negatives and approximation != "positive" else 1
        self._of_inputs = [SymmetricSum(inputs, device=device) for _ in range(kinds)]
        self._of_outputs: Tensor | None = None
        if geometry != "linear":
            self._of_outputs = torch.zeros(kinds, dim, dim, dtype=torch.float64, device=device)
        self.pairs = torch.zeros(2, dtype=torch.int64, device=device)
        """How many are averaged over: positive, negative."""

    def add(
        self, features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, *, margin: float
    ) -> None:
        """The pairs of one batch: features (B, F), labels (B,)."""
        _check(features, weight, bias, geometry=self.geometry, approximation=self.approximation)
        with torch.no_grad(), torch.autocast(features.device.type, enabled=False):
            points = _embed(features, weight, bias)
            types = _pair_types(points.unit, labels, margin)
            positive = types.averaged_positives(self.reduction)
            self.pairs += torch.stack(
                [torch.as_tensor(n) for n in _pair_counts(types, positive, self.reduction)]
            )
            for kind, (chosen, sign) in enumerate(
                ((positive, 1), (types.inside, -1))[: len(self._of_inputs)]
            ):
                self._add(kind, points, chosen.to(points.unit.dtype).mul_(sign))

    def _add(self, kind: int, points: _Points, pairs: Tensor) -> None:
        traces = _traces(points, pairs, geometry=self.geometry, cross=self.approximation != "fixed")
        self._of_inputs[kind].add(traces.left, traces.right)
        if self._of_outputs is not None and traces.output is not None:
            self._of_outputs[kind] += traces.output

    def average(self, *, negative_weight: float = 0.5) -> KroneckerGGN:
        """2(1−w) ΣH_pos/|P| + 2w ΣH_neg/|N|, of both factors, float64."""
        if not 0 <= negative_weight <= 1:
            raise InputError(f"The negative_weight must lie between 0 and 1, got {negative_weight}.")
        shares = torch.tensor([2 * (1 - negative_weight), 2 * negative_weight], dtype=torch.float64)
        weights = shares.to(self.pairs.device) * _reciprocal(self.pairs, torch.float64)

        def mean(sums: Tensor) -> Tensor:
            return torch.einsum("k,kij->ij", weights[: len(sums)], sums)

        of_inputs = mean(torch.stack([total.value() for total in self._of_inputs]))
        return KroneckerGGN(of_inputs, None if self._of_outputs is None else mean(self._of_outputs))


class _Traces(NamedTuple):
    """What a batch adds: leftᵀ right to A, and output to B."""

    left: Tensor  # (B, F'), with the 1 of a bias
    right: Tensor  # (B, F')
    output: Tensor | None  # (D, D); None: a multiple of the identity


def _traces(points: _Points, pairs: Tensor, *, geometry: str, cross: bool) -> _Traces:
    """Partial traces of H, that over outputs divided by D."""
    if geometry == "linear":
        return _linear_traces(points, pairs, cross=cross)
    dim, unit = points.unit.shape[1], points.unit
    scaled = torch.cat([points.scaled, points.inverse_norm], 1) if points.has_bias else points.scaled
    length = scaled.square().sum(1, keepdim=True)  # (B, 1), ‖g‖²
    if geometry == "euclidean":
        total = pairs @ (points.inverse_norm > 0).to(pairs.dtype)
        output = _outer(unit, -total * length)
    else:
        towards, _, total = _pull(unit, pairs)
        mixed = (unit * length).T @ towards
        output = _outer(unit, -3 * total * length).add_(mixed).add_(mixed.T)
    output.diagonal().add_((total * length).sum())
    left = scaled * (total * ((dim - 1) / dim))
    if cross:
        cosine = unit @ unit.T
        left = left.addmm_(cosine.square().add_(dim - 2).mul_(pairs), scaled, alpha=-1 / dim)
        output += _cross_output(unit, cosine, (scaled @ scaled.T).mul_(pairs))
    return _Traces(left, scaled, output)


def _linear_traces(points: _Points, pairs: Tensor, *, cross: bool) -> _Traces:
    exists = (points.inverse_norm > 0).to(pairs.dtype)  # (B, 1)
    inputs = points.features * exists
    if points.has_bias:
        inputs = torch.cat([inputs, exists], 1)
    left = inputs * (pairs @ exists)
    return _Traces(left.addmm_(pairs, inputs, alpha=-1) if cross else left, inputs, None)


def _cross_output(unit: Tensor, cosine: Tensor, shared: Tensor) -> Tensor:
    """−Σ_ij q_ij (I − u_i u_iᵀ)(I − u_j u_jᵀ), (D, D), for symmetric q_ij = y_ij g_i·g_j, (B, B)."""
    total = shared.sum(1, keepdim=True)
    output = _outer(unit, 2 * total).sub_(unit.T @ (shared * cosine) @ unit)
    output.diagonal().sub_(total.sum())
    return output


def _outer(unit: Tensor, weights: Tensor) -> Tensor:
    """Σ_i w_i u_i u_iᵀ, (D, D); weights (B, 1)."""
    return (unit * weights).T @ unit
