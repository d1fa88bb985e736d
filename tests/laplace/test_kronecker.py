"""The Kronecker form of the curvature against explicit Jacobians: factors, inverse, sums, edges."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.laplace import (
    CurvatureOptions,
    KroneckerPosterior,
    KroneckerSums,
    contrastive_ggn,
    fit,
    kronecker_ggn,
    pair_weight_matrix,
)
from doubtless.laplace.symmetric import BLOCK
from tests.reference.curvature import brute_force_whole_ggn

VARIANTS = list(product(["arccos", "euclidean", "linear"], ["fixed", "positive", "full"]))
every_variant = pytest.mark.parametrize(("geometry", "approximation"), VARIANTS)
with_and_without_bias = pytest.mark.parametrize("with_bias", [True, False])


def a_batch(
    batch: int = 7, width: int = 4, dim: int = 3, classes: int = 3, seed: int = 0
) -> tuple[Tensor, ...]:
    """Features, weight, bias, labels; float64."""
    generator = torch.Generator().manual_seed(seed)
    sizes = ((batch, width), (dim, width), (dim,))
    tensors = (torch.randn(*size, generator=generator, dtype=torch.float64) for size in sizes)
    return *tensors, torch.arange(batch) % classes


def explicit(
    features: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, *, margin: float, geometry: str,
    approximation: str,
) -> Tensor:  # fmt: skip
    """The whole GGN by Jacobians as (D, F', D, F'), the bias last among the inputs."""
    outputs = features @ weight.T + (0 if bias is None else bias)
    weights = pair_weight_matrix(outputs, labels, margin=margin)
    whole = brute_force_whole_ggn(
        features, weight, bias, weights, geometry=geometry, approximation=approximation
    )
    dim, width = weight.shape
    place = torch.arange(dim * width).reshape(dim, width)
    if bias is not None:
        place = torch.cat([place, dim * width + torch.arange(dim).unsqueeze(1)], 1)
    rows = place.reshape(-1)
    return whole[rows][:, rows].reshape(dim, place.shape[1], dim, place.shape[1])


@every_variant
@with_and_without_bias
def test_partial_traces_are_those_of_explicit_jacobians(
    geometry: str, approximation: str, with_bias: bool
) -> None:
    features, weight, bias, labels = a_batch()
    head_bias = bias if with_bias else None
    settings = {"margin": 1.2, "geometry": geometry, "approximation": approximation}
    found = kronecker_ggn(features, weight, head_bias, labels, **settings)
    whole = explicit(features, weight, head_bias, labels, **settings)
    of_inputs = torch.einsum("dfdg->fg", whole) / len(weight)
    torch.testing.assert_close(found.of_inputs, of_inputs, rtol=1e-10, atol=1e-10)
    of_outputs = torch.einsum("dfef->de", whole)
    if found.of_outputs is None:
        assert geometry == "linear"
        of_outputs -= torch.eye(len(weight), dtype=torch.float64) * of_outputs[0, 0]
        assert of_outputs.abs().max() < 1e-10
    else:
        torch.testing.assert_close(found.of_outputs, of_outputs, rtol=1e-10, atol=1e-10)
    assert found.of_inputs.abs().max() > 1e-2  # there was something to be equal to


@pytest.mark.parametrize("approximation", ["fixed", "positive"])
@with_and_without_bias
def test_linear_is_the_inverse_of_the_explicit_ggn(approximation: str, with_bias: bool) -> None:
    """No approximation at all: the covariance is (τH + λ)⁻¹ of the GGN itself, and so is the predictive."""
    features, weight, bias, labels = a_batch(batch=9)
    head_bias = bias if with_bias else None
    settings = {"margin": 0.3, "geometry": "linear", "approximation": approximation}
    ggn = kronecker_ggn(features, weight, head_bias, labels, **settings)
    whole = explicit(features, weight, head_bias, labels, **settings).flatten(2).flatten(0, 1)
    assert torch.linalg.eigvalsh(whole).min() > -1e-12  # nothing to cut off
    scale, prior = 50.0, 0.3
    posterior = KroneckerPosterior.of(weight, head_bias, ggn, scale=scale, prior_precision=prior)
    covariance = torch.linalg.inv(scale * whole + prior * torch.eye(len(whole), dtype=torch.float64))
    precision = scale * torch.outer(posterior.output_curvature, posterior.input_curvature).squeeze(0) + prior
    mine = posterior.input_basis @ torch.diag(1 / precision) @ posterior.input_basis.T
    expected = torch.kron(torch.eye(len(weight), dtype=torch.float64), mine)
    torch.testing.assert_close(expected, covariance, rtol=1e-10, atol=1e-10)
    x = torch.cat([features, torch.ones(9, 1, dtype=torch.float64)], 1) if with_bias else features
    blocks = covariance.reshape(len(weight), x.shape[1], len(weight), x.shape[1])
    of_outputs = torch.einsum("nf,dfeg,ng->nde", x, blocks, x)  # the predictive covariance of every image
    alike = posterior.predictive(features)["variance"].unsqueeze(2) * torch.eye(3, dtype=torch.float64)
    torch.testing.assert_close(alike, of_outputs, rtol=1e-10, atol=1e-10)
    triangle = torch.linalg.cholesky(
        scale * ggn.of_inputs + prior * torch.eye(x.shape[1], dtype=torch.float64)
    )
    solved = torch.linalg.solve_triangular(triangle, x.T, upper=False).square().sum(0)
    torch.testing.assert_close(
        posterior.predictive(features)["variance"].squeeze(1), solved, rtol=1e-10, atol=0
    )


@every_variant
def test_it_is_the_inverse_of_the_product_it_stands_for(geometry: str, approximation: str) -> None:
    """B ⊗ A from the explicit GGN's partial traces, inverted as one matrix: the same distances and variances."""
    features, weight, bias, labels = a_batch(batch=9)
    settings = {"margin": 0.4, "geometry": geometry, "approximation": approximation}
    posterior = KroneckerPosterior.of(
        weight,
        bias,
        kronecker_ggn(features, weight, bias, labels, **settings),
        scale=20.0,
        prior_precision=0.5,
    )
    whole = explicit(features, weight, bias, labels, **settings)
    A = clamped(torch.einsum("dfdg->fg", whole) / 3)
    B = clamped(torch.einsum("dfef->de", whole))
    B *= 3 / B.trace()
    covariance = torch.linalg.inv(20.0 * torch.kron(B, A) + 0.5 * torch.eye(15, dtype=torch.float64))
    x = torch.cat([features, torch.ones(9, 1, dtype=torch.float64)], 1)
    of_outputs = torch.einsum("nf,dfeg,ng->nde", x, covariance.reshape(3, 5, 3, 5), x)  # not turned
    turn = torch.linalg.solve(weight @ weight.T, weight @ posterior.weight.T)  # Vᵀ weight is the posterior's
    torch.testing.assert_close(turn.T @ turn, torch.eye(3, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    turned = turn.T @ of_outputs @ turn
    variance = posterior.predictive(features)["variance"].expand(-1, 3)
    torch.testing.assert_close(turned, torch.diag_embed(variance), rtol=1e-9, atol=1e-9)
    location = posterior.predictive(features)["location"]
    outputs = features @ weight.T + bias
    torch.testing.assert_close(location @ location.T, outputs @ outputs.T)  # cosines do not notice


def clamped(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return vectors @ torch.diag(values.clamp_min(0)) @ vectors.T


@every_variant
def test_the_diagonal_is_that_of_the_diagonal_form_where_it_can_be(geometry: str, approximation: str) -> None:
    """Partial traces know the sums of the diagonal over outputs and over inputs."""
    features, weight, bias, labels = a_batch(batch=20, width=6)
    settings = {"margin": 1.0, "geometry": geometry, "approximation": approximation}
    found = kronecker_ggn(features, weight, bias, labels, **settings)
    of_weight, of_bias = contrastive_ggn(features, weight, bias, labels, **settings)
    diagonal = torch.cat([of_weight, of_bias.unsqueeze(1)], 1)  # (D, F')
    torch.testing.assert_close(found.of_inputs.diagonal(), diagonal.mean(0), rtol=1e-10, atol=1e-12)
    if found.of_outputs is not None:
        torch.testing.assert_close(found.of_outputs.diagonal(), diagonal.sum(1), rtol=1e-10, atol=1e-12)


@every_variant
@pytest.mark.parametrize("reduction", ["all", "active"])
def test_sums_of_batches_average_as_one_list_of_pairs(
    geometry: str, approximation: str, reduction: str
) -> None:
    features, weight, bias, labels = a_batch(batch=24, width=5)
    kinds = {"geometry": geometry, "approximation": approximation, "reduction": reduction}
    sums, by_hand = KroneckerSums(3, 6, **kinds), torch.zeros(24, 24, dtype=torch.float64)
    counts = {1: 0, -1: 0}
    signs = torch.zeros(24, 24, dtype=torch.float64)
    for rows in torch.arange(24).split(8):
        sums.add(features[rows], weight, bias, labels[rows], margin=1.1)
        y = pair_weight_matrix(
            features[rows] @ weight.T + bias, labels[rows], margin=1.1, reduction=reduction
        ).sign()
        signs[rows[0] : rows[-1] + 1, rows[0] : rows[-1] + 1] = y
        same = labels[rows].unsqueeze(0) == labels[rows].unsqueeze(1)
        counts[1] += int((y > 0).sum()) // 2
        counts[-1] += int((y < 0).sum() if reduction == "active" else (~same).sum()) // 2
    by_hand[signs > 0] = 2 * 0.7 / counts[1]
    by_hand[signs < 0] = -2 * 0.3 / counts[-1]
    found = sums.average(negative_weight=0.3)
    expected = kronecker_ggn(
        features, weight, bias, None, margin=1.1, geometry=geometry, approximation=approximation,
        pair_weights=by_hand,
    )  # fmt: skip
    torch.testing.assert_close(found.of_inputs, expected.of_inputs, rtol=1e-10, atol=1e-12)
    assert torch.equal(found.of_inputs, found.of_inputs.T)
    if expected.of_outputs is not None:
        torch.testing.assert_close(found.of_outputs, expected.of_outputs, rtol=1e-10, atol=1e-12)


def test_more_columns_than_a_block_are_still_symmetric() -> None:
    width = BLOCK + 7
    features, weight, _, labels = a_batch(batch=6, width=width)
    sums = KroneckerSums(3, width, geometry="linear", negatives=False)
    sums.add(features, weight, None, labels, margin=1.0)
    found = sums.average(negative_weight=0.0).of_inputs
    expected = kronecker_ggn(
        features, weight, None, labels, margin=1.0, geometry="linear", negative_weight=0.0, reduction="all"
    ).of_inputs
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)


def test_without_negatives_it_is_the_curvature_of_positive_pairs() -> None:
    features, weight, bias, labels = a_batch(batch=12)
    whole, half = KroneckerSums(3, 5), KroneckerSums(3, 5, negatives=False)
    for sums in (whole, half):
        sums.add(features, weight, bias, labels, margin=2.1)
    for one, other in zip(whole.average(negative_weight=0.0), half.average(negative_weight=0.0), strict=True):
        torch.testing.assert_close(one, other)
    assert not torch.allclose(whole.average().of_inputs, half.average().of_inputs)


@every_variant
def test_float32_is_near_and_zero_outputs_contribute_nothing(geometry: str, approximation: str) -> None:
    features, weight, bias, labels = a_batch(batch=40, width=10, dim=6)
    settings = {"margin": 1.0, "geometry": geometry, "approximation": approximation, "reduction": "all"}
    exact = kronecker_ggn(features, weight, bias, labels, **settings)
    single = kronecker_ggn(features.float(), weight.float(), bias.float(), labels, **settings)
    for found, expected in zip(single, exact, strict=True):
        if expected is not None:
            assert found.dtype == torch.float32
            assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
    nothing = kronecker_ggn(torch.zeros_like(features), weight, None, labels, **settings)
    assert nothing.of_inputs.count_nonzero() == 0
    features[3] = 0
    y = pair_weight_matrix(features @ weight.T, labels, margin=1.0)
    without = y.clone()
    without[3] = without[:, 3] = 0
    both = [
        kronecker_ggn(
            features, weight, None, None, pair_weights=pairs, margin=1.0, geometry=geometry,
            approximation=approximation,
        ).of_inputs
        for pairs in (y, without)
    ]  # fmt: skip
    torch.testing.assert_close(*both)


@pytest.mark.parametrize("geometry", ["arccos", "euclidean", "linear"])
def test_fit_of_all_images_is_the_curvature_of_all_batches(geometry: str) -> None:
    features, weight, bias, labels = a_batch(batch=30, width=6)
    options = CurvatureOptions(margin=0.5, geometry=geometry, batch_size=30, negative_weight=0.2)
    found = fit(features, labels, (weight, bias), covariance="kronecker", options=options)
    ggn = kronecker_ggn(
        features, weight, bias, labels, margin=0.5, geometry=geometry, negative_weight=0.2, reduction="all"
    )
    expected = KroneckerPosterior.of(weight, bias, ggn, scale=30.0, prior_precision=1.0)
    torch.testing.assert_close(
        found.predictive(features)["variance"], expected.predictive(features)["variance"]
    )
    assert (found.scale, found.prior_precision) == (30.0, 1.0)


def test_fit_refuses_what_has_no_curvature() -> None:
    features, weight, bias, labels = a_batch(batch=12)
    with pytest.raises(InputError, match="no positive pair"):
        fit(features, torch.arange(12), (weight, bias), covariance="kronecker")
    with pytest.raises(InputError, match="outweigh"):
        fit(
            features, labels, (weight, bias), covariance="kronecker",
            options=CurvatureOptions(margin=3.0, negative_weight=1.0, geometry="linear"),
        )  # fmt: skip
    with pytest.raises(InputError, match="no covariance 'kroneker'"):
        fit(features, labels, (weight, bias), covariance="kroneker")  # type: ignore[arg-type]


def test_one_image_and_pairs_that_are_none_leave_no_curvature() -> None:
    features, weight, bias, _ = a_batch(batch=1)
    for geometry in ("arccos", "euclidean", "linear"):
        ggn = kronecker_ggn(
            features, weight, bias, torch.zeros(1, dtype=torch.int64), margin=1.0, geometry=geometry
        )
        assert ggn.of_inputs.count_nonzero() == 0
        posterior = KroneckerPosterior.of(weight, bias, ggn, scale=10.0, prior_precision=4.0)
        x = torch.cat([features, torch.ones(1, 1, dtype=torch.float64)], 1)
        expected = x.square().sum(1, keepdim=True).expand(-1, 3) / 4.0  # the prior alone
        torch.testing.assert_close(posterior.predictive(features)["variance"].expand(-1, 3), expected)
