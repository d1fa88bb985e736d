"""`Embedding.scaled`: another variance around the same locations, for every family."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.embedding import FAMILIES, Embedding
from doubtless.errors import InputError


def make(family: str, *, dtype: torch.dtype = torch.float64) -> Embedding:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    location = 3 * normalize(normal(4, 6), dim=1)
    if family == "point":
        return Embedding.point(location)
    if family == "vmf":
        return Embedding.vmf(location, 20 * normal(4).exp())
    if family == "empirical":
        return Embedding.empirical(location + 0.5 * normal(9, 4, 6))
    return FAMILIES[family]({"location": location, "variance": normal(4, 6).exp() / 10})


every_family = pytest.mark.parametrize("family", sorted(FAMILIES))
every_spread = pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"point"}))


@every_family
def test_one_is_the_same(family: str) -> None:
    embedding = make(family)
    assert embedding.scaled(1.0) is embedding


@every_family
def test_a_tiny_scale_is_a_point(family: str) -> None:
    embedding = make(family)
    tiny = embedding.scaled(1e-14)
    middle = normalize(embedding.location, dim=1)
    draws = tiny.sample(50, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(draws, middle.expand_as(draws), atol=1e-5, rtol=0)
    torch.testing.assert_close(tiny.resultant, torch.ones_like(tiny.resultant), atol=1e-9, rtol=0)
    torch.testing.assert_close(normalize(tiny.location, dim=1), middle)


@every_spread
def test_more_variance_is_less_sure_and_samples_agree(family: str) -> None:
    embedding = make(family)
    before = None
    for scale in (0.1, 0.5, 1.0, 3.0, 10.0):
        scaled = embedding.scaled(scale)
        draws = scaled.sample(40_000, generator=torch.Generator().manual_seed(2))
        torch.testing.assert_close(draws.norm(dim=-1), torch.ones(draws.shape[:2], dtype=draws.dtype))
        torch.testing.assert_close(
            scaled.resultant, draws.mean(0).norm(dim=-1), atol=4 / math.sqrt(len(draws)), rtol=0
        )
        doubt = scaled.uncertainty
        assert doubt is not None
        assert before is None or bool((doubt > before).all())
        before = doubt


@pytest.mark.parametrize("family", ["gaussian", "projected-gaussian"])
def test_the_variance_of_gaussian_draws(family: str) -> None:
    embedding = make(family)
    draws = embedding.scaled(2.5).sample(100_000, generator=torch.Generator().manual_seed(3), raw=True)
    torch.testing.assert_close(draws.var(0), 2.5 * embedding.parameters["variance"], rtol=0.03, atol=0)
    torch.testing.assert_close(draws.mean(0), embedding.location, atol=0.02, rtol=0)


def test_concentration_is_divided() -> None:
    embedding = make("vmf")
    kappa = embedding.parameters["concentration"]
    torch.testing.assert_close(embedding.scaled(4.0).parameters["concentration"], kappa / 4)


def test_deviations_of_samples_grow_by_the_root() -> None:
    embedding = make("empirical")
    samples = embedding.parameters["samples"]
    mean = samples.mean(0)
    expected = normalize(mean + 2 * (samples - mean), dim=-1)
    torch.testing.assert_close(embedding.scaled(4.0).parameters["samples"], expected)


@every_family
def test_many_scales_are_drawn_by_the_same_luck(family: str) -> None:
    """Each is what `scaled` draws from a generator of that state."""
    embedding, scales = make(family), [0.01, 1.0, 7.0]
    generator = torch.Generator().manual_seed(4)
    for scale, draws in zip(scales, embedding.sample_scaled(5, scales, generator=generator), strict=True):
        alone = embedding.scaled(scale).sample(5, generator=torch.Generator().manual_seed(4))
        torch.testing.assert_close(draws, alone)


@every_spread
def test_chunks_are_not_drawn_by_the_same_luck(family: str) -> None:
    embedding, generator = make(family), torch.Generator().manual_seed(4)
    first, second = (next(embedding.sample_scaled(5, [2.0], generator=generator)) for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.inf, math.nan])
def test_a_scale_is_above_zero(scale: float) -> None:
    with pytest.raises(InputError, match="number above 0"):
        make("gaussian").scaled(scale)


@every_spread
def test_float32_stays_finite(family: str) -> None:
    embedding = make(family, dtype=torch.float32)
    for scale in (1e-9, 1e9, 1e38):
        draws = embedding.scaled(scale).sample(3, generator=torch.Generator().manual_seed(0))
        assert draws.dtype == torch.float32
        assert bool(torch.isfinite(draws).all())
