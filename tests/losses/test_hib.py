"""The soft contrastive loss against a loop over pairs of images and of samples; the divergence against torch's."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Independent, Normal, kl_divergence

from doubtless.errors import InputError
from doubtless.losses import kl_to_standard_normal, soft_contrastive_loss


def by_loop(samples: Tensor, labels: Tensor, scale: float, shift: float) -> float:
    count, batch, _ = samples.shape
    positive, negative = [], []
    for i in range(batch):
        for j in range(i + 1, batch):
            chances = [
                1 / (1 + math.exp(scale * float((samples[k, i] - samples[other, j]).norm()) - shift))
                for k in range(count)
                for other in range(count)
            ]
            match = sum(chances) / count**2
            if labels[i] == labels[j]:
                positive.append(-math.log(match))
            else:
                negative.append(-math.log(1 - match))
    return sum(0.5 * sum(part) / len(part) for part in (positive, negative) if part)


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 4),
    batch=st.integers(1, 6),
    dim=st.integers(1, 4),
    classes=st.integers(1, 3),
    scale=st.floats(0.1, 3),
    shift=st.floats(-2, 3),
    seed=st.integers(0, 999),
)
def test_equals_the_loop(
    count: int, batch: int, dim: int, classes: int, scale: float, shift: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    samples = torch.randn(count, batch, dim, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (batch,), generator=generator)
    expected = by_loop(samples, labels, scale, shift)
    found = soft_contrastive_loss(samples, labels, scale=scale, shift=shift)
    assert float(found) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    single = soft_contrastive_loss(samples.float(), labels, scale=scale, shift=shift)
    assert float(single) == pytest.approx(expected, rel=1e-4, abs=1e-5)


def test_gradcheck() -> None:
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(3, 5, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    scale, shift = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (1.3, 0.4))
    labels = torch.tensor([0, 0, 1, 1, 2])
    assert torch.autograd.gradcheck(
        lambda z, a, b: soft_contrastive_loss(z, labels, scale=a, shift=b), (samples, scale, shift)
    )


@pytest.mark.parametrize("labels", [[0, 0, 0, 0], [0, 1, 2, 3], [0, 0, 1, 1]])
def test_gradient_is_finite_at_distance_zero_and_without_a_kind_of_pair(labels: list[int]) -> None:
    samples = torch.randn(1, 1, 3).repeat(4, 4, 1).requires_grad_()  # all samples of all images are one point
    loss = soft_contrastive_loss(samples, torch.tensor(labels), scale=2.0, shift=1.0)
    loss.backward()
    assert torch.isfinite(loss)
    assert torch.isfinite(samples.grad).all()


def test_far_negatives_and_far_positives_stay_finite() -> None:
    """A probability of e^-2000 underflows; its logarithm must not."""
    samples = torch.tensor([[[0.0], [2000.0], [0.0]]], requires_grad=True)
    loss = soft_contrastive_loss(samples, torch.tensor([0, 0, 1]), scale=1.0, shift=0.0)
    loss.backward()
    assert loss.item() == pytest.approx(0.5 * 2000 + 0.5 * math.log(2) / 2, rel=1e-5)
    assert torch.isfinite(samples.grad).all()


def test_rare_positives_weigh_as_much_as_all_negatives() -> None:
    """More negatives at the same distance do not change the loss."""
    few = torch.tensor([[[0.0], [1.0], [10.0]]])
    many = torch.tensor([[[0.0], [1.0], *[[10.0]] * 6]])
    labels = torch.tensor([0, 0, 1, *range(2, 7)])
    found = [
        soft_contrastive_loss(z, labels[: z.shape[1]], scale=0.5, shift=1.0)
        - 0.5 * negatives(z, labels[: z.shape[1]])
        for z in (few, many)
    ]
    torch.testing.assert_close(found[0], found[1])


def negatives(samples: Tensor, labels: Tensor) -> Tensor:
    """Mean −log(1 − p) over negative pairs."""
    z = samples[0, :, 0]
    logit = 1.0 - 0.5 * (z[:, None] - z[None, :]).abs()
    mask = (labels[:, None] != labels[None, :]).triu(1)
    return -torch.nn.functional.logsigmoid(-logit)[mask].mean()


def test_samples_that_disagree_cost_less_than_their_mean_loss() -> None:
    """The logarithm is of the mean probability: hedging pays."""
    samples = torch.tensor([[[0.0], [0.0]], [[0.0], [9.0]]])  # the second image: here or far away
    labels = torch.tensor([0, 0])
    hedged = soft_contrastive_loss(samples, labels, scale=1.0, shift=0.0)
    each = [soft_contrastive_loss(samples[k : k + 1], labels, scale=1.0, shift=0.0) for k in range(2)]
    assert float(hedged) < float(sum(each) / 2) - 0.5


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 4), dim=st.integers(1, 6), seed=st.integers(0, 999), size=st.floats(0.01, 5))
def test_divergence_is_that_of_torch(n: int, dim: int, seed: int, size: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    mean, log_variance = (
        size * torch.randn(n, dim, generator=generator, dtype=torch.float64) for _ in range(2)
    )
    own = Independent(Normal(mean, (log_variance / 2).exp()), 1)
    prior = Independent(Normal(torch.zeros_like(mean), torch.ones_like(mean)), 1)
    found = kl_to_standard_normal(mean, log_variance)
    torch.testing.assert_close(found, kl_divergence(own, prior))
    assert bool((found >= 0).all())


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"shape \(K, 3, D\) for 3 labels, got \(8, 4, 2\)"):
        soft_contrastive_loss(torch.zeros(8, 4, 2), torch.arange(3), scale=1.0, shift=0.0)


def test_compiles_without_graph_breaks() -> None:
    explained = torch._dynamo.explain(lambda z, y: soft_contrastive_loss(z, y, scale=1.0, shift=0.0))(
        torch.randn(2, 8, 4), torch.arange(8) % 2
    )
    assert explained.graph_break_count == 0
