"""The same numbers on a GPU, and a training step that never waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from doubtless.laplace import OnlineCurvature, contrastive_ggn, fit, tune
from doubtless.sphere import mean_direction

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever reads a value from the device raises."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("geometry", ["arccos", "euclidean"])
@pytest.mark.parametrize("approximation", ["fixed", "positive", "full"])
def test_curvature(geometry: str, approximation: str) -> None:
    generator = torch.Generator().manual_seed(0)
    features, head = torch.randn(64, 40, generator=generator).double(), torch.nn.Linear(40, 12).double()
    labels = torch.arange(64) % 8
    settings = {"margin": 1.2, "geometry": geometry, "approximation": approximation}
    expected = contrastive_ggn(features, head.weight, head.bias, labels, **settings)
    arguments = (features.cuda(), head.weight.detach().cuda(), head.bias.detach().cuda(), labels.cuda())
    found = contrastive_ggn(*arguments, **settings)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-10, atol=1e-12)


def test_an_online_step_does_not_wait() -> None:
    features, labels = torch.randn(64, 40, device="cuda"), torch.arange(64, device="cuda") % 8
    head = torch.nn.Linear(40, 12).cuda()
    curvature = OnlineCurvature(12, 40, memory=1e-2).cuda()
    generator = torch.Generator("cuda").manual_seed(0)
    with no_waiting():
        for _ in range(3):
            weight, bias = curvature.sample(
                head.weight, head.bias, scale=10.0, prior_precision=1.0, generator=generator
            )
            curvature.update(*contrastive_ggn(features, weight, bias, labels, margin=1.2))
    assert int(curvature.steps) == 3


@pytest.mark.parametrize("dim", [2, 3, 64, 2048])
def test_mean_direction(dim: int) -> None:
    generator = torch.Generator().manual_seed(0)
    location, variance = torch.randn(50, dim, generator=generator), torch.rand(50, dim, generator=generator)
    found = mean_direction(location.cuda(), variance.cuda())
    expected = mean_direction(location, variance)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-9, atol=1e-12)


def test_fit_and_tune() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200) % 5
    features = torch.randn(5, 16, generator=generator)[labels] + torch.randn(200, 16, generator=generator)
    posterior = fit(features.cuda(), labels.cuda(), dim=8, generator=torch.Generator().manual_seed(0))
    expected = fit(features, labels, dim=8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        posterior.weight_curvature.cpu(), expected.weight_curvature, rtol=1e-3, atol=1e-4
    )
    tuned = tune(posterior, features.cuda(), labels.cuda(), scales=[1.0, 100.0, 1e4])
    assert tuned.posterior.predict(features.cuda()).uncertainty.is_cuda
