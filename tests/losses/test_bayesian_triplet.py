"""The Bayesian triplet loss against its definition, in a batch against a loop, and at the ends of the scale."""

from __future__ import annotations

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from doubtless.losses import batch_bayesian_triplet_loss, bayesian_triplet_loss
from doubtless.losses.bayesian_triplet import kl_to_prior, triplet_nll
from doubtless.losses.triplet import Triplets, mined_triplets
from doubtless.losses.triplet_moments import Gaussians, Moments, VonMisesFishers, triplet_moments
from doubtless.sphere import HypersphericalUniform, VonMisesFisher

FAMILIES = ["gaussian", "sphere"]


def some(
    family: str, count: int, dim: int, seed: int = 0, spread: float = 0.1
) -> Gaussians | VonMisesFishers:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(count, dim, generator=generator, dtype=torch.float64)
    variance = spread * (0.5 + torch.rand(count, 1, generator=generator, dtype=torch.float64))
    if family == "gaussian":
        return Gaussians(points / dim**0.5, variance)
    return VonMisesFishers(points / points.norm(dim=-1, keepdim=True), 1 / variance[:, 0])


def test_likelihood_to_the_last_digits_far_out() -> None:
    means = torch.tensor([-3.0, -0.5, 0.0, 1.0, 30.0, 1e5], dtype=torch.float64, requires_grad=True)
    variances = torch.full_like(means, 0.25).detach().requires_grad_()
    loss = triplet_nll(Moments(means, variances), margin=0.1)
    loss.sum().backward()
    with mpmath.workdps(60):
        for i, mean in enumerate(means.tolist()):

            def exact(m: float, v: float) -> mpmath.mpf:
                return -mpmath.log(mpmath.erfc((mpmath.mpf(0.1) + m) / mpmath.sqrt(2 * v)) / 2)

            assert float(loss[i]) == pytest.approx(float(exact(mean, 0.25)), rel=1e-12)
            at = mpmath.mpf(mean)
            if mean < 1e4:  # mpmath differentiates numerically
                of_mean = mpmath.diff(lambda m: exact(m, mpmath.mpf(0.25)), at)
                of_variance = mpmath.diff(lambda v, at=at: exact(at, v), mpmath.mpf(0.25))
            else:  # −log Φ(z) → z²/2
                of_mean, of_variance = (at + 0.1) / 0.25, -((at + 0.1) ** 2) / (2 * 0.25**2)
            assert float(means.grad[i]) == pytest.approx(float(of_mean), rel=1e-9)
            assert float(variances.grad[i]) == pytest.approx(float(of_variance), rel=1e-9)


def test_a_variance_of_nothing_gives_the_limit_and_no_gradient() -> None:
    mean = torch.tensor([-1.0, -0.5, 0.0], requires_grad=True)
    variance = torch.zeros(3, requires_grad=True)
    loss = triplet_nll(Moments(mean, variance), margin=0.5)
    assert loss.tolist() == [0.0, torch.inf, torch.inf]
    loss[0].backward()
    assert mean.grad.tolist() == variance.grad.tolist() == [0.0, 0.0, 0.0]


