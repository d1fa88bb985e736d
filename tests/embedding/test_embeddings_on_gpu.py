"""Every family's predictive on a GPU: what it says, its distances and draws are those of the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from doubtless.embedding import FAMILIES, Embedding
from doubtless.embedding.vmf import pairwise_expected_likelihood
from tests.reference.devices import DEVICE, Inputs, Work, assert_same_on_device, on_device

ITEMS = 40


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(family: str, given: Inputs) -> Embedding:
    """An embedding of the family from plain numbers, the same ones for all."""
    location, spread = given["location"].detach(), given["spread"].detach().exp()
    if family == "point":
        return Embedding.point(location)
    if family == "gaussian":
        return Embedding.gaussian(location, 0.3 * spread)
    if family == "projected-gaussian":
        return Embedding.projected_gaussian(location, 0.3 * spread)
    if family == "vmf":
        return Embedding.vmf(location, 20 * spread[:, 0])
    return Embedding.empirical(location + 0.1 * given["several"].detach())


def numbers(dim: int, seed: int = 0) -> dict[str, Tensor]:
    return {
        "location": drawn(ITEMS, dim, seed=seed),
        "spread": drawn(ITEMS, dim, seed=seed + 1),
        "several": drawn(9, ITEMS, dim, seed=seed + 2),
    }


def of(family: str, *parts: Callable[[Embedding], Tensor | None]) -> Work:
    def work(given: Inputs) -> list[Tensor]:
        embedding = made(family, given)
        found = [part(embedding) for part in parts]
        return [value for value in found if value is not None]

    return work


both_types = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
every_size = pytest.mark.parametrize("dim", [2, 3, 16, 128])
every_family = pytest.mark.parametrize("family", sorted(FAMILIES))


@on_device
@both_types
@every_size
@every_family
def test_what_is_predicted(family: str, dim: int, dtype: torch.dtype) -> None:
    work = of(
        family,
        lambda found: found.location,
        lambda found: found.direction,
        lambda found: found.resultant,
        lambda found: found.uncertainty,
        lambda found: found.mean_unit_vector,
    )
    assert_same_on_device(work, numbers(dim), dtype, gradient=False)


@on_device
@both_types
@every_size
@every_family
def test_draws_of_the_same_noise(family: str, dim: int, dtype: torch.dtype) -> None:
    work = of(family, lambda found: found.sample(7))
    assert_same_on_device(work, numbers(dim), dtype, gradient=False)


@on_device
@both_types
@every_size
def test_expected_distances(dim: int, dtype: torch.dtype) -> None:
    def distances(embedding: Embedding) -> Tensor:
        return embedding.pairwise_expected_squared_distance(embedding[:5])

    def row_by_row(embedding: Embedding) -> Tensor:
        return embedding[:20].expected_squared_distance(embedding[20:])

    assert_same_on_device(of("gaussian", distances, row_by_row), numbers(dim), dtype, gradient=False)


@on_device
@both_types
@every_size
def test_expected_likelihoods(dim: int, dtype: torch.dtype) -> None:
    work = of("vmf", lambda found: pairwise_expected_likelihood(found, found[:5]))
    assert_same_on_device(work, numbers(dim), dtype, gradient=False)


@on_device
@every_family
def test_it_goes_there_and_back(family: str) -> None:
    here = made(family, numbers(8))
    back = here.to(DEVICE).to("cpu")
    assert here.to(DEVICE).device.type == torch.device(DEVICE).type
    for name, value in here.parameters.items():
        assert torch.equal(back.parameters[name], value)
