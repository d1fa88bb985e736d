"""The contrastive loss against a loop over pairs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from doubtless.errors import InputError
from doubtless.losses import contrastive_loss

both_reductions = pytest.mark.parametrize("reduction", ["active", "all"])


def by_loop(z: Tensor, labels: Tensor, margin: float, weight: float, reduction: str = "active") -> float:
    """Where the reduction is active, terms of 0 are not in the lists; equal points are 1e-8 apart at most."""
    positive, negative = [], []
    for i in range(len(z)):
        for j in range(i + 1, len(z)):
            d = (z[i] / z[i].norm() - z[j] / z[j].norm()).norm()
            if labels[i] == labels[j]:
                if d > 1e-8 or reduction == "all":
                    positive.append(0.5 * d**2)
            elif d < margin or reduction == "all":
                negative.append(0.5 * (margin**2 - d**2) if d < margin else torch.zeros(()))
    mean = [float(sum(part) / len(part)) if part else 0.0 for part in (positive, negative)]
    return 2 * (1 - weight) * mean[0] + 2 * weight * mean[1]


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 9),
    dim=st.integers(1, 5),
    classes=st.integers(1, 4),
    margin=st.floats(0.1, 2.0),
    weight=st.floats(0, 1),
    reduction=st.sampled_from(["active", "all"]),
    seed=st.integers(0, 1000),
)
def test_equals_the_loop(
    batch: int, dim: int, classes: int, margin: float, weight: float, reduction: str, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(batch, dim, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (batch,), generator=generator)
    found = contrastive_loss(z, labels, margin=margin, negative_weight=weight, reduction=reduction)
    assert float(found) == pytest.approx(by_loop(z, labels, margin, weight, reduction), abs=1e-9)


@pytest.mark.parametrize("margin", [0.4, 0.9, 1.6])
def test_plain_distances_are_those_of_pytorch_metric_learning(margin: float) -> None:
    """Its defaults, which LAM's published code trains with: distances not squared, averages over what is not 0."""
    from pytorch_metric_learning.losses import ContrastiveLoss

    z = torch.randn(
        12, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True
    )
    labels = torch.arange(12) % 3
    found = contrastive_loss(z, labels, margin=margin, distance="plain")
    expected = ContrastiveLoss(pos_margin=0, neg_margin=margin)(z, labels)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
    one, other = (torch.autograd.grad(loss, z)[0] for loss in (found, expected))
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


@both_reductions
def test_gradcheck(reduction: str) -> None:
    """Of the active reduction, too: how many pairs are active is a constant."""
    z = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    unit = torch.nn.functional.normalize(z.detach())
    beyond = (torch.cdist(unit, unit) > 1.3) & (labels[:, None] != labels)
    assert 0 < int(beyond.sum()) < 24  # some count, some do not
    assert torch.autograd.gradcheck(lambda z: contrastive_loss(z, labels, margin=1.3, reduction=reduction), z)


def on_a_circle(*degrees: float) -> Tensor:
    angles = torch.deg2rad(torch.tensor(degrees, dtype=torch.float64))
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def half_squared(degrees: float) -> float:
    """½ d² of two points on a circle that are so many degrees apart."""
    return 1 - math.cos(math.radians(degrees))


def test_pairs_beyond_the_margin_are_no_part_of_the_active_average() -> None:
    z, labels = on_a_circle(0, 20, 50, 180, 210, 285), torch.tensor([0, 0, 1, 2, 2, 3])
    pulled = half_squared(20) + half_squared(30)  # two pairs
    pushed = (0.5 - half_squared(50)) + (
        0.5 - half_squared(30)
    )  # two of thirteen: a margin of 1 is 60 degrees
    assert float(contrastive_loss(z, labels, margin=1.0)) == pytest.approx(pulled / 2 + pushed / 2)
    over_all = contrastive_loss(z, labels, margin=1.0, reduction="all")
    assert float(over_all) == pytest.approx(pulled / 2 + pushed / 13)


def test_an_image_and_its_copy_are_no_part_of_the_active_average() -> None:
    z, labels = on_a_circle(0, 20, 20, 50), torch.tensor([0, 0, 0, 1])
    pushed = ((0.5 - half_squared(50)) + 2 * (0.5 - half_squared(30))) / 3
    found = contrastive_loss(z, labels, margin=1.0)
    assert float(found) == pytest.approx(half_squared(20) + pushed)
    over_all = contrastive_loss(z, labels, margin=1.0, reduction="all")
    assert float(over_all) == pytest.approx(2 / 3 * half_squared(20) + pushed)


@both_reductions
@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3]])
def test_one_kind_of_pair_missing_is_finite(labels: list[int], reduction: str) -> None:
    z = torch.randn(4, 3, requires_grad=True)
    loss = contrastive_loss(z, torch.tensor(labels), margin=0.7, reduction=reduction)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(z.grad).all()


def test_no_active_negative_leaves_the_attraction() -> None:
    z, labels = on_a_circle(0, 20, 180, 200).requires_grad_(), torch.tensor([0, 0, 1, 1])
    loss = contrastive_loss(z, labels, margin=0.7)
    assert float(loss.detach()) == pytest.approx(half_squared(20))
    (gradient,) = torch.autograd.grad(loss, z)
    (over_all,) = torch.autograd.grad(contrastive_loss(z, labels, margin=0.7, reduction="all"), z)
    torch.testing.assert_close(gradient, over_all)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("dim", [3, 512])
def test_equal_embeddings_are_pushed_and_not_pulled(dim: int, dtype: torch.dtype) -> None:
    """Rounding puts their cosines on both sides of 1, which must not decide about what is averaged."""
    point = torch.randn(dim, generator=torch.Generator().manual_seed(0), dtype=dtype)
    z = (torch.arange(1, 21, dtype=dtype)[:, None] * point).requires_grad_()  # other lengths, one direction
    loss = contrastive_loss(z, torch.arange(20) % 4, margin=0.7)
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.5 * 0.7**2, rel=1e-5)
    assert torch.isfinite(z.grad).all()
    alone = contrastive_loss(z, torch.zeros(20, dtype=torch.long), margin=0.7)
    assert float(alone.detach()) == 0


@both_reductions
def test_zero_embedding_has_a_finite_gradient(reduction: str) -> None:
    z = torch.zeros(4, 3, requires_grad=True)
    contrastive_loss(z, torch.tensor([0, 0, 1, 1]), margin=0.7, reduction=reduction).backward()
    assert torch.isfinite(z.grad).all()


def test_usable_in_a_plain_loop() -> None:
    """A few steps of any optimiser on a bare tensor: classes end up apart."""
    torch.manual_seed(0)
    z = torch.randn(20, 3, requires_grad=True)
    labels = torch.arange(20) % 4
    optimizer = torch.optim.Adam([z], lr=0.1)
    first = contrastive_loss(z, labels, margin=1.0).item()
    for _ in range(60):
        optimizer.zero_grad()
        loss = contrastive_loss(z, labels, margin=1.0)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.1 * first


@both_reductions
def test_compiles_without_graph_breaks(reduction: str) -> None:
    explained = torch._dynamo.explain(lambda z, y: contrastive_loss(z, y, margin=0.7, reduction=reduction))(
        torch.randn(8, 4), torch.arange(8) % 2
    )
    assert explained.graph_break_count == 0


def test_an_unknown_reduction_gets_a_sentence() -> None:
    with pytest.raises(InputError, match="no reduction 'mean'; accepted: active, all"):
        contrastive_loss(torch.ones(2, 2), torch.tensor([0, 0]), margin=0.7, reduction="mean")  # type: ignore[arg-type]
