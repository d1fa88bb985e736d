"""The contrastive loss against a loop over pairs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from doubtless.losses import contrastive_loss


def by_loop(z: Tensor, labels: Tensor, margin: float, weight: float) -> float:
    positive, negative = [], []
    for i in range(len(z)):
        for j in range(i + 1, len(z)):
            d = (z[i] / z[i].norm() - z[j] / z[j].norm()).norm()
            if labels[i] == labels[j]:
                positive.append(0.5 * d**2)
            else:
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
    seed=st.integers(0, 1000),
)
def test_equals_the_loop(batch: int, dim: int, classes: int, margin: float, weight: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(batch, dim, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (batch,), generator=generator)
    found = contrastive_loss(z, labels, margin=margin, negative_weight=weight)
    assert float(found) == pytest.approx(by_loop(z, labels, margin, weight), abs=1e-9)


def test_gradcheck() -> None:
    z = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    assert torch.autograd.gradcheck(lambda z: contrastive_loss(z, labels, margin=1.3), z)


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3]])
def test_one_kind_of_pair_missing_is_finite(labels: list[int]) -> None:
    z = torch.randn(4, 3, requires_grad=True)
    loss = contrastive_loss(z, torch.tensor(labels), margin=0.7)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(z.grad).all()


def test_zero_embedding_has_a_finite_gradient() -> None:
    z = torch.zeros(4, 3, requires_grad=True)
    contrastive_loss(z, torch.tensor([0, 0, 1, 1]), margin=0.7).backward()
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


def test_compiles_without_graph_breaks() -> None:
    explained = torch._dynamo.explain(lambda z, y: contrastive_loss(z, y, margin=0.7))(
        torch.randn(8, 4), torch.arange(8) % 2
    )
    assert explained.graph_break_count == 0
