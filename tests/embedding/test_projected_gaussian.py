"""The family of LAM's predictive: closed form, exact samples and the laws all families keep."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

import doubtless.embedding.projected_gaussian as family
import doubtless.sphere.projected_gaussian as quadrature
from doubtless.embedding import FAMILIES, Embedding
from doubtless.embedding.projected_gaussian import ProjectedGaussianEmbedding
from doubtless.errors import InputError
from doubtless.sphere import inverse_mean_resultant_length, mean_resultant_length
from tests.reference.launches import Launches


def build(location: Tensor, variance: Tensor) -> ProjectedGaussianEmbedding:
    return ProjectedGaussianEmbedding({"location": location, "variance": variance})


def some(n: int, dim: int, dtype: torch.dtype = torch.float64) -> ProjectedGaussianEmbedding:
    generator = torch.Generator().manual_seed(dim)
    location = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    variance = torch.exp(torch.randn(n, dim, generator=generator, dtype=torch.float64))
    return build(location.to(dtype), variance.to(dtype))


def test_it_is_registered() -> None:
    assert FAMILIES["projected-gaussian"] is ProjectedGaussianEmbedding


@pytest.mark.parametrize("dim", [3, 16, 128, 512, 2048])
def test_closed_form_agrees_with_samples(dim: int) -> None:
    embedding = some(3, dim)
    draws = {3: 40_000, 16: 40_000, 128: 10_000}.get(dim, 2000)
    samples = embedding.sample(draws, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(samples.norm(dim=-1), torch.ones(draws, 3, dtype=torch.float64))
    error = (samples.mean(0) - embedding.mean_unit_vector).square().sum(-1)
    # (1 − R²)/draws on average; nine times that is three standard deviations if one direction has it all.
    assert bool((error < 9 * (1 - embedding.resultant.square()) / draws).all())
    empirical = Embedding.empirical(samples)
    torch.testing.assert_close(empirical.uncertainty, embedding.uncertainty, rtol=0.06, atol=0)
    cosine = (empirical.direction * embedding.direction).sum(-1)
    assert bool((cosine > 1 - 10 * (1 / embedding.resultant.square() - 1) / draws).all())
    distance = embedding.expected_squared_distance(embedding)  # two independent draws of the same item
    other = embedding.sample(draws, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close((samples - other).square().sum(-1).mean(0), distance, rtol=0.03, atol=0)


@pytest.mark.parametrize("dim", [2, 3, 16, 2048])
def test_concentration_inverts_the_mean_resultant_length(dim: int) -> None:
    embedding = some(5, dim)
    torch.testing.assert_close(
        mean_resultant_length(dim, embedding.concentration), embedding.resultant, rtol=1e-9, atol=0
    )
    torch.testing.assert_close(embedding.uncertainty * embedding.concentration, torch.ones(5).double())


@pytest.mark.parametrize("dim", [2, 3, 16, 2048])
def test_very_certain_embeddings_still_differ_in_float32(dim: int) -> None:
    location = torch.randn(1, dim, generator=torch.Generator().manual_seed(0)).expand(60, -1)
    variance = torch.logspace(-30, -2, 60).unsqueeze(1)
    embedding = build(location, variance)
    assert embedding.uncertainty.dtype == torch.float32
    assert bool((embedding.uncertainty[1:] > embedding.uncertainty[:-1]).all())
    assert bool(torch.isfinite(embedding.uncertainty).all())
    # A narrow Gaussian of standard deviation σ seen from ‖m‖ has κ = ‖m‖²/σ².
    expected = variance[:40, 0] / location[:40].square().sum(1)
    torch.testing.assert_close(embedding.uncertainty[:40], expected, rtol=1e-4, atol=0)


def test_no_seam_where_the_formula_of_the_concentration_changes() -> None:
    """Just around 1 − R = 1e-6 both formulas are good to nine digits."""
    for dim in (2, 3, 64):
        location = torch.ones(50, dim, dtype=torch.float64) / math.sqrt(dim)
        variance = torch.linspace(1.5e-6, 2.5e-6, 50, dtype=torch.float64).unsqueeze(1) / (dim - 1)
        embedding = build(location, variance)
        exact = inverse_mean_resultant_length(dim, embedding.resultant).reciprocal()
        torch.testing.assert_close(embedding.uncertainty, exact, rtol=1e-8, atol=0)
        assert bool((embedding.uncertainty[1:] > embedding.uncertainty[:-1]).all())


@pytest.mark.parametrize("dim", [1, 2, 3, 30])
def test_no_doubt_and_nothing_but_doubt(dim: int) -> None:
    sure = build(torch.full((2, dim), 2.0), torch.zeros(2, 1))
    assert torch.equal(sure.uncertainty, torch.zeros(2))
    assert torch.equal(sure.resultant, torch.ones(2))
    assert bool(torch.isinf(sure.concentration).all())
    torch.testing.assert_close(sure.direction, torch.full((2, dim), 1 / math.sqrt(dim)))
    lost = build(torch.zeros(2, dim), torch.ones(2, dim))
    assert bool(torch.isinf(lost.uncertainty).all())
    assert torch.equal(lost.resultant, torch.zeros(2))
    assert torch.equal(lost.direction, torch.zeros(2, dim))


def test_directions_are_unit_also_where_the_mean_is_almost_zero() -> None:
    faint = build(torch.full((1, 4), 1e-20), torch.ones(1, 4))
    torch.testing.assert_close(faint.direction.norm(dim=1), torch.ones(1))
    assert 1e17 < float(faint.uncertainty) < math.inf


def test_direction_turns_towards_the_certain_coordinates() -> None:
    embedding = build(torch.ones(1, 2), torch.tensor([[0.01, 10.0]]))
    assert embedding.direction[0, 0] > 2 * embedding.direction[0, 1]


def test_one_dimension_is_a_coin() -> None:
    embedding = build(torch.tensor([[0.5]]).double(), torch.tensor([[1.0]]).double())
    expected = math.erf(0.5 / math.sqrt(2))
    assert float(embedding.resultant) == pytest.approx(expected)
    assert math.tanh(float(embedding.concentration)) == pytest.approx(expected)


def test_batches_indexing_and_files(tmp_path: Path) -> None:
    embedding = some(6, 5, torch.float32)
    again = Embedding.cat([embedding[:2], embedding[2:]])
    assert torch.equal(again.uncertainty, embedding.uncertainty)
    assert torch.equal(embedding[4].direction, embedding.direction[4:5])
    embedding.save(tmp_path / "e.safetensors")
    loaded = Embedding.load(tmp_path / "e.safetensors")
    assert loaded.family == "projected-gaussian"
    assert torch.equal(loaded.uncertainty, embedding.uncertainty)


def test_one_variance_an_item_is_that_variance_in_every_dimension() -> None:
    location, variance = torch.randn(4, 7, generator=torch.Generator().manual_seed(0)), torch.rand(4, 1)
    narrow, wide = build(location, variance), build(location, variance.expand(4, 7).clone())
    assert torch.equal(narrow.uncertainty, wide.uncertainty)
    torch.testing.assert_close(narrow.total_deviation, 7 * variance.sqrt().squeeze(1))


def test_samples_can_be_raw() -> None:
    embedding = some(2, 3)
    raw = embedding.sample(20_000, generator=torch.Generator().manual_seed(0), raw=True)
    torch.testing.assert_close(raw.mean(0), embedding.location, rtol=0, atol=0.1)
    torch.testing.assert_close(raw.var(0), embedding.variance, rtol=0.1, atol=0)


def test_wrong_parameters_get_a_sentence() -> None:
    with pytest.raises(InputError, match="must not be negative"):
        build(torch.ones(2, 3), -torch.ones(2, 3))
    with pytest.raises(InputError, match=r"\(2, 1\) or \(2, 3\)"):
        build(torch.ones(2, 3), torch.ones(3, 3))
    with pytest.raises(InputError, match="NaN"):
        build(torch.full((1, 2), torch.nan), torch.ones(1, 2))


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large chunks, and values that are looked at with the first answer."""
    monkeypatch.setattr(family, "CHECKED_LATER", frozenset({"cpu"}))
    monkeypatch.setitem(quadrature.CHUNK, "cpu", quadrature.CHUNK["cuda"])


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(("n", "dim"), [(64, 512), (64, 2048), (64, 3)])
def test_an_answer_is_few_launches_and_one_wait(n: int, dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU each launch costs microseconds, and a wait in the middle leaves it idle until the next one comes."""
    given = some(n, dim, torch.float32)
    assert given.uncertainty.isfinite().all()  # tables are computed once
    location, variance = given.location, given.variance.pow(0.3)
    waits: list[Tensor] = []
    numbers = Tensor.tolist
    monkeypatch.setattr(Tensor, "tolist", lambda tensor: [waits.append(tensor), numbers(tensor)][1])
    with torch.no_grad(), Launches() as launches:
        embedding = build(location, variance)
        assert not launches.names  # nothing is looked at before it is asked for
        _ = embedding.direction, embedding.uncertainty, embedding.resultant
    assert len(launches.names) <= 60
    assert not {"_local_scalar_dense", "is_nonzero"} & set(launches.names)
    assert len(waits) == 1


@pytest.mark.usefixtures("as_on_a_gpu")
def test_what_is_looked_at_later_is_refused_all_the_same() -> None:
    good, bad = build(torch.ones(2, 3), torch.ones(2, 1)), build(torch.ones(2, 3), -torch.ones(2, 1))
    for ask in ("direction", "uncertainty", "resultant", "concentration", "total_deviation"):
        with pytest.raises(InputError, match="must not be negative, got -1"):
            getattr(build(torch.ones(2, 3), -torch.ones(2, 3)), ask)
        with pytest.raises(InputError, match="location has NaN"):
            getattr(build(torch.full((1, 2), torch.nan), torch.ones(1, 2)), ask)
        with pytest.raises(InputError, match="variance has NaN or infinite"):
            getattr(build(torch.ones(1, 2), torch.full((1, 1), torch.inf)), ask)
    with pytest.raises(InputError, match="must not be negative"):
        bad.sample(2)
    with pytest.raises(InputError, match="must not be negative"):
        _ = Embedding.cat([good, bad]).uncertainty
    with pytest.raises(InputError, match=r"\(2, 1\) or \(2, 3\)"):
        build(torch.ones(2, 3), torch.ones(3, 3))
    with pytest.raises(InputError, match="floating-point"):
        build(torch.ones(2, 3).long(), torch.ones(2, 3))
    assert good[:0].uncertainty.shape == (0,)
    assert good.sample(4).shape == (4, 2, 3)


def test_looking_later_changes_no_answer(request: pytest.FixtureRequest) -> None:
    before = some(9, 12, torch.float32)
    request.getfixturevalue("as_on_a_gpu")
    after = some(9, 12, torch.float32)
    assert torch.equal(before.uncertainty, after.uncertainty)
    assert torch.equal(before.direction, after.direction)
