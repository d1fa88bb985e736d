"""The graphs of every family's answers against the embeddings themselves; the number of nodes against its bound."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.export.answers import InverseConcentration, family_answers, nodes_needed
from doubtless.sphere.bessel import inverse_concentration
from doubtless.sphere.projected_gaussian import LAST_NODE, mean_direction


def gaussians(dim: int, spread: float, seed: int) -> tuple[Tensor, Tensor]:
    """Locations from nothing to all of E‖z‖², variances up to `spread` apart: a few large ones, or a few small."""
    generator = torch.Generator().manual_seed(seed)
    location = torch.randn(60, dim, generator=generator, dtype=torch.float64)
    location = location * 10 ** torch.empty(60, 1, dtype=torch.float64).uniform_(-6, 6, generator=generator)
    exponent = torch.rand(60, dim, generator=generator, dtype=torch.float64)
    exponent[:20] = (exponent[:20] > 0.9).double()
    exponent[20:40] = (exponent[20:40] < 0.9).double()
    return location, spread**exponent


@pytest.mark.parametrize("dim", [2, 3, 8, 128, 512])
@pytest.mark.parametrize("spread", [1.0, 30.0, 1e4, 1e8])
def test_so_many_nodes_are_enough_for_every_gaussian(dim: int, spread: float) -> None:
    location, variance = gaussians(dim, spread, seed=dim)
    answers = family_answers("projected-gaussian", dim, spread=spread)
    found = answers({"location": location, "variance": variance})
    exact = mean_direction(location, variance)  # goes on until the last node adds nothing
    direction = exact.mean / exact.resultant.unsqueeze(1)
    torch.testing.assert_close(found["direction"], direction, atol=1e-10, rtol=0)
    torch.testing.assert_close(found["resultant"], exact.resultant, rtol=1e-10, atol=0)
    torch.testing.assert_close(found["uncertainty"], exact.inverse_concentration, rtol=2e-5, atol=0)


def test_fewer_nodes_would_not_be() -> None:
    """The bound is no idle one: half the nodes it asks for lose digits on what it was made for."""
    from doubtless.export.answers import ProjectedGaussianAnswers

    location, variance = gaussians(3, 1e8, seed=3)
    exact = mean_direction(location, variance)
    few = ProjectedGaussianAnswers(3, nodes_needed(3, 1e8) // 2)({"location": location, "variance": variance})
    assert float((few["resultant"] / exact.resultant - 1).abs().max()) > 1e-6


@given(st.integers(2, 600), st.floats(0, 10))
@settings(max_examples=40, deadline=None)
def test_a_wider_spread_never_needs_fewer_nodes(dim: int, exponent: float) -> None:
    assert 0 < nodes_needed(dim, 10**exponent) <= nodes_needed(dim, 10 ** (exponent + 1)) <= LAST_NODE


@pytest.mark.parametrize("dim", [2, 3, 17, 512])
def test_inverse_concentration_is_that_of_the_sphere(dim: int) -> None:
    complement = torch.logspace(-14, -0.001, 200, dtype=torch.float64)
    resultant = 1 - complement
    expected = inverse_concentration(dim, resultant, complement)
    torch.testing.assert_close(InverseConcentration(dim)(resultant, complement), expected, rtol=1e-11, atol=0)
    assert InverseConcentration(dim)(torch.zeros(1).double(), torch.ones(1).double()).isinf().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "family", ["point", "gaussian", "isotropic", "vmf", "projected-gaussian", "empirical"]
)
def test_answers_are_those_of_the_embedding(family: str, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    location = torch.randn(7, 5, generator=generator, dtype=dtype)
    variance = torch.rand(7, 5, generator=generator, dtype=dtype)
    embedding = {
        "point": lambda: Embedding.point(location),
        "gaussian": lambda: Embedding.gaussian(location, variance),
        "isotropic": lambda: Embedding.gaussian(location, variance[:, :1]),
        "vmf": lambda: Embedding.vmf(location, 100 * variance[:, 0]),
        "projected-gaussian": lambda: Embedding.projected_gaussian(location, variance),
        "empirical": lambda: Embedding.empirical(
            location + torch.randn(9, 7, 5, generator=generator, dtype=dtype)
        ),
    }[family]()
    found = family_answers(embedding.family, 5, spread=1e4)(embedding.parameters)
    close = {"rtol": 2e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(found["direction"], embedding.direction, **close)
    torch.testing.assert_close(found["location"], embedding.location, **close)
    if embedding.uncertainty is None:
        assert "uncertainty" not in found
    else:
        torch.testing.assert_close(found["uncertainty"], embedding.uncertainty, **close)
    if "resultant" in found:
        torch.testing.assert_close(found["resultant"], embedding.resultant, **close)


def test_certain_and_uncertain_ends() -> None:
    """No variance: uncertainty 0. No location: all directions alike, as the embedding says it."""
    location = torch.tensor([[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]])
    variance = torch.tensor([[0.0, 0.0], [1.0, 1.0], [1e-12, 1e-12]])
    found = family_answers("projected-gaussian", 2)({"location": location, "variance": variance})
    embedding = Embedding.projected_gaussian(location, variance)
    torch.testing.assert_close(found["direction"], embedding.direction)
    torch.testing.assert_close(found["uncertainty"], embedding.uncertainty)
    assert found["uncertainty"][0] == 0
    assert found["uncertainty"][1] == torch.inf


def test_one_dimension_is_refused_in_a_sentence() -> None:
    with pytest.raises(InputError, match=r"one dimension cannot be exported; train with model.dim from 2 on"):
        family_answers("vmf", 1)
