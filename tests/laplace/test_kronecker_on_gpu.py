"""The Kronecker posterior on a GPU: factors, averages and predictives are those of the CPU; steps do not wait."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from doubtless.laplace import (
    CurvatureOptions,
    KroneckerCurvature,
    KroneckerSums,
    contrastive_step,
    fit,
    kronecker_ggn,
    ratio_by_unknowns,
)
from tests.reference.devices import DEVICE, Inputs, assert_same_on_device, on_device

BATCH, WIDTH, DIM = 48, 20, 8


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


NUMBERS = {
    "features": drawn(BATCH, WIDTH),
    "weight": drawn(DIM, WIDTH, seed=1) / WIDTH**0.5,
    "bias": 0.1 * drawn(DIM, seed=2),
    "labels": torch.arange(BATCH) % 6,
}
both_types = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
every_geometry = pytest.mark.parametrize("geometry", ["arccos", "euclidean", "linear"])


def head_of(given: Inputs) -> tuple[Tensor, Tensor]:
    return given["weight"].detach(), given["bias"].detach()


@on_device
@both_types
@every_geometry
@pytest.mark.parametrize("approximation", ["fixed", "positive", "full"])
def test_factors_of_a_batch_and_of_sums(dtype: torch.dtype, geometry: str, approximation: str) -> None:
    def work(given: Inputs) -> list[Tensor]:
        features, kinds = given["features"].detach(), {"geometry": geometry, "approximation": approximation}
        alone = kronecker_ggn(features, *head_of(given), given["labels"], margin=1.0, **kinds)
        sums = KroneckerSums(DIM, WIDTH + 1, device=features.device, **kinds)
        for part, labels in zip(features.split(16), given["labels"].split(16), strict=True):
            sums.add(part, *head_of(given), labels, margin=1.0)
        return [part for part in (*alone, *sums.average(negative_weight=0.2)) if part is not None]

    assert_same_on_device(work, NUMBERS, dtype, gradient=False)


@on_device
@every_geometry
def test_fitted_predictives(geometry: str) -> None:
    """Eigenvectors may be other ones; what they predict is the same."""

    def work(given: Inputs) -> list[Tensor]:
        features = given["features"].detach()
        options = CurvatureOptions(geometry=geometry, batch_size=24)
        generator = torch.Generator().manual_seed(0)
        found = fit(
            features,
            given["labels"],
            head_of(given),
            covariance="kronecker",
            options=options,
            generator=generator,
        )
        embedding = found.with_scale(30.0, 0.5).predict(features)
        assert embedding.uncertainty is not None
        return [embedding.uncertainty, embedding.variance.sum(1), embedding.direction @ embedding.direction.T]

    assert_same_on_device(work, NUMBERS, torch.float64, gradient=False)


@on_device
@every_geometry
def test_steps_between_factorisations_do_not_wait_for_the_device(geometry: str) -> None:
    given = {name: value.to(DEVICE) for name, value in NUMBERS.items()}
    curvature = KroneckerCurvature(DIM, WIDTH, turns=geometry != "linear", refactor=10).to(DEVICE)
    weight, bias = (given[name].float() for name in ("weight", "bias"))
    scale, prior = torch.full((), 30.0, device=DEVICE), torch.full((), 2.0, device=DEVICE)
    features = given["features"].float()

    def step() -> None:
        drawn_weight, drawn_bias = curvature.sample(weight, bias, scale=scale, prior_precision=prior)
        found = contrastive_step(
            features,
            drawn_weight,
            drawn_bias,
            given["labels"],
            margin=0.7,
            covariance="kronecker",
            geometry=geometry,
        )
        curvature.update(*found.curvature, found.valid)

    step()  # factorises
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(5):
            step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert int(curvature.steps) == 6


@on_device
def test_classes_left_out_on_the_device() -> None:
    found = [
        ratio_by_unknowns(
            NUMBERS["features"].to(device),
            NUMBERS["labels"].to(device),
            tuple(NUMBERS[name].to(device) for name in ("weight", "bias")),
            covariance="kronecker",
        ).scores
        for device in ("cpu", DEVICE)
    ]
    assert found[1] == pytest.approx(found[0], abs=0.01)
