"""The triplet loss and its mining against loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from doubtless.losses import batch_triplet_loss, triplet_loss


def by_loop(z: Tensor, labels: Tensor, margin: float, mining: str) -> float:
    u = z / z.norm(dim=1, keepdim=True)
    violations = []
    for a in range(len(u)):
        negatives = sorted(
            float((u[a] - u[n]).square().sum()) for n in range(len(u)) if labels[n] != labels[a]
        )
        for p in range(len(u)):
            if p == a or labels[p] != labels[a] or not negatives:
                continue
            near = float((u[a] - u[p]).square().sum())
            farther = [d for d in negatives if d > near]
            chosen = negatives[0] if mining == "hard" else (farther[0] if farther else negatives[-1])
            violations.append(max(0.0, near - chosen + margin))
    positive = [v for v in violations if v > 0]
    return sum(positive) / max(len(positive), 1)


@settings(max_examples=60, deadline=None)
@given(
    batch=st.integers(1, 9),
    dim=st.integers(2, 5),
    classes=st.integers(1, 4),
    mining=st.sampled_from(["semi-hard", "hard"]),
    seed=st.integers(0, 1000),
)
def test_equals_the_loop(batch: int, dim: int, classes: int, mining: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(batch, dim, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (batch,), generator=generator)
    found = batch_triplet_loss(z, labels, margin=0.2, mining=mining)  # type: ignore[arg-type]
    assert float(found) == pytest.approx(by_loop(z, labels, 0.2, mining), abs=1e-9)


def test_plain_triplets() -> None:
    a, p, n = torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])
    assert triplet_loss(a, p, n, margin=0.5).tolist() == [0.0]
    assert triplet_loss(a, n, p, margin=0.5).tolist() == [3.5]


@pytest.mark.parametrize("mining", ["semi-hard", "hard"])
def test_gradcheck(mining: str) -> None:
    z = torch.randn(6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    assert torch.autograd.gradcheck(lambda z: batch_triplet_loss(z, labels, margin=0.7, mining=mining), z)  # type: ignore[arg-type]


def test_one_class_gives_zero_and_a_finite_gradient() -> None:
    z = torch.randn(4, 3, requires_grad=True)
    loss = batch_triplet_loss(z, torch.zeros(4, dtype=torch.long), margin=0.2)
    loss.backward()
    assert loss.item() == 0
    assert torch.isfinite(z.grad).all()
