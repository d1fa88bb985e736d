"""Losses of images and of their ranking, against loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from doubtless.errors import InputError
from doubtless.losses import loss_prediction, neighbor_loss_per_image, ranking_loss


def neighbor_loss_by_loop(z: Tensor, labels: Tensor, temperature: float) -> list[float]:
    found = []
    for i in range(len(z)):
        weights = {
            j: math.exp(float(torch.cosine_similarity(z[i], z[j], dim=0)) / temperature)
            for j in range(len(z))
            if j != i
        }
        right = sum(weight for j, weight in weights.items() if labels[j] == labels[i])
        found.append(-math.log(right / sum(weights.values())) if right else math.nan)
    return found


def ranking_loss_by_loop(predicted: list[float], target: list[float]) -> float:
    pairs = [
        math.log1p(math.exp(predicted[j] - predicted[i]))
        for i in range(len(target))
        for j in range(len(target))
        if target[i] > target[j]
    ]
    return sum(pairs) / len(pairs) if pairs else 0.0


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 8),
    dim=st.integers(1, 4),
    classes=st.integers(1, 4),
    temperature=st.floats(0.1, 2),
    seed=st.integers(0, 999),
    block=st.integers(1, 30),
)
def test_loss_of_images_equals_the_loop_whatever_the_block(
    n: int, dim: int, classes: int, temperature: float, seed: int, block: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (n,), generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loss_prediction, "SCORES_AT_A_TIME", block)
        found = neighbor_loss_per_image(z, labels, temperature=temperature)
    expected = torch.tensor(neighbor_loss_by_loop(z, labels, temperature), dtype=torch.float64)
    torch.testing.assert_close(found, expected, equal_nan=True, rtol=1e-7, atol=1e-12)


def test_well_placed_images_keep_an_order_in_single_precision() -> None:
    """log(right/all) would round to 0 for all of them."""
    angles = torch.tensor([0.0, 0.1, 0.3, math.pi, math.pi + 0.1])
    z = torch.stack([angles.cos(), angles.sin()], dim=1)
    found = neighbor_loss_per_image(z, torch.tensor([0, 0, 0, 1, 1]), temperature=0.1)
    assert bool((found > 0).all())
    assert float(found.max()) < 1e-7
    assert len(found.unique()) == 5


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.tuples(st.floats(-5, 5), st.sampled_from([0.0, 1.0, 2.0, 3.5, math.nan])), max_size=9)
)
def test_ranking_equals_the_loop(values: list[tuple[float, float]]) -> None:
    predicted, target = [p for p, _ in values], [t for _, t in values]
    found = ranking_loss(
        torch.tensor(predicted, dtype=torch.float64), torch.tensor(target, dtype=torch.float64)
    )
    assert float(found) == pytest.approx(ranking_loss_by_loop(predicted, target), abs=1e-12)


def test_ranking_sees_the_order_of_targets_only_and_is_least_for_the_right_one() -> None:
    predicted = torch.tensor([0.3, -1.0, 2.0, 0.9], requires_grad=True)
    target = torch.tensor([1.0, 0.1, 7.0, 2.0])
    loss = ranking_loss(predicted, target)
    torch.testing.assert_close(loss, ranking_loss(predicted, target.exp() * 100))
    torch.testing.assert_close(loss, ranking_loss(predicted + 5, target))
    assert float(ranking_loss(10 * predicted, target)) < float(loss) < float(ranking_loss(-predicted, target))
    assert float(ranking_loss(1000 * predicted, target)) == 0
    loss.backward()
    assert torch.isfinite(predicted.grad).all()


def test_equal_targets_give_zero_with_a_gradient() -> None:
    predicted = torch.randn(4, requires_grad=True)
    ranking_loss(predicted, torch.ones(4)).backward()
    assert torch.equal(predicted.grad, torch.zeros(4))


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"got shapes \(3, 1\) and \(3,\)"):
        ranking_loss(torch.zeros(3, 1), torch.zeros(3))
