"""The sphere on a GPU: normalisers, kernels, draws and their gradients are those of the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from doubtless import sphere
from doubtless.sphere import NonIsotropicVonMisesFisher, VonMisesFisher
from doubtless.sphere.moments import kl_to_uniform, sphere_moments
from tests.reference.devices import Inputs, Work, assert_same_on_device, on_device

ROWS, CLASSES = 24, 6


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def numbers(dim: int) -> dict[str, Tensor]:
    return {
        "location": drawn(ROWS, dim),
        "logarithm": 2 + drawn(ROWS, seed=1),
        "proxy": drawn(CLASSES, dim, seed=2),
        "proxy_logarithm": 2 + drawn(CLASSES, seed=3),
        "proxy_scale": 0.5 * drawn(CLASSES, dim, seed=4),
    }


def images(given: Inputs) -> VonMisesFisher:
    return VonMisesFisher(normalize(given["location"], dim=1), given["logarithm"].exp(), validate_args=False)


def isotropic(given: Inputs) -> VonMisesFisher:
    return VonMisesFisher(
        normalize(given["proxy"], dim=1), given["proxy_logarithm"].exp(), validate_args=False
    )


def elongated(given: Inputs) -> NonIsotropicVonMisesFisher:
    return NonIsotropicVonMisesFisher(
        normalize(given["proxy"], dim=1), 3 * given["proxy_scale"].exp(), validate_args=False
    )


def of_concentration(function: Callable[[int, Tensor], Tensor], dim: int) -> Work:
    return lambda given: function(dim, given["logarithm"].exp())


both_types = pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
every_size = pytest.mark.parametrize("dim", [2, 3, 16, 128])


@on_device
@both_types
@every_size
@pytest.mark.parametrize(
    "function",
    [
        sphere.log_normalizer,
        sphere.log_normalizer_of_square,
        sphere.mean_resultant_length,
        sphere.resultant_over_concentration,
    ],
)
def test_functions_of_the_concentration(
    function: Callable[[int, Tensor], Tensor], dim: int, dtype: torch.dtype
) -> None:
    assert_same_on_device(of_concentration(function, dim), numbers(dim), dtype)


@on_device
@both_types
@every_size
def test_inverses(dim: int, dtype: torch.dtype) -> None:
    def work(given: Inputs) -> Tensor:
        # In [0, .99]: nearer to 1 a last bit of R is many of κ.
        return sphere.inverse_mean_resultant_length(dim, 0.99 * given["logarithm"].detach().sigmoid())

    assert_same_on_device(work, numbers(dim), dtype, gradient=False)


@on_device
@every_size
def test_moments_and_divergence(dim: int) -> None:
    def work(given: Inputs) -> list[Tensor]:
        concentration = given["logarithm"].exp()
        moments = sphere_moments(dim, concentration)
        return [*moments, kl_to_uniform(concentration, moments, dim=dim)]

    assert_same_on_device(work, numbers(dim), torch.float64)


@on_device
@both_types
@every_size
@pytest.mark.parametrize("proxies", [isotropic, elongated])
@pytest.mark.parametrize("kernel", [sphere.expected_likelihood, sphere.bhattacharyya, sphere.kl_similarity])
def test_kernels(
    kernel: Callable[..., Tensor], proxies: Callable[[Inputs], Any], dim: int, dtype: torch.dtype
) -> None:
    assert_same_on_device(lambda given: kernel(images(given), proxies(given)), numbers(dim), dtype)


@on_device
@both_types
@every_size
@pytest.mark.parametrize("proxies", [isotropic, elongated])
def test_log_likelihood(proxies: Callable[[Inputs], Any], dim: int, dtype: torch.dtype) -> None:
    assert_same_on_device(
        lambda given: sphere.log_likelihood(images(given), proxies(given)), numbers(dim), dtype
    )


@on_device
@both_types
@every_size
def test_draws_of_the_same_noise(dim: int, dtype: torch.dtype) -> None:
    assert_same_on_device(lambda given: images(given).rsample((5,)), numbers(dim), dtype)


@on_device
@both_types
@every_size
def test_mean_of_a_projected_gaussian(dim: int, dtype: torch.dtype) -> None:
    def work(given: Inputs) -> list[Tensor]:
        location, spread = given["proxy"].detach(), given["proxy_scale"].detach().exp()
        return [sphere.projected_gaussian_mean(location, spread), *sphere.mean_direction(location, spread)]

    assert_same_on_device(work, numbers(dim), dtype, gradient=False)
