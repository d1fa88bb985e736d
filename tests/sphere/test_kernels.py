"""Similarities of image and proxy against integrals over the sphere, loops, and closed forms."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from doubtless.errors import InputError
from doubtless.sphere import (
    HypersphericalUniform,
    NonIsotropicVonMisesFisher,
    VonMisesFisher,
    bhattacharyya,
    expected_likelihood,
    kl_similarity,
    log_likelihood,
)
from tests.reference.sphere_grid import sphere_grid

POINTS, WEIGHTS = sphere_grid()
Kernel = Callable[..., Tensor]


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def directions(count: int, dim: int, *, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return HypersphericalUniform(dim, (count,), dtype=dtype).rsample(generator=seeded(seed))


def images_and_proxies(dtype: torch.dtype = torch.float64) -> tuple[VonMisesFisher, VonMisesFisher]:
    images = VonMisesFisher(
        directions(4, 3, seed=0, dtype=dtype), torch.tensor([0.0, 0.5, 5.0, 40.0], dtype=dtype)
    )
    proxies = VonMisesFisher(
        directions(3, 3, seed=1, dtype=dtype), torch.tensor([0.0, 2.0, 30.0], dtype=dtype)
    )
    return images, proxies


def by_integral(kernel: Kernel, image: Tensor, proxy: Tensor) -> Tensor:
    """The similarity of two log-densities on the grid."""
    if kernel is expected_likelihood:
        return ((image + proxy).exp() @ WEIGHTS).log()
    if kernel is bhattacharyya:
        return ((0.5 * (image + proxy)).exp() @ WEIGHTS).log()
    return -((image.exp() * (image - proxy)) @ WEIGHTS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kernel", [expected_likelihood, bhattacharyya, kl_similarity])
def test_isotropic_kernels_are_the_integrals(kernel: Kernel, dtype: torch.dtype) -> None:
    images, proxies = images_and_proxies(dtype)
    result = kernel(images, proxies)
    assert result.shape == (4, 3)
    assert result.dtype == dtype
    bound = 1e-9 if dtype == torch.float64 else 1e-5
    for i in range(4):
        for c in range(3):
            image = VonMisesFisher(images.direction[i].double(), images.concentration[i].double())
            proxy = VonMisesFisher(proxies.direction[c].double(), proxies.concentration[c].double())
            truth = by_integral(kernel, image.log_prob(POINTS), proxy.log_prob(POINTS)).item()
            assert abs(result[i, c].item() - truth) < bound * max(1, abs(truth))


def test_log_likelihood_is_the_proxies_log_density() -> None:
    for dim, dtype, bound in [
        (3, torch.float64, 1e-12),
        (512, torch.float64, 1e-11),
        (512, torch.float32, 1e-5),
    ]:
        points = directions(5, dim, seed=2, dtype=dtype)
        images = VonMisesFisher(points, torch.ones(5, dtype=dtype))
        isotropic = VonMisesFisher(
            directions(7, dim, seed=3, dtype=dtype), torch.full((7,), 60.0, dtype=dtype)
        )
        scale = torch.rand(7, dim, dtype=dtype, generator=seeded(4)) * 20 + 5
        stretched = NonIsotropicVonMisesFisher(isotropic.direction, scale)
        for proxy in (isotropic, stretched):
            loop = torch.stack([proxy.log_prob(point) for point in points])
            torch.testing.assert_close(log_likelihood(images, proxy), loop, rtol=bound, atol=bound)


def test_kl_similarity_is_the_registered_divergence() -> None:
    images = VonMisesFisher(directions(4, 512, seed=5), torch.tensor([0.0, 20.0, 300.0, 5000.0]).double())
    proxies = VonMisesFisher(directions(3, 512, seed=6), torch.tensor([1.0, 50.0, 1000.0]).double())
    similarity = kl_similarity(images, proxies)
    for c in range(3):
        proxy = VonMisesFisher(proxies.direction[c], proxies.concentration[c]).expand((4,))
        torch.testing.assert_close(similarity[:, c], -kl_divergence(images, proxy))


def test_equal_distributions_have_similarity_zero() -> None:
    images = VonMisesFisher(directions(4, 128, seed=7), torch.tensor([0.0, 2.0, 80.0, 3000.0]).double())
    for kernel in (bhattacharyya, kl_similarity):
        similarity = kernel(images, images)
        torch.testing.assert_close(similarity.diagonal(), torch.zeros(4).double(), rtol=0, atol=1e-10)
        assert (similarity <= 1e-10).all()


@pytest.mark.parametrize("kernel", [expected_likelihood, bhattacharyya, kl_similarity])
def test_sampled_kernels_agree_with_integrals_for_a_non_isotropic_proxy(kernel: Kernel) -> None:
    images = VonMisesFisher(directions(3, 3, seed=8), torch.tensor([0.5, 3.0, 12.0], dtype=torch.float64))
    scale = torch.tensor([[1.0, 2.0, 4.0], [3.0, 3.0, 1.0]], dtype=torch.float64)
    proxies = NonIsotropicVonMisesFisher(directions(2, 3, seed=9), scale)
    rounds = torch.stack([kernel(images, proxies, samples=4000, generator=seeded(s)) for s in range(12)])
    standard_error = rounds.std(0) / math.sqrt(len(rounds))
    for i in range(3):
        for c in range(2):
            image = VonMisesFisher(images.direction[i], images.concentration[i])
            proxy = NonIsotropicVonMisesFisher(proxies.direction[c], proxies.scale[c])
            truth = by_integral(kernel, image.log_prob(POINTS), proxy.log_prob(POINTS)).item()
            # the logarithm of a mean of 4,000 is biased by far less than 1e-3
            assert abs(rounds[:, i, c].mean().item() - truth) < 5 * standard_error[i, c].item() + 1e-3


@pytest.mark.parametrize("kernel", [expected_likelihood, bhattacharyya, kl_similarity])
def test_sampled_kernels_with_equal_scales_agree_with_the_closed_form(kernel: Kernel) -> None:
    dim, kappa = 8, 6.0
    images = VonMisesFisher(directions(3, dim, seed=10), torch.tensor([1.0, 5.0, 20.0], dtype=torch.float64))
    isotropic = VonMisesFisher(directions(2, dim, seed=11), torch.tensor(kappa, dtype=torch.float64))
    stretched = NonIsotropicVonMisesFisher(
        isotropic.direction, torch.full((dim,), kappa, dtype=torch.float64)
    )
    sampled = kernel(images, stretched, samples=40_000, generator=seeded(12))
    torch.testing.assert_close(sampled, kernel(images, isotropic), rtol=0, atol=0.05)


@pytest.mark.parametrize("dim", [2, 3, 64])
@pytest.mark.parametrize("kernel", [expected_likelihood, bhattacharyya, kl_similarity, log_likelihood])
def test_isotropic_kernels_pass_gradcheck(kernel: Kernel, dim: int) -> None:
    def similarity(image: Tensor, kappa: Tensor, proxy: Tensor, proxy_kappa: Tensor) -> Tensor:
        images = VonMisesFisher(image, kappa, validate_args=False)
        return kernel(images, VonMisesFisher(proxy, proxy_kappa, validate_args=False))

    kappa = torch.tensor([0.7, 9.0], dtype=torch.float64)
    proxy_kappa = torch.tensor([0.3, 4.0, 30.0], dtype=torch.float64)
    inputs = (directions(2, dim, seed=13), kappa, directions(3, dim, seed=14), proxy_kappa)
    assert torch.autograd.gradcheck(similarity, tuple(x.clone().requires_grad_() for x in inputs))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kernel", [expected_likelihood, bhattacharyya])
def test_gradient_is_finite_where_the_sum_of_two_vanishes(kernel: Kernel, dtype: torch.dtype) -> None:
    # κ₁μ₁ + κ₂μ₂ = 0: the norm has no gradient there, the similarity has
    direction = directions(1, 300, seed=15, dtype=dtype).requires_grad_()
    for value in (0.0, 25.0):
        kappa = torch.tensor([value], dtype=dtype, requires_grad=True)
        images = VonMisesFisher(direction, kappa)
        proxies = VonMisesFisher(-direction.detach(), torch.tensor([value], dtype=dtype))
        similarity = kernel(images, proxies)
        gradients = torch.autograd.grad(similarity.sum(), (direction, kappa))
        assert all(g.isfinite().all() for g in (similarity, *gradients))


@pytest.mark.parametrize("kernel", [expected_likelihood, bhattacharyya])
def test_opposite_directions_a_rounding_longer_than_one_are_no_square_root_of_a_negative(
    kernel: Kernel,
) -> None:
    direction = torch.tensor([[1 + 1e-6, 0.0, 0.0]])
    kappa = torch.tensor([1e6], requires_grad=True)
    similarity = kernel(VonMisesFisher(direction, kappa), VonMisesFisher(-direction, kappa.detach()))
    assert similarity.isfinite().all()
    assert torch.autograd.grad(similarity.sum(), kappa)[0].isfinite().all()


@pytest.mark.parametrize("kernel", [expected_likelihood, bhattacharyya, kl_similarity])
def test_sampled_kernels_give_every_parameter_a_gradient(kernel: Kernel) -> None:
    # a derivative at fixed random numbers, against a finite difference of the same draw in the proxy's parameters
    images = VonMisesFisher(
        directions(3, 40, seed=16).requires_grad_(),
        torch.full((3,), 9.0, dtype=torch.float64, requires_grad=True),
    )
    proxy_direction = directions(2, 40, seed=17)
    scale = (torch.rand(2, 40, dtype=torch.float64, generator=seeded(18)) * 5 + 1).requires_grad_()

    def total(scale: Tensor) -> Tensor:
        proxies = NonIsotropicVonMisesFisher(proxy_direction, scale)
        return kernel(images, proxies, generator=seeded(19)).sum()

    gradients = torch.autograd.grad(total(scale), (images.direction, images.concentration, scale))
    assert all(g.isfinite().all() and g.abs().sum() > 0 for g in gradients)
    step = torch.zeros_like(scale)
    step[1, 7] = 1e-5
    difference = (total(scale + step) - total(scale - step)).item() / 2e-5
    assert gradients[2][1, 7].item() == pytest.approx(difference, rel=1e-5, abs=1e-8)


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor any operation returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


@pytest.mark.parametrize("kernel", [expected_likelihood, bhattacharyya, kl_similarity, log_likelihood])
def test_nothing_has_an_entry_for_every_image_class_and_dimension(kernel: Kernel) -> None:
    batch, classes, dim, samples = 32, 50, 128, 5
    images = VonMisesFisher(
        directions(batch, dim, seed=20).requires_grad_(), torch.full((batch,), 9.0, dtype=torch.float64)
    )
    proxy_direction = directions(classes, dim, seed=21).requires_grad_()
    isotropic = VonMisesFisher(proxy_direction, torch.ones(classes, dtype=torch.float64))
    stretched = NonIsotropicVonMisesFisher(proxy_direction, torch.ones(classes, dim, dtype=torch.float64))
    for proxy in (isotropic, stretched):
        with LargestTensor() as largest:
            kernel(images, proxy).sum().backward()
        assert 0 < largest.elements <= samples * batch * max(classes, dim)


def test_wrong_shapes_are_named_in_a_sentence() -> None:
    images, proxies = images_and_proxies()
    flat = VonMisesFisher(directions(2, 4, seed=22), torch.ones(2, dtype=torch.float64))
    with pytest.raises(InputError, match="same dim"):
        expected_likelihood(images, flat)
    with pytest.raises(InputError, match=r"\(classes, dim\)"):
        log_likelihood(images, VonMisesFisher(proxies.direction[0], proxies.concentration[0]))
    with pytest.raises(InputError, match="at least 1"):
        kl_similarity(images, proxies, samples=0)
