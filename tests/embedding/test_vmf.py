"""The vmf family: κ at its edges, files, and expected likelihoods against quadrature."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from doubtless.embedding import Embedding, VonMisesFisherEmbedding, read_embedding
from doubtless.embedding.vmf import pairwise_expected_likelihood
from doubtless.errors import InputError
from doubtless.sphere import VonMisesFisher


def some(items: int, dim: int, seed: int = 0) -> Embedding:
    generator = torch.Generator().manual_seed(seed)
    location = torch.randn(items, dim, generator=generator, dtype=torch.float64)
    return Embedding.vmf(location, 20 * torch.rand(items, generator=generator, dtype=torch.float64))


def test_the_length_of_the_location_says_nothing_of_the_distribution() -> None:
    one = some(5, 4)
    other = Embedding.vmf(3 * one.location, one.parameters["concentration"])
    torch.testing.assert_close(one.direction, other.direction)
    torch.testing.assert_close(
        one.pairwise_expected_squared_distance(one), other.pairwise_expected_squared_distance(other)
    )
    torch.testing.assert_close(other.location.norm(dim=1), 3 * one.location.norm(dim=1))  # kept all the same


def test_no_concentration_is_all_directions_alike() -> None:
    nothing = Embedding.vmf(torch.zeros(2, 3), torch.zeros(2))
    assert torch.equal(nothing.uncertainty, torch.full((2,), math.inf))
    assert torch.equal(nothing.resultant, torch.zeros(2))
    assert torch.equal(nothing.pairwise_expected_squared_distance(nothing), torch.full((2, 2), 2.0))
    draws = nothing.sample(40_000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(draws.norm(dim=-1), torch.ones(40_000, 2))
    assert float(draws.mean(0).abs().max()) < 4 / math.sqrt(3 * 40_000)


@pytest.mark.parametrize("dim", [2, 3, 512])
def test_uncertainty_and_resultant_of_many_concentrations(dim: int) -> None:
    kappa = torch.tensor([1e-6, 0.1, 3.0, 100.0, 1e6])
    embedding = Embedding.vmf(torch.eye(dim)[[0] * 5], kappa)
    torch.testing.assert_close(embedding.uncertainty, 1 / kappa)
    assert bool((embedding.resultant.diff() > 0).all())
    assert bool((embedding.resultant <= 1).all())
    torch.testing.assert_close(embedding.resultant[0], kappa[0] / dim, rtol=1e-4, atol=0)


def on_the_circle(embedding: Embedding, row: int, angles: Tensor) -> Tensor:
    """Density of one item at the points of these angles, D = 2."""
    points = torch.stack((angles.cos(), angles.sin()), 1)
    concentration = embedding.parameters["concentration"][row]
    return VonMisesFisher(embedding.direction[row], concentration).log_prob(points).exp()


def test_expected_likelihood_is_the_integral_of_the_product() -> None:
    queries, gallery = some(4, 2, seed=1), some(3, 2, seed=2)
    angles = torch.arange(4096, dtype=torch.float64) * (2 * math.pi / 4096)
    found = pairwise_expected_likelihood(queries, gallery)
    for i in range(4):
        for j in range(3):
            product = on_the_circle(queries, i, angles) * on_the_circle(gallery, j, angles)
            expected = math.log(float(product.sum()) * 2 * math.pi / 4096)
            assert float(found[i, j]) == pytest.approx(expected, abs=1e-9)


def test_expected_likelihood_agrees_with_samples_and_is_symmetric() -> None:
    one, other = some(3, 6, seed=3), some(2, 6, seed=4)
    found = pairwise_expected_likelihood(one, other)
    torch.testing.assert_close(found, pairwise_expected_likelihood(other, one).T)
    draws = one.sample(200_000, generator=torch.Generator().manual_seed(5))  # (s, 3, 6)
    for j in range(2):
        density = VonMisesFisher(other.direction[j], other.parameters["concentration"][j])
        likelihood = density.log_prob(draws).exp()  # (s, 3)
        error = 4 * likelihood.std(0) / math.sqrt(len(draws))
        assert bool(((found[:, j].exp() - likelihood.mean(0)).abs() < error).all())


def test_expected_likelihood_in_blocks_is_that_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = some(7, 5, seed=5), some(4, 5, seed=6)
    whole = pairwise_expected_likelihood(one, other)
    monkeypatch.setattr("doubtless.embedding.vmf.ROWS", 9)
    torch.testing.assert_close(pairwise_expected_likelihood(one, other), whole)
    assert pairwise_expected_likelihood(one[:0], other).shape == (0, 4)


def test_a_doubtful_item_is_like_all_others_alike() -> None:
    gallery = some(6, 8, seed=7)
    vague = Embedding.vmf(gallery.direction[:1], torch.zeros(1).double())
    scores = pairwise_expected_likelihood(vague, gallery)
    torch.testing.assert_close(scores, scores[:, :1].expand(1, 6))


def test_npz_with_concentrations_is_vmf(tmp_path) -> None:
    np.savez(tmp_path / "v.npz", location=np.eye(3), concentration=[1.0, 2.0, 3.0])
    stored = read_embedding(tmp_path / "v.npz").embedding
    assert isinstance(stored, VonMisesFisherEmbedding)
    torch.testing.assert_close(stored.concentration, torch.tensor([1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Embedding.vmf(torch.eye(3), torch.ones(3, 1)), r"concentration must have shape \(3,\)"),
        (lambda: Embedding.vmf(torch.eye(3), -torch.ones(3)), "not be negative, got -1"),
        (lambda: Embedding.vmf(torch.zeros(2, 3), torch.ones(2)), "length 0 has no direction"),
        (lambda: Embedding.vmf(torch.ones(2, 1), torch.ones(2)), "at least 2 dimensions"),
        (lambda: Embedding.vmf(torch.eye(3), torch.full((3,), math.nan)), "NaN"),
        (lambda: some(2, 3).sample(2, raw=True), "unit samples only"),
        (
            lambda: pairwise_expected_likelihood(some(2, 3), Embedding.point(torch.eye(3))),
            "gallery are point",
        ),
        (lambda: pairwise_expected_likelihood(some(2, 3), some(2, 4)), "equal dimensions"),
    ],
)
def test_bad_input_is_a_sentence(build, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build()
