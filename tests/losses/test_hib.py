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
from doubtless.losses.hib import fitted_match


def by_loop(samples: Tensor, labels: Tensor, scale: float, shift: float, weight: float = 1.0) -> float:
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
    shares = (1 / (1 + weight), weight / (1 + weight))
    return sum(
        share * sum(part) / len(part)
        for share, part in zip(shares, (positive, negative), strict=True)
        if part
    )


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 4),
    batch=st.integers(1, 6),
    dim=st.integers(1, 4),
    classes=st.integers(1, 3),
    scale=st.floats(0.1, 3),
    shift=st.floats(-2, 3),
    weight=st.sampled_from([1.0, 0.3, 40.0]),
    seed=st.integers(0, 999),
)
def test_equals_the_loop(
    count: int, batch: int, dim: int, classes: int, scale: float, shift: float, weight: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    samples = torch.randn(count, batch, dim, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (batch,), generator=generator)
    expected = by_loop(samples, labels, scale, shift, weight)
    options = {"scale": scale, "shift": shift, "negative_weight": weight}
    found = soft_contrastive_loss(samples, labels, **options)
    assert float(found) == pytest.approx(expected, rel=1e-9, abs=1e-12)
    single = soft_contrastive_loss(samples.float(), labels, **options)
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


def pairs_of(scale: float, shift: float, count: int = 20_000) -> tuple[Tensor, Tensor]:
    """Distances around 20, and matches drawn with the probability that scale and shift say."""
    generator = torch.Generator().manual_seed(0)
    distance = 20 + 4 * torch.randn(count, generator=generator, dtype=torch.float64)
    chance = (shift - scale * distance).sigmoid()
    return distance, torch.rand(count, generator=generator, dtype=torch.float64) < chance


@pytest.mark.parametrize("weight", [1.0, 30.0])
def test_the_fitted_match_has_the_least_loss(weight: float) -> None:
    """Against the loss itself, of one sample per image, where every change of either number makes it larger."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(40) % 8
    centres = 6 * torch.randn(8, 12, generator=generator, dtype=torch.float64)
    points = centres[labels] + 5 * torch.randn(40, 12, generator=generator, dtype=torch.float64)
    pair = torch.ones(40, 40, dtype=torch.bool).triu(1)
    same = (labels[:, None] == labels)[pair]
    found = fitted_match(torch.cdist(points, points)[pair], same, negative_weight=weight)
    assert found is not None

    def loss(scale: float, shift: float) -> float:
        return float(
            soft_contrastive_loss(points[None], labels, scale=scale, shift=shift, negative_weight=weight)
        )

    least = loss(*found)
    assert least < loss(1.3, 1.0)
    for scale in (0.9, 1.1):
        for shift in (0.9, 1.1):
            assert least < loss(found.scale * scale, found.shift * shift)


def test_the_fitted_match_finds_what_pairs_were_drawn_with() -> None:
    distance, same = pairs_of(0.5, 9.0)
    share = float((~same).sum() / same.sum())  # so that every pair counts alike
    found = fitted_match(distance.float(), same, negative_weight=share)
    assert found == pytest.approx((0.5, 9.0), rel=0.05)
    # one kind weighing k times as much is a probability with k times the odds
    heavier = fitted_match(distance, same, negative_weight=3 * share)
    assert heavier is not None
    assert heavier.shift == pytest.approx(found.shift - math.log(3), abs=0.1)
    scaled = fitted_match(10 * distance, same, negative_weight=share)
    assert scaled == pytest.approx((found.scale / 10, found.shift), rel=1e-4)


def test_a_match_that_cannot_be_fitted() -> None:
    near, far = torch.tensor([1.0, 1.1, 2.0, 2.1]), torch.tensor([True, True, False, False])
    assert fitted_match(near, torch.ones(4, dtype=torch.bool)) is None
    assert fitted_match(near, torch.zeros(4, dtype=torch.bool)) is None
    assert fitted_match(torch.ones(4), far) is None
    assert fitted_match(near, ~far) is None  # matches are farther than others
    for weight in (0.01, 1.0, 1000.0):
        perfect = fitted_match(near, far, negative_weight=weight)  # no least loss without the pull
        assert perfect is not None
        assert 0 < perfect.scale < 100
        assert math.isfinite(perfect.shift)
