"""Loss, gradient and curvature at once: against the plain loss with autograd, brute force, and loops."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from doubtless.errors import InputError
from doubtless.laplace import contrastive_ggn, contrastive_step
from doubtless.losses import contrastive_loss
from tests.reference.curvature import brute_force_ggn

LABELS = {
    "balanced": [0, 0, 1, 1, 2, 2],
    "unbalanced": [0, 0, 0, 0, 1, 2],
    "one class": [0, 0, 0, 0, 0, 0],
    "all different": [0, 1, 2, 3, 4, 5],
}


def a_problem(
    seed: int = 0, dim: int = 3, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(6, 4, generator=generator, dtype=dtype)
    weight = torch.randn(dim, 4, generator=generator, dtype=dtype)
    return features, weight, torch.randn(dim, generator=generator, dtype=dtype)


@settings(max_examples=25, deadline=None)
@given(
    labels=st.sampled_from(list(LABELS.values())),
    margin=st.floats(0.1, 2.0),
    negative_weight=st.floats(0, 1),
    reduction=st.sampled_from(["active", "all"]),
    pairs=st.sampled_from(["all", "semi-hard", "hard"]),
    distance=st.sampled_from(["squared", "plain"]),
    seed=st.integers(0, 50),
)
def test_loss_and_gradient_are_those_of_the_contrastive_loss(
    labels, margin, negative_weight, reduction, pairs, distance, seed
) -> None:
    inputs = [tensor.requires_grad_() for tensor in a_problem(seed)]
    options = {"margin": margin, "negative_weight": negative_weight, "reduction": reduction}
    options["distance"] = distance
    outputs = torch.nn.functional.linear(*inputs)
    expected = contrastive_loss(outputs, torch.tensor(labels), pairs=pairs, **options)
    found = contrastive_step(*inputs, torch.tensor(labels), chosen=pairs, **options).loss
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    for one, other in zip(
        torch.autograd.grad(3 * found, inputs), torch.autograd.grad(3 * expected, inputs), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("labels", list(LABELS))
@pytest.mark.parametrize("approximation", ["fixed", "positive", "full"])
@pytest.mark.parametrize("geometry", ["arccos", "euclidean"])
@pytest.mark.parametrize("reduction", ["active", "all"])
def test_curvature_is_that_of_contrastive_ggn(geometry, approximation, labels, reduction) -> None:
    problem, classes = a_problem(), torch.tensor(LABELS[labels])
    options = {"margin": 1.3, "geometry": geometry, "approximation": approximation}
    for weight, other in itertools.product((None, 0.2), (None, "active", "all")):
        step = contrastive_step(
            *problem, classes, reduction=reduction, curvature_negative_weight=weight, curvature_reduction=other,
            **options,
        )  # fmt: skip
        expected = contrastive_ggn(
            *problem, classes, negative_weight=0.5 if weight is None else weight,
            reduction=other or reduction, **options,
        )  # fmt: skip
        plain = contrastive_loss(
            torch.nn.functional.linear(*problem), classes, margin=1.3, reduction=reduction
        )
        torch.testing.assert_close(step.loss, plain)  # whatever the curvature's own weights
        torch.testing.assert_close(step.curvature, expected, rtol=1e-10, atol=1e-12)
        assert bool(step.valid) == bool((expected[0] != 0).any())


def test_plain_distances_train_and_squared_ones_curve() -> None:
    problem, labels = a_problem(), torch.tensor(LABELS["balanced"])
    step = contrastive_step(*problem, labels, margin=1.3, distance="plain")
    squared = contrastive_step(*problem, labels, margin=1.3)
    torch.testing.assert_close(step.curvature, squared.curvature, rtol=0, atol=0)
    assert float(step.loss) != pytest.approx(float(squared.loss))
    with pytest.raises(InputError, match="no distance 'plane'; did you mean 'plain'"):
        contrastive_step(*problem, labels, margin=1.3, distance="plane")


@pytest.mark.parametrize("geometry", ["arccos", "euclidean"])
@pytest.mark.parametrize("reduction", ["active", "all"])
def test_chosen_pairs_are_the_only_ones_and_averages_run_over_them(geometry: str, reduction: str) -> None:
    features, weight, bias = a_problem()
    labels, margin = torch.tensor(LABELS["balanced"]), 0.9
    chosen = torch.zeros(6, 6, dtype=torch.bool)
    for i, j in [(0, 1), (2, 3), (0, 2), (1, 5), (3, 4)]:
        chosen[i, j] = chosen[j, i] = True
    step = contrastive_step(
        features, weight, bias, labels, margin=margin, geometry=geometry, approximation="full", chosen=chosen,
        reduction=reduction,
    )  # fmt: skip
    unit = torch.nn.functional.normalize(features @ weight.T + bias)
    pulled, pushed, y = [], [], torch.zeros(6, 6, dtype=torch.float64)
    for i, j in itertools.combinations(range(6), 2):
        if chosen[i, j]:
            squared = float((unit[i] - unit[j]).square().sum())
            if labels[i] == labels[j]:
                pulled.append(0.5 * squared)
                y[i, j] = 1 / 2  # of two positive pairs
            else:
                pushed.append(0.5 * max(0.0, margin**2 - squared))
                y[i, j] = -1.0 if squared < margin**2 else 0.0
    active = sum(value > 0 for value in pushed)
    assert 0 < active < 3  # one beyond the margin, so that its count matters
    count = active if reduction == "active" else 3
    y[y < 0] /= count
    assert float(step.loss) == pytest.approx(sum(pulled) / 2 + sum(pushed) / count, rel=1e-12)
    expected = brute_force_ggn(features, weight, bias, y, geometry=geometry, approximation="full")
    torch.testing.assert_close(step.curvature, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_points_are_no_positive_pair_and_loss_and_step_agree_on_it(dtype: torch.dtype) -> None:
    features, weight, bias = a_problem(dtype=dtype)
    features[1] = features[0]
    inputs, labels = [features, weight.requires_grad_(), bias], torch.tensor(LABELS["unbalanced"])
    expected = contrastive_loss(torch.nn.functional.linear(*inputs), labels, margin=1.3)
    found = contrastive_step(*inputs, labels, margin=1.3)
    over_all = contrastive_step(*inputs, labels, margin=1.3, reduction="all")
    torch.testing.assert_close(found.loss, expected)
    assert float(found.loss.detach()) > float(over_all.loss.detach())
    torch.testing.assert_close(
        torch.autograd.grad(found.loss, weight), torch.autograd.grad(expected, weight), rtol=1e-4, atol=1e-5
    )
    for distance in ("squared", "plain"):
        alike = contrastive_step(
            features[:1].expand(6, -1), weight, bias, torch.zeros(6), margin=1.3, distance=distance
        )
        assert not bool(alike.valid)
        assert float(alike.loss.detach()) == 0
        assert not torch.autograd.grad(alike.loss, weight)[0].any()


@pytest.mark.parametrize("geometry", ["arccos", "euclidean"])
def test_a_zero_output_gives_no_curvature_no_gradient_and_no_nan(geometry: str) -> None:
    features, weight, _ = a_problem()
    features[2] = 0
    labels = torch.tensor(LABELS["balanced"])
    weight.requires_grad_()
    step = contrastive_step(features, weight, None, labels, margin=1.3, geometry=geometry)
    expected = contrastive_ggn(features, weight, None, labels, margin=1.3, geometry=geometry)[0]
    torch.testing.assert_close(step.curvature[0], expected)
    assert step.curvature[1] is None
    assert bool(torch.isfinite(torch.autograd.grad(step.loss, weight)[0]).all())


@pytest.mark.parametrize("reduction", ["active", "all"])
@pytest.mark.parametrize("curvature_reduction", ["active", "all"])
def test_nothing_is_read_back_to_the_host(reduction: str, curvature_reduction: str) -> None:
    """Fake tensors have no values: a single `if tensor` or `.item()` would raise."""
    with FakeTensorMode():
        features, weight, bias = torch.empty(6, 4), torch.empty(3, 4, requires_grad=True), torch.empty(3)
        labels = torch.empty(6, dtype=torch.long)
        step = contrastive_step(
            features, weight, bias, labels, margin=0.7, reduction=reduction,
            curvature_reduction=curvature_reduction,
        )  # fmt: skip
        step.loss.backward()
        assert weight.grad is not None
        assert step.curvature[0].shape == (3, 4)
        with pytest.raises(DataDependentOutputException):
            bool(step.valid)


def test_under_autocast_curvature_stays_in_float32_and_gradients_arrive() -> None:
    features, weight, bias = (tensor.requires_grad_() for tensor in a_problem(dtype=torch.float32))
    labels = torch.tensor(LABELS["balanced"])
    plain = contrastive_step(features, weight, bias, labels, margin=1.3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step = contrastive_step(features, weight, bias, labels, margin=1.3)
    assert step.curvature[0].dtype == step.loss.dtype == torch.float32
    assert float(step.loss) == pytest.approx(float(plain.loss), rel=0.05)
    expected, found = (torch.autograd.grad(one.loss, weight)[0] for one in (plain, step))
    torch.testing.assert_close(found, expected, rtol=0.2, atol=0.02)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("margin", [0.0, 1e-9, 1e-4, 1e-3, 0.5])
def test_equal_points_are_inside_every_margin_that_can_be_told_from_none(margin, dtype) -> None:
    """Rounding puts cosines of equal points on both sides of 1: the loss must not see it."""
    features = torch.randn(40, 64, generator=torch.Generator().manual_seed(0), dtype=dtype)
    features, weight = features[:1].expand(40, -1), torch.eye(64, dtype=dtype)
    step = contrastive_step(features, weight, None, torch.arange(40), margin=margin)
    rounds_to_none = 1 - torch.tensor(margin**2 / 2, dtype=dtype) == 1
    assert bool(step.valid) != rounds_to_none
    expected = 0.0 if rounds_to_none else margin**2 / 2
    assert float(step.loss) == pytest.approx(expected, rel=1e-3, abs=4 * torch.finfo(dtype).eps)


def test_outputs_too_short_to_have_a_direction_count_as_zero() -> None:
    features, weight, _ = a_problem(dtype=torch.float32)
    features[1] *= 1e-41  # its length is a number, one over it is not
    labels = torch.tensor(LABELS["balanced"])
    step = contrastive_step(features, weight, None, labels, margin=1.3)
    features[1] = 0
    expected = contrastive_step(features, weight, None, labels, margin=1.3)
    torch.testing.assert_close((step.loss, step.curvature[0]), (expected.loss, expected.curvature[0]))


def test_a_broken_output_is_not_hidden() -> None:
    features, weight, bias = a_problem()
    features[1, 1] = torch.nan
    step = contrastive_step(features, weight, bias, torch.tensor(LABELS["balanced"]), margin=1.3)
    assert bool(step.loss.isnan())
