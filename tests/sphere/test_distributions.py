"""The distributions against integrals over the sphere, against each other, and against samples."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import kl_divergence

from doubtless.errors import InputError
from doubtless.sphere import (
    HypersphericalUniform,
    NonIsotropicVonMisesFisher,
    VonMisesFisher,
    log_normalizer,
    mean_resultant_length,
)
from tests.reference.sphere_grid import sphere_grid, unit

POINTS, WEIGHTS = sphere_grid()
CONCENTRATIONS = [0.0, 0.3, 4.0, 60.0]
SCALES = [[3.0, 3.0, 3.0], [1.0, 2.0, 5.0], [0.6, 4.0, 1.5]]
DIRECTION = unit(1.0, -2.0, 0.5)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def integral(values: Tensor) -> Tensor:
    """Over the sphere of R³ of values (n, ...)."""
    return torch.tensordot(WEIGHTS, values, dims=1)


def non_isotropic(scale: list[float]) -> NonIsotropicVonMisesFisher:
    return NonIsotropicVonMisesFisher(DIRECTION, torch.tensor(scale, dtype=torch.float64))


@pytest.mark.parametrize("kappa", CONCENTRATIONS)
def test_von_mises_fisher_against_integrals(kappa: float) -> None:
    image = VonMisesFisher(DIRECTION, torch.tensor(kappa, dtype=torch.float64))
    log_density = image.log_prob(POINTS)
    density = log_density.exp()
    assert integral(density).item() == pytest.approx(1, abs=1e-11)
    mean = integral(density.unsqueeze(-1) * POINTS)
    torch.testing.assert_close(image.mean, mean, rtol=0, atol=1e-11)
    second = integral(density.unsqueeze(-1) * POINTS.square())
    torch.testing.assert_close(image.variance, second - mean.square(), rtol=0, atol=1e-11)
    torch.testing.assert_close(image.entropy(), -integral(density * log_density), rtol=0, atol=1e-10)
    assert torch.equal(image.mode, DIRECTION)


def test_float32_keeps_the_digits_that_float64_finds() -> None:
    kappa = torch.tensor([0.0, 1.0, 30.0, 400.0, 1e5])
    directions = HypersphericalUniform(512, (5,)).rsample(generator=seeded(20))
    single, double = VonMisesFisher(directions, kappa), VonMisesFisher(directions.double(), kappa.double())
    uniform = HypersphericalUniform(512, dtype=torch.float64)
    for name in ("mean", "variance"):
        torch.testing.assert_close(
            getattr(single, name).double(), getattr(double, name), rtol=1e-5, atol=1e-9
        )
    for ours, truth in (
        (single.entropy(), double.entropy()),
        (kl_divergence(single, uniform), kl_divergence(double, uniform)),
    ):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), truth, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("first", CONCENTRATIONS)
@pytest.mark.parametrize("second", CONCENTRATIONS)
def test_divergences_against_integrals(first: float, second: float) -> None:
    p = VonMisesFisher(DIRECTION, torch.tensor(first, dtype=torch.float64))
    q = VonMisesFisher(unit(1.0, 1.0, 1.0), torch.tensor(second, dtype=torch.float64))
    uniform = HypersphericalUniform(3, dtype=torch.float64)
    for other in (q, uniform):
        truth = integral(p.log_prob(POINTS).exp() * (p.log_prob(POINTS) - other.log_prob(POINTS)))
        torch.testing.assert_close(kl_divergence(p, other), truth, rtol=1e-10, atol=1e-10)


@settings(max_examples=50, deadline=None)
@given(
    dim=st.integers(2, 3000), first=st.floats(0, 2000), second=st.floats(0, 2000), seed=st.integers(0, 1000)
)
def test_divergence_is_never_negative_and_zero_for_equals(
    dim: int, first: float, second: float, seed: int
) -> None:
    directions = torch.randn(2, dim, dtype=torch.float64, generator=seeded(seed))
    directions = directions / directions.norm(dim=-1, keepdim=True)
    p = VonMisesFisher(directions[0], torch.tensor(first, dtype=torch.float64))
    q = VonMisesFisher(directions[1], torch.tensor(second, dtype=torch.float64))
    assert kl_divergence(p, q).item() > -1e-9
    assert kl_divergence(p, HypersphericalUniform(dim)).item() > -1e-9
    assert kl_divergence(p, p).item() == pytest.approx(0, abs=1e-9)


def test_uniform_is_the_distribution_of_concentration_zero() -> None:
    for dim in (2, 3, 512):
        uniform = HypersphericalUniform(dim, (4,), dtype=torch.float64)
        points = uniform.rsample((5,), generator=seeded(0))
        assert points.shape == (5, 4, dim)
        flat = VonMisesFisher(points[0, 0], torch.zeros((), dtype=torch.float64))
        torch.testing.assert_close(uniform.log_prob(points), flat.log_prob(points))
        torch.testing.assert_close(uniform.entropy(), flat.entropy().expand(4))
        torch.testing.assert_close(uniform.mean[0], flat.mean)
        torch.testing.assert_close(uniform.variance[0], flat.variance)
        assert uniform.expand((2, 4)).batch_shape == (2, 4)
    # the area of the sphere of R³ is 4π
    assert HypersphericalUniform(3).entropy().item() == pytest.approx(math.log(4 * math.pi), rel=1e-6)


@pytest.mark.parametrize("scale", SCALES)
def test_non_isotropic_density_integrates_to_one_in_three_dimensions(scale: list[float]) -> None:
    assert integral(non_isotropic(scale).log_prob(POINTS).exp()).item() == pytest.approx(1, abs=1e-9)


def importance_sample(dim: int, *, count: int = 200_000) -> tuple[NonIsotropicVonMisesFisher, Tensor, Tensor]:
    """A proxy, and points with weights 1/q from a mixture of a uniform and a von Mises-Fisher distribution."""
    direction = torch.ones(dim, dtype=torch.float64) / math.sqrt(dim)
    scale = torch.linspace(1.5, 3.5, dim, dtype=torch.float64)
    uniform = HypersphericalUniform(dim, dtype=torch.float64)
    peaked = VonMisesFisher(direction, torch.tensor(3.0, dtype=torch.float64))
    half = count // 2
    points = torch.cat([d.rsample((half,), generator=seeded(i)) for i, d in enumerate((uniform, peaked))])
    mixture = torch.stack([uniform.log_prob(points), peaked.log_prob(points)]).logsumexp(0) - math.log(2)
    return NonIsotropicVonMisesFisher(direction, scale), points, torch.exp(-mixture)


def test_non_isotropic_density_integrates_to_one_in_eight_dimensions() -> None:
    proxy, points, weights = importance_sample(8)
    values = proxy.log_prob(points).exp() * weights
    standard_error = values.std().item() / math.sqrt(len(values))
    assert standard_error < 0.01
    assert abs(values.mean().item() - 1) < 4 * standard_error


@pytest.mark.parametrize(("dim", "integral_of_published"), [(3, 9.0), (8, 2187.0)])
def test_the_published_normaliser_is_none(dim: int, integral_of_published: float) -> None:
    # C_D(‖Kμ‖) exp(Kz·Kμ/‖Kz‖) |K|/‖Kμ‖ at K = 3I is the vMF density times 3^(D−1)
    _, points, weights = importance_sample(dim)
    direction = torch.ones(dim, dtype=torch.float64) / math.sqrt(dim)
    scale = torch.full((dim,), 3.0, dtype=torch.float64)
    stretched, stretched_direction = scale * points, scale * direction
    exponent = (stretched @ stretched_direction) / stretched.norm(dim=-1)
    log_constant = log_normalizer(dim, stretched_direction.norm())
    published = torch.exp(log_constant + exponent) * scale.prod() / stretched_direction.norm()
    assert (published * weights).mean().item() == pytest.approx(integral_of_published, rel=0.02)
    ours = NonIsotropicVonMisesFisher(direction, scale).log_prob(points).exp()
    assert (ours * weights).mean().item() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("dim", [2, 3, 128, 512])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_equal_scales_are_the_isotropic_distribution(dim: int, dtype: torch.dtype) -> None:
    points = HypersphericalUniform(dim, (6,), dtype=dtype).rsample(generator=seeded(1))
    kappa = torch.tensor([0.5, 3.0, 10.0, 50.0, 200.0, 1000.0], dtype=dtype)
    isotropic = VonMisesFisher(points, kappa)
    proxy = NonIsotropicVonMisesFisher(points, kappa.unsqueeze(-1).expand(6, dim))
    bound = 1e-11 if dtype == torch.float64 else 1e-5
    value = points.roll(1, dims=0)
    torch.testing.assert_close(proxy.log_prob(value), isotropic.log_prob(value), rtol=bound, atol=bound)
    first = NonIsotropicVonMisesFisher(points[0], kappa[0].expand(dim))
    torch.testing.assert_close(first.entropy(), isotropic.entropy()[0], rtol=bound, atol=bound)


@pytest.mark.parametrize("scale", SCALES)
def test_non_isotropic_samples_mean_and_entropy_against_integrals(scale: list[float]) -> None:
    proxy = non_isotropic(scale)
    log_density = proxy.log_prob(POINTS)
    mean = integral(log_density.exp().unsqueeze(-1) * POINTS)
    second = integral(log_density.exp().unsqueeze(-1) * POINTS.square())
    samples = proxy.rsample((40_000,), generator=seeded(2))
    for values, truth in ((samples, mean), (samples.square(), second)):
        standard_error = values.std(0) / math.sqrt(len(values))
        assert ((values.mean(0) - truth).abs() < 4 * standard_error).all()
    assert ((proxy.mean - mean).abs() < 4 * samples.std(0) / math.sqrt(4096)).all()
    entropy_error = 3 * (proxy.scale * samples).norm(dim=-1).log().std().item() / math.sqrt(4096)
    entropy = -integral(log_density.exp() * log_density).item()
    assert proxy.entropy().item() == pytest.approx(entropy, abs=4 * entropy_error + 1e-9)
    assert torch.equal(proxy.mean, proxy.mean)


def test_gradients_of_non_isotropic_samples_follow_the_exact_mean() -> None:
    scale = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    rows = scale.expand(60_000, 3).clone().requires_grad_()
    samples = NonIsotropicVonMisesFisher(DIRECTION, rows).rsample(generator=seeded(3))
    slope = torch.tensor([0.3, -1.0, 0.7], dtype=torch.float64)
    gradients = torch.autograd.grad((samples @ slope).sum(), rows)[0]
    for coordinate in range(3):
        sides = []
        for sign in (1, -1):
            moved = scale.clone()
            moved[coordinate] += sign * 1e-4
            density = NonIsotropicVonMisesFisher(DIRECTION, moved).log_prob(POINTS).exp()
            sides.append(integral(density * (POINTS @ slope)).item())
        truth = (sides[0] - sides[1]) / 2e-4
        values = gradients[:, coordinate]
        assert abs(values.mean().item() - truth) < 4 * values.std().item() / math.sqrt(len(values))


@pytest.mark.parametrize("dim", [2, 5, 80])
def test_log_densities_pass_gradcheck(dim: int) -> None:
    points = HypersphericalUniform(dim, (3,), dtype=torch.float64).rsample((2,), generator=seeded(4))
    kappa = torch.tensor([0.0, 2.0, 30.0], dtype=torch.float64, requires_grad=True)
    scale = torch.rand(3, dim, dtype=torch.float64, generator=seeded(5)).add(0.5).requires_grad_()
    direction, value = points[0].clone().requires_grad_(), points[1]

    def isotropic(direction: Tensor, kappa: Tensor) -> Tensor:
        image = VonMisesFisher(direction, kappa, validate_args=False)
        return image.log_prob(value) + image.entropy()

    def stretched(direction: Tensor, scale: Tensor) -> Tensor:
        return NonIsotropicVonMisesFisher(direction, scale, validate_args=False).log_prob(value)

    assert torch.autograd.gradcheck(isotropic, (direction, kappa))
    assert torch.autograd.gradcheck(stretched, (direction, scale))


@pytest.mark.parametrize(("dim", "kappa"), [(3, 5.0), (64, 30.0), (512, 300.0)])
def test_fit_finds_direction_and_concentration(dim: int, kappa: float) -> None:
    directions = HypersphericalUniform(dim, (2,), dtype=torch.float64).rsample(generator=seeded(6))
    truth = VonMisesFisher(directions, torch.tensor([kappa, 2 * kappa], dtype=torch.float64))
    fitted = VonMisesFisher.fit(truth.rsample((5000,), generator=seeded(7)))
    torch.testing.assert_close(fitted.concentration, truth.concentration, rtol=0.05, atol=0)
    assert ((fitted.direction * directions).sum(-1) > 0.98).all()


def test_uncorrected_fit_is_maximum_likelihood_and_corrected_fit_less_biased() -> None:
    truth = VonMisesFisher(unit(*([1.0] * 128)), torch.tensor(20.0, dtype=torch.float64))
    samples = truth.rsample((5,), generator=seeded(8))
    likely = VonMisesFisher.fit(samples, corrected=False)
    best = likely.log_prob(samples).sum()
    for factor in (0.99, 1.01):
        assert VonMisesFisher(likely.direction, factor * likely.concentration).log_prob(samples).sum() < best
    corrected = VonMisesFisher.fit(truth.rsample((5, 500), generator=seeded(9))).concentration.mean()
    assert likely.concentration > 50
    assert 10 < corrected < 30


def test_fit_at_its_edges() -> None:
    opposite = torch.tensor([[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]])
    assert VonMisesFisher.fit(opposite).concentration.item() == 0
    with pytest.raises(InputError, match="infinite"):
        VonMisesFisher.fit(torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    with pytest.raises(InputError, match="at least 2 samples"):
        VonMisesFisher.fit(torch.tensor([[1.0, 0.0]]))
    with pytest.raises(InputError, match="more samples than dimensions"):
        NonIsotropicVonMisesFisher.fit(opposite)


def test_non_isotropic_fit_finds_the_scales() -> None:
    truth = NonIsotropicVonMisesFisher(unit(1.0, 2.0, -1.0, 0.5), torch.tensor([1.0, 4.0, 2.0, 3.0]).double())
    samples = truth.rsample((20_000,), generator=seeded(10))
    fitted = NonIsotropicVonMisesFisher.fit(samples)
    torch.testing.assert_close(fitted.scale, truth.scale, rtol=0.05, atol=0)
    assert (fitted.direction @ truth.direction).item() > 0.999
    assert fitted.log_prob(samples).mean() >= truth.log_prob(samples).mean()
    assert not fitted.scale.requires_grad


def test_shapes_broadcast_and_expand() -> None:
    image = VonMisesFisher(torch.eye(3), torch.tensor(2.0))
    assert image.batch_shape == (3,)
    assert image.event_shape == (3,)
    assert image.expand((5, 3)).rsample((2,), generator=seeded(0)).shape == (2, 5, 3, 3)
    assert image.sample((4,)).shape == (4, 3, 3)
    torch.testing.assert_close(image.mean, mean_resultant_length(3, torch.tensor(2.0)) * torch.eye(3))
    proxy = NonIsotropicVonMisesFisher(torch.eye(3), torch.ones(3)).expand((5, 3))
    assert proxy.log_prob(torch.eye(3)).shape == (5, 3)
    assert proxy.mean.shape == (5, 3, 3)


def test_wrong_parameters_are_named_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch's compiler switches the common default off as soon as it is used: ours must not follow it.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)
    with pytest.raises(InputError, match="length 1"):
        VonMisesFisher(torch.ones(3), torch.ones(()))
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="at least 0"):
            VonMisesFisher(torch.eye(3)[0], torch.tensor(bad))
    with pytest.raises(InputError, match="batch of"):
        VonMisesFisher(torch.eye(3), torch.ones(2))
    with pytest.raises(InputError, match="dim at least 2"):
        VonMisesFisher(torch.ones(3, 1), torch.ones(3))
    with pytest.raises(InputError, match="scales above 0"):
        NonIsotropicVonMisesFisher(torch.eye(3)[0], torch.tensor([1.0, 0.0, 1.0]))
    with pytest.raises(InputError, match="dimension 3"):
        NonIsotropicVonMisesFisher(torch.eye(3), torch.ones(2))
