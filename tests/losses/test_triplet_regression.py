"""Triplet regression against its definition, in a batch against a loop."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from doubtless.losses import batch_triplet_regression_loss, triplet_loss, triplet_regression_loss


def test_mean_over_the_three_images() -> None:
    variances = [0.5, 1.0, 4.0]
    logs = [torch.tensor([value]).double().log() for value in variances]
    expected = sum(0.3 / (2 * v) + 0.5 * torch.tensor(v).double().log() for v in variances) / 3
    torch.testing.assert_close(triplet_regression_loss(torch.tensor([0.3]).double(), *logs)[0], expected)


def test_least_where_the_variance_is_the_violation() -> None:
    log = torch.linspace(-4, 2, 601)
    loss = triplet_regression_loss(torch.full_like(log, 0.3), log, log, log)
    assert float(log[loss.argmin()].exp()) == pytest.approx(0.3, rel=0.02)


@settings(max_examples=40, deadline=None)
@given(
    batch=st.integers(1, 8),
    classes=st.integers(1, 3),
    mining=st.sampled_from(["semi-hard", "hard"]),
    seed=st.integers(0, 500),
)
def test_batch_equals_the_loop(batch: int, classes: int, mining: str, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    points = torch.randn(batch, 4, generator=generator, dtype=torch.float64)
    log = torch.randn(batch, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (batch,), generator=generator)
    distance = (points[:, None] - points[None]).square().sum(-1)
    losses = []
    for a in range(batch):
        negatives = sorted(
            (n for n in range(batch) if labels[n] != labels[a]), key=lambda n: float(distance[a, n])
        )
        for p in range(batch):
            if p == a or labels[p] != labels[a] or not negatives:
                continue
            farther = [n for n in negatives if distance[a, n] > distance[a, p]]
            n = negatives[0] if mining == "hard" else (farther or negatives[-1:])[0]
            violation = triplet_loss(points[a], points[p], points[n], margin=0.5)
            if violation > 0:
                losses.append(float(triplet_regression_loss(violation, log[a], log[p], log[n])))
    found = batch_triplet_regression_loss(points, log, labels, margin=0.5, mining=mining)  # type: ignore[arg-type]
    assert float(found) == pytest.approx(sum(losses) / max(len(losses), 1), abs=1e-9)


def test_gradcheck_and_no_triplets() -> None:
    points = torch.randn(
        6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True
    )
    log = torch.zeros(6, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1, 2, 2])
    assert torch.autograd.gradcheck(
        lambda z, s: batch_triplet_regression_loss(z, s, labels, margin=0.7), (points, log)
    )
    loss = batch_triplet_regression_loss(points, log, torch.zeros(6), margin=0.2)
    loss.backward()
    assert loss.item() == 0
    assert torch.isfinite(points.grad).all()