def test_divergence_from_the_prior_is_that_of_torch() -> None:
    for axes in (1, 5):
        images = Gaussians(torch.randn(4, 5).double(), torch.rand(4, axes).double() + 0.1)
        own = MultivariateNormal(images.location, torch.diag_embed(images.variance.expand(4, 5)))
        prior = MultivariateNormal(torch.zeros(5).double(), torch.eye(5).double() / 5)
        torch.testing.assert_close(kl_to_prior(images), kl_divergence(own, prior))
    for dim in (2, 8, 200):
        unit = torch.nn.functional.normalize(torch.randn(5, dim, dtype=torch.float64), dim=-1)
        kappa = torch.tensor([0.0, 1e-3, 1.0, 40.0, 1e5], dtype=torch.float64, requires_grad=True)
        found = kl_to_prior(VonMisesFishers(unit, kappa))
        expected = kl_divergence(VonMisesFisher(unit, kappa), HypersphericalUniform(dim, dtype=torch.float64))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)
        ours, theirs = (torch.autograd.grad(value.sum(), kappa)[0] for value in (found, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("family", FAMILIES)
def test_loss_is_likelihood_and_three_divergences(family: str) -> None:
    a, p, n = (some(family, 4, 6, seed) for seed in range(3))
    nll = triplet_nll(triplet_moments(a, p, n), margin=0.2)
    divergences = sum(kl_to_prior(images) for images in (a, p, n))
    loss = bayesian_triplet_loss(a, p, n, margin=0.2, kl_scale=0.01)
    torch.testing.assert_close(loss, nll + 0.01 * divergences)


def test_a_larger_variance_is_better_only_for_a_wrong_order() -> None:
    for order, sign in ((1.0, -1), (-1.0, 1)):
        variance = torch.full((1, 1), 0.1, dtype=torch.float64, requires_grad=True)
        a, near, far = (Gaussians(torch.full((1, 1), x).double(), variance) for x in (0.0, 0.5, 1.5))
        positive, negative = (far, near) if order > 0 else (near, far)
        bayesian_triplet_loss(a, positive, negative, margin=0.0, kl_scale=0.0).backward()
        assert float(variance.grad.sign()) == sign


@settings(max_examples=40, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    batch=st.integers(1, 8),
    classes=st.integers(1, 3),
    mining=st.sampled_from(["random", "skewed", "semi-hard", "hard"]),
    seed=st.integers(0, 1000),
)
def test_batch_equals_the_loop_over_its_triplets(
    family: str, batch: int, classes: int, mining: str, seed: int
) -> None:
    images = some(family, batch, 4, seed)
    labels = torch.randint(classes, (batch,), generator=torch.Generator().manual_seed(seed))
    found = batch_bayesian_triplet_loss(
        images,
        labels,
        margin=0.1,
        mining=mining,  # type: ignore[arg-type]
        kl_scale=0.01,
        generator=torch.Generator().manual_seed(seed),
    )
    points = images[0]
    distance = (points[:, None] - points[None]).square().sum(-1)
    chosen = mined_triplets(distance, labels, mining, generator=torch.Generator().manual_seed(seed))  # type: ignore[arg-type]
    losses = []
    for a, p, n, weight in zip(*chosen, strict=True):
        real = a != p and labels[a] == labels[p] and bool((labels != labels[a]).any())
        assert bool(weight) == real
        if real:
            assert labels[n] != labels[a]
            rows = (type(images)(images[0][i : i + 1], images[1][i : i + 1]) for i in (a, p, n))
            losses.append(float(bayesian_triplet_loss(*rows, margin=0.1, kl_scale=0.0)))
    expected = sum(losses) / max(len(losses), 1) + 0.03 * float(kl_to_prior(images).mean())
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_random_negatives_are_each_as_likely() -> None:
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    distance = torch.rand(6, 6)
    counts = torch.zeros(6)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2000):
        chosen = mined_triplets(distance, labels, "random", generator=generator)
        counts[chosen.negative[(chosen.anchor == 0) & (chosen.weight > 0)]] += 1
    assert counts[:2].sum() == 0
    assert ((counts[2:] - 500).abs() < 4 * (2000 * 0.25 * 0.75) ** 0.5).all()


def test_given_triplets_are_the_ones_used() -> None:
    images, one = some("gaussian", 5, 4), torch.ones(1)
    triplets = Triplets(torch.tensor([0]), torch.tensor([3]), torch.tensor([2]), one)
    found = batch_bayesian_triplet_loss(images, torch.zeros(5), margin=0.1, kl_scale=0.0, triplets=triplets)
    rows = (Gaussians(images[0][i : i + 1], images[1][i : i + 1]) for i in (0, 3, 2))
    torch.testing.assert_close(found, bayesian_triplet_loss(*rows, margin=0.1, kl_scale=0.0)[0])


@pytest.mark.parametrize("family", FAMILIES)
def test_gradcheck(family: str) -> None:
    images, labels = some(family, 6, 3), torch.tensor([0, 0, 1, 1, 2, 2])

    def loss(points: Tensor, second: Tensor) -> Tensor:
        unit = points if family == "gaussian" else torch.nn.functional.normalize(points, dim=-1)
        return batch_bayesian_triplet_loss(
            type(images)(unit, second), labels, margin=0.1, mining="hard", kl_scale=0.01
        )

    inputs = tuple(value.clone().requires_grad_() for value in images)
    assert torch.autograd.gradcheck(loss, inputs)
    pieces = [value[i : i + 1].clone().requires_grad_() for i in range(3) for value in images]

    def single(*values: Tensor) -> Tensor:
        rows = [type(images)(values[2 * i], values[2 * i + 1]) for i in range(3)]
        return bayesian_triplet_loss(*rows, margin=0.1, kl_scale=0.01)

    assert torch.autograd.gradcheck(single, tuple(pieces))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("together", [True, False])
def test_gradients_are_finite_over_twelve_orders_of_magnitude(
    family: str, dtype: torch.dtype, together: bool
) -> None:
    """Every image from 1e-9 to 1e3 (κ: 1e-3 to 1e9), at one place and apart, in both orders."""
    scale = torch.logspace(-9, 3, 13, dtype=dtype)
    sizes = torch.cartesian_prod(scale, scale, scale).requires_grad_()  # (2197, 3)
    places = torch.zeros(3, 8, dtype=dtype) if together else torch.eye(3, 8, dtype=dtype)
    places[:, 3] += 1
    places = torch.nn.functional.normalize(places, dim=-1).requires_grad_()
    for order in ((0, 1, 2), (0, 2, 1)):
        rows = [places[i].expand(len(sizes), 8) for i in order]
        if family == "gaussian":
            images = [Gaussians(row, sizes[:, i : i + 1]) for i, row in enumerate(rows)]
        else:
            images = [VonMisesFishers(row, 1 / sizes[:, i]) for i, row in enumerate(rows)]
        loss = bayesian_triplet_loss(*images, margin=0.1)
        assert torch.isfinite(loss).all()
        gradients = torch.autograd.grad(loss.sum(), (sizes, places))
        assert all(torch.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("family", FAMILIES)
def test_single_precision_is_near_double(family: str) -> None:
    images, labels = some(family, 8, 16), torch.arange(8) // 2
    single = type(images)(images[0].float(), images[1].float())
    found, exact = (
        batch_bayesian_triplet_loss(one, labels, margin=0.1, mining="hard") for one in (single, images)
    )
    assert found.dtype == torch.float32
    assert float(found) == pytest.approx(float(exact), rel=1e-5)


def test_one_class_gives_the_divergence_only() -> None:
    images = some("gaussian", 4, 3)
    inputs = [value.clone().requires_grad_() for value in images]
    loss = batch_bayesian_triplet_loss(Gaussians(*inputs), torch.zeros(4), margin=0.1, kl_scale=1.0)
    torch.testing.assert_close(loss, 3 * kl_to_prior(images).mean())
    loss.backward()
    assert all(torch.isfinite(value.grad).all() for value in inputs)


def test_least_variance_of_a_batch_stops_nan_and_changes_nothing_else() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    points = torch.zeros(4, 3, dtype=torch.float64, requires_grad=True)
    none = torch.zeros(4, 1, dtype=torch.float64, requires_grad=True)
    loss = batch_bayesian_triplet_loss(Gaussians(points, none), labels, margin=0.1, kl_scale=0.0)
    loss.backward()
    assert torch.isfinite(loss)
    assert not none.grad.isnan().any()
    assert not points.grad.isnan().any()
    least = torch.full((4, 1), torch.finfo(torch.float32).tiny, dtype=torch.float64)
    images = Gaussians(torch.zeros(4, 3, dtype=torch.float64), least)
    chosen = mined_triplets(torch.zeros(4, 4), labels, "hard")
    fused = batch_bayesian_triplet_loss(images, labels, margin=1e-38, mining="hard")
    torch.testing.assert_close(
        fused, batch_bayesian_triplet_loss(images, labels, margin=1e-38, triplets=chosen)
    )
    assert fused > 0.5  # z is of order one: the variances are what decides
