"""Every family against samples of itself, and the interface they share."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.embedding import FAMILIES, Embedding
from doubtless.errors import InputError

DRAWS = 100_000


def make(
    family: str, items: int = 4, dim: int = 6, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Embedding:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    if family == "point":
        return Embedding.point(normal(items, dim))
    if family == "gaussian":
        return Embedding.gaussian(normal(items, dim), normal(items, dim).exp() / 4)
    if family == "empirical":
        return Embedding.empirical(normal(items, dim) + 0.5 * normal(9, items, dim))
    if family == "vmf":
        return Embedding.vmf(normal(items, dim), 4 * normal(items).exp())
    raise NotImplementedError(family)


FAMILY_NAMES = ["point", "gaussian", "empirical", "vmf"]
every_family = pytest.mark.parametrize("family", FAMILY_NAMES)


@every_family
def test_resultant_is_the_length_of_the_mean_unit_sample(family: str) -> None:
    embedding = make(family)
    draws = embedding.sample(DRAWS, generator=torch.Generator().manual_seed(1))  # (s, n, D)
    # The mean of s unit vectors is off by at most about 1/√s in length.
    torch.testing.assert_close(
        embedding.resultant, draws.mean(0).norm(dim=-1), atol=4 / math.sqrt(DRAWS), rtol=0
    )


@every_family
def test_samples_are_unit_vectors(family: str) -> None:
    norms = make(family).sample(7, generator=torch.Generator().manual_seed(0)).norm(dim=-1)
    torch.testing.assert_close(norms, torch.ones_like(norms))


@every_family
def test_expected_squared_distance_agrees_with_samples(family: str) -> None:
    left, right = make(family, seed=0), make(family, seed=1)
    raw = not left.is_unit
    a = left.sample(DRAWS, generator=torch.Generator().manual_seed(2), raw=raw)
    b = right.sample(DRAWS, generator=torch.Generator().manual_seed(3), raw=raw)
    squared = (a - b).square().sum(-1)  # (s, n)
    if family == "empirical":  # few stored points: pair every one with every other instead
        squared = (left.samples[:, None] - right.samples[None]).square().sum(-1).flatten(0, 1)  # type: ignore[attr-defined]
    error = 4 * squared.std(0) / math.sqrt(len(squared)) + 1e-9
    assert ((left.expected_squared_distance(right) - squared.mean(0)).abs() <= error).all()


@every_family
def test_pairwise_diagonal_is_row_by_row(family: str) -> None:
    left, right = make(family, seed=0), make(family, seed=1)
    pairs = left.pairwise_expected_squared_distance(right)
    torch.testing.assert_close(pairs.diagonal(), left.expected_squared_distance(right))
    assert pairs.shape == (len(left), len(right))


@every_family
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_precision_is_kept(family: str, dtype: torch.dtype) -> None:
    embedding = make(family, dtype=dtype)
    answers = [embedding.direction, embedding.resultant, embedding.sample(3)]
    if embedding.uncertainty is not None:
        answers.append(embedding.uncertainty)
    assert {answer.dtype for answer in answers} == {dtype}
    other = make(family, dtype=torch.float64)
    torch.testing.assert_close(embedding.resultant.double(), other.resultant, atol=1e-5, rtol=0)


@every_family
def test_indexing_and_cat_undo_each_other(family: str) -> None:
    embedding = make(family, items=5)
    whole = Embedding.cat([embedding[:2], embedding[2], embedding[torch.tensor([False] * 3 + [True] * 2)]])
    assert len(embedding[2]) == 1
    for name, value in embedding.parameters.items():
        assert torch.equal(whole.parameters[name], value)


@every_family
def test_empty_batch(family: str) -> None:
    nothing = make(family)[:0]
    assert len(nothing) == 0
    assert nothing.direction.shape == (0, 6)
    assert nothing.pairwise_expected_squared_distance(make(family)).shape == (0, 4)


@every_family
def test_file_roundtrip(family: str, tmp_path) -> None:
    from doubtless.embedding import read_embedding

    embedding = make(family)
    path = tmp_path / "e.safetensors"
    embedding.save(path, ids=["a", "b", "ü", "d/e.jpg"], labels=torch.tensor([0, 0, 1, 2]))
    stored = read_embedding(path)
    assert stored.embedding.family == family
    assert stored.ids == ["a", "b", "ü", "d/e.jpg"]
    assert stored.labels is not None
    assert stored.labels.tolist() == [0, 0, 1, 2]
    for name, value in embedding.parameters.items():
        assert torch.equal(stored.embedding.parameters[name], value)


def test_immutable() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        make("point").anything = 1  # type: ignore[attr-defined]


def test_zero_location_has_zero_direction() -> None:
    assert Embedding.point(torch.zeros(2, 3)).direction.abs().sum() == 0


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Embedding.point(torch.tensor([[float("nan")]])), "NaN"),
        (lambda: Embedding.point(torch.tensor([1.0, 2.0])), r"shape \(n, D\)"),
        (lambda: Embedding.point(torch.tensor([[1, 2]])), "floating-point"),
        (lambda: Embedding.gaussian(torch.ones(2, 3), torch.ones(2, 2)), r"\(2, 1\) or \(2, 3\)"),
        (lambda: Embedding.gaussian(torch.ones(2, 3), -torch.ones(2, 1)), "negative"),
        (lambda: Embedding.empirical(torch.ones(1, 2, 3)), "at least 2 samples"),
        (lambda: make("point").expected_squared_distance(make("gaussian")), "different spaces"),
        (lambda: make("point").expected_squared_distance(make("point", dim=5)), "equal dimensions"),
        (lambda: make("point").expected_squared_distance(make("point", items=2)), "equal lengths"),
        (lambda: Embedding.cat([make("point"), make("gaussian")]), "one family"),
        (lambda: Embedding.cat([]), "at least one"),
        (lambda: make("empirical").sample(3, raw=True), "unit samples only"),
    ],
)
def test_bad_input_is_a_sentence(build, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        build()


@settings(max_examples=25, deadline=None)
@given(scale=st.floats(1e-3, 1e3), seed=st.integers(0, 100))
def test_scalar_variance_is_the_same_in_every_dimension(scale: float, seed: int) -> None:
    location = torch.randn(3, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    variance = torch.full((3, 1), scale, dtype=torch.float64)
    short, long = Embedding.gaussian(location, variance), Embedding.gaussian(location, variance.expand(3, 5))
    torch.testing.assert_close(short.uncertainty, long.uncertainty)
    torch.testing.assert_close(short.resultant, long.resultant)
    torch.testing.assert_close(short.expected_squared_distance(long), torch.full((3,), 10 * scale).double())


def test_empirical_uncertainty_does_not_depend_on_the_number_of_samples() -> None:
    """‖mean of s unit vectors‖ grows as s falls; the correction takes that out."""
    from doubtless.sphere import mean_resultant_length

    generator = torch.Generator().manual_seed(0)
    center = torch.zeros(2000, 8, dtype=torch.float64)
    center[:, 0] = 2.0
    draws = normalize(center + torch.randn(50, 2000, 8, generator=generator, dtype=torch.float64), dim=-1)
    resultant = draws.mean((0, 1)).norm()
    concentration = {s: 1 / Embedding.empirical(draws[:s]).uncertainty.median() for s in (10, 50)}
    for value in concentration.values():
        expected = mean_resultant_length(8, value.reshape(1))[0]
        torch.testing.assert_close(expected, resultant, atol=0.02, rtol=0)


def test_empirical_sample_uses_every_stored_one_equally() -> None:
    embedding = make("empirical", items=1)
    draws = embedding.sample(27, generator=torch.Generator().manual_seed(0))
    stored = embedding.parameters["samples"]
    counts = [(draws == stored[i]).all(-1).sum().item() for i in range(9)]
    assert counts == [3] * 9


def test_every_registered_family_is_tested() -> None:
    elsewhere = {"projected-gaussian"}  # tests of its own beside this file
    assert set(FAMILIES) <= set(FAMILY_NAMES) | elsewhere
