"""The same numbers on a GPU, and a training step that never waits for it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from doubtless.laplace import (
    DiagonalPosterior,
    OnlineCurvature,
    contrastive_ggn,
    contrastive_step,
    default_scales,
    fit,
    tune,
)
from doubtless.laplace.tuning import marginal_prior_precisions
from doubtless.losses.contrastive import chosen_pairs, contrastive_loss
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


def a_posterior() -> tuple[DiagonalPosterior, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(6, (600,), generator=generator)
    centres = torch.randn(6, 16, generator=generator).double()
    features = centres[labels] + 0.8 * torch.randn(600, 16, generator=generator).double()
    return fit(features[:300], labels[:300], dim=5), features[300:], labels[300:]


@pytest.mark.parametrize("criterion", ["error-auroc", "match-likelihood", "consensus-ece"])
def test_a_grid_scores_alike(criterion: str) -> None:
    posterior, features, labels = a_posterior()
    scales = default_scales(posterior, 6)
    on_gpu = posterior.to("cuda")
    assert marginal_prior_precisions(on_gpu, scales) == pytest.approx(
        marginal_prior_precisions(posterior, scales), rel=1e-9
    )
    expected = tune(posterior, features, labels, criterion=criterion, scales=scales).trials
    found = tune(on_gpu, features.cuda(), labels.cuda(), criterion=criterion, scales=scales).trials
    for one, other in zip(found, expected, strict=True):
        # A GPU draws other noise; 300 images of 100 draws each agree within a few hundredths.
        tolerance = 0.08 if criterion == "consensus-ece" else 1e-6 * max(1.0, abs(other.score))
        assert one.score == pytest.approx(other.score, abs=tolerance)


def test_a_grid_seldom_waits() -> None:
    posterior, features, labels = a_posterior()
    posterior, features, labels = posterior.to("cuda"), features.cuda(), labels.cuda()
    waits = []
    for count in (5, 50):
        scales = default_scales(posterior, count)
        tune(posterior, features, labels, scales=scales)  # what is recorded or cached is there
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                tune(posterior, features, labels, scales=scales)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        waits.append(sum("synchronizing" in str(warning.message) for warning in caught))
    assert waits[1] <= waits[0] + 10  # a loop over scales would add at least 45
    assert waits[1] <= 100


@pytest.mark.parametrize("kind", ["semi-hard", "hard"])
def test_chosen_pairs(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    unit = torch.nn.functional.normalize(torch.randn(64, 3, generator=generator).double(), dim=1)
    labels = torch.arange(64) % 8
    cosine = unit @ unit.T
    expected = chosen_pairs(cosine, labels, pairs=kind, margin=0.3)
    assert torch.equal(chosen_pairs(cosine.cuda(), labels.cuda(), pairs=kind, margin=0.3).cpu(), expected)
    assert 0 < int(expected.sum()) < 64 * 63


@pytest.mark.parametrize("kind", ["all", "semi-hard", "hard"])
@pytest.mark.parametrize("reduction", ["active", "all"])
def test_choosing_pairs_does_not_wait_and_is_captured(kind: str, reduction: str) -> None:
    """Loss, gradient and curvature at the chosen pairs, as a CUDA graph, on new features."""
    features = torch.randn(64, 40, device="cuda")
    weight = torch.randn(3, 40, device="cuda", requires_grad=True)
    labels = torch.arange(64, device="cuda") % 8

    def work() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        step = contrastive_step(
            features, weight, None, labels, margin=0.7, chosen=kind, reduction=reduction,
            curvature_negative_weight=0.2, curvature_reduction="all",
        )  # fmt: skip
        (gradient,) = torch.autograd.grad(step.loss, weight)
        return step.loss.detach(), gradient, step.curvature[0]

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    with no_waiting():
        work()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work()
    features.copy_(torch.randn(64, 40, device="cuda"))
    graph.replay()
    for one, other in zip(captured, work(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    outputs = torch.nn.functional.linear(features, weight.detach())
    plain = contrastive_loss(outputs, labels, margin=0.7, pairs=kind, reduction=reduction)
    torch.testing.assert_close(captured[0], plain, rtol=1e-4, atol=1e-5)
