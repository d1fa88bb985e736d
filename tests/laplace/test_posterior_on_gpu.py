"""The Laplace posterior on a GPU: steps, averages, draws, predictives and criteria are those of the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from doubtless.laplace import (
    ContrastiveStep,
    DiagonalPosterior,
    OnlineCurvature,
    contrastive_ggn_sums,
    contrastive_step,
    error_auroc,
    half_whitened,
    marginal_prior_precision,
    match_likelihood,
    negative_consensus_ece,
    pair_weight_matrix,
)
from tests.reference.devices import DEVICE, Inputs, SameNoise, assert_same_on_device, on_device

BATCH, WIDTH, DIM = 48, 20, 8


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


NUMBERS = {
    "features": drawn(BATCH, WIDTH),
    "weight": drawn(DIM, WIDTH, seed=1) / WIDTH**0.5,
    "bias": 0.1 * drawn(DIM, seed=2),
    "curvature": drawn(DIM, WIDTH, seed=3).exp(),
    "bias_curvature": drawn(DIM, seed=4).exp(),
    "labels": torch.arange(BATCH) % 6,
}

both_types = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
every_geometry = pytest.mark.parametrize("geometry", ["arccos", "euclidean"])
every_approximation = pytest.mark.parametrize("approximation", ["fixed", "positive", "full"])


def posterior(given: Inputs) -> DiagonalPosterior:
    names = ("weight", "bias", "curvature", "bias_curvature")
    return DiagonalPosterior(*(given[name].detach() for name in names), scale=30.0, prior_precision=5.0)


def step_of(given: Inputs, geometry: str, approximation: str, chosen: str, reduction: str) -> ContrastiveStep:
    return contrastive_step(
        given["features"],
        given["weight"],
        given["bias"],
        given["labels"],
        margin=1.2,
        geometry=geometry,  # type: ignore[arg-type]
        approximation=approximation,  # type: ignore[arg-type]
        reduction=reduction,  # type: ignore[arg-type]
        curvature_negative_weight=0.2,
        chosen=chosen,  # type: ignore[arg-type]
    )


@on_device
@both_types
@every_geometry
@every_approximation
@pytest.mark.parametrize("chosen", ["all", "semi-hard", "hard"])
@pytest.mark.parametrize("reduction", ["active", "all"])
def test_a_step_its_gradient_and_its_curvature(
    chosen: str, geometry: str, approximation: str, dtype: torch.dtype, reduction: str
) -> None:
    def work(given: Inputs) -> list[Tensor]:
        step = step_of(given, geometry, approximation, chosen, reduction)
        assert step.curvature[1] is not None
        return [step.loss, step.curvature[0], step.curvature[1]]

    assert_same_on_device(work, NUMBERS, dtype)


@on_device
@both_types
@every_geometry
@every_approximation
def test_sums_over_batches(geometry: str, approximation: str, dtype: torch.dtype) -> None:
    def work(given: Inputs) -> list[Tensor]:
        head = (given["weight"].detach(), given["bias"].detach())
        halves = [
            contrastive_ggn_sums(
                given["features"].detach()[rows],
                *head,
                given["labels"][rows],
                margin=1.2,
                geometry=geometry,  # type: ignore[arg-type]
                approximation=approximation,  # type: ignore[arg-type]
            )
            for rows in (slice(0, 24), slice(24, None))
        ]
        of_weight, of_bias = (halves[0] + halves[1]).average(negative_weight=0.3)
        assert of_bias is not None
        return [of_weight, of_bias]

    assert_same_on_device(work, NUMBERS, dtype, gradient=False)


@on_device
@both_types
def test_weights_of_pairs(dtype: torch.dtype) -> None:
    def work(given: Inputs) -> Tensor:
        embeddings = (given["features"] @ given["weight"].T + given["bias"]).detach()
        return pair_weight_matrix(embeddings, given["labels"], margin=1.2)

    assert_same_on_device(work, NUMBERS, dtype, gradient=False)


@on_device
@both_types
def test_online_curvature_and_draws_of_the_same_noise(dtype: torch.dtype) -> None:
    def work(given: Inputs) -> list[Tensor]:
        online = OnlineCurvature(DIM, WIDTH, memory=0.1).to(given["weight"].device, given["weight"].dtype)
        for share in (1.0, 0.5, 2.0):
            online.update(share * given["curvature"].detach(), share * given["bias_curvature"].detach())
        weight, bias = online.sample(given["weight"], given["bias"], scale=30.0, prior_precision=5.0)
        assert bias is not None
        of_weight, of_bias = online.value()
        assert of_bias is not None
        return [of_weight, of_bias, weight, bias]

    assert_same_on_device(work, NUMBERS, dtype)


@on_device
@both_types
def test_predictives(dtype: torch.dtype) -> None:
    def work(given: Inputs) -> list[Tensor]:
        features = given["features"].detach()
        alone = posterior(given).predict(features)
        together = posterior(given).predict_joint(features, 9)
        weights, biases = posterior(given).sample_weights(3)
        assert alone.uncertainty is not None
        assert together.uncertainty is not None
        assert biases is not None
        return [
            alone.location,
            alone.direction,
            alone.uncertainty,
            alone.sample(5),
            together.direction,
            together.uncertainty,
            weights,
            biases,
        ]

    assert_same_on_device(work, NUMBERS, dtype, gradient=False)


@on_device
def test_evidence_and_criteria() -> None:
    """Votes are whole numbers and the others continuous: no rounding changes them by more than it is."""

    def found(device: str) -> list[float]:
        given = {name: value.to(device) for name, value in NUMBERS.items()}
        here = posterior(given)
        embedding, labels = here.predict(given["features"]), given["labels"]
        with SameNoise():
            ece = negative_consensus_ece(embedding, labels)
        return [
            here.log_marginal(),
            marginal_prior_precision(here, 30.0),
            error_auroc(embedding, labels),
            match_likelihood(embedding, labels),
            ece,
        ]

    assert found(DEVICE) == pytest.approx(found("cpu"), rel=1e-6)


@on_device
def test_half_whitened_components() -> None:
    """Up to the sign of each, which a decomposition is free to choose."""
    features = drawn(200, WIDTH) * torch.linspace(1, 3, WIDTH, dtype=torch.float64)
    (weight, bias), (there, bias_there) = (
        half_whitened(features.to(device), DIM) for device in ("cpu", DEVICE)
    )
    sign = (weight * there.cpu()).sum(1).sign()
    torch.testing.assert_close(there.cpu(), sign[:, None] * weight, rtol=1e-8, atol=1e-10)
    if bias is not None and bias_there is not None:
        torch.testing.assert_close(bias_there.cpu(), sign * bias, rtol=1e-8, atol=1e-10)
