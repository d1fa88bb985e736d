"""Pairs that triplets choose: against three loops and a miner, without any, and inside the loss."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pytorch_metric_learning.miners import TripletMarginMiner
from pytorch_metric_learning.utils.loss_and_miner_utils import convert_to_pairs
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import normalize

from doubtless.errors import InputError
from doubtless.losses.contrastive import chosen_pairs, contrastive_loss
from tests.reference.pairs import pairs_of_triplets

KINDS = ("semi-hard", "hard")


def a_batch(seed: int, batch: int = 24, dim: int = 3, classes: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (batch,), generator=generator)
    centres = torch.randn(classes, dim, generator=generator, dtype=torch.float64)
    noise = torch.randn(batch, dim, generator=generator, dtype=torch.float64)
    return centres[labels] + noise, labels


def chosen_of(z: Tensor, labels: Tensor, kind: str, margin: float) -> Tensor:
    unit = normalize(z, dim=-1)
    return chosen_pairs(unit @ unit.T, labels, pairs=kind, margin=margin)


@settings(max_examples=80, deadline=None)
@given(
    batch=st.integers(1, 12),
    dim=st.integers(2, 5),
    classes=st.integers(1, 5),
    margin=st.floats(0.05, 1.5),
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 1000),
)
def test_equals_three_loops(batch: int, dim: int, classes: int, margin: float, kind: str, seed: int) -> None:
    z, labels = a_batch(seed, batch, dim, classes)
    found = chosen_of(z, labels, kind, margin)
    expected = pairs_of_triplets(normalize(z, dim=-1), labels, kind=kind, margin=margin)
    assert torch.equal(found, expected)
    assert torch.equal(found, found.T)
    assert not found.diagonal().any()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("margin", [0.1, 0.7])
def test_equals_the_miner(kind: str, margin: float) -> None:
    shares = []
    for seed in range(8):
        z, labels = a_batch(seed)
        miner = TripletMarginMiner(margin=margin, type_of_triplets=kind.replace("-", ""))
        anchor, positive, other, negative = convert_to_pairs(miner(z, labels), labels)
        expected = torch.zeros(len(z), len(z), dtype=torch.bool)
        expected[anchor, positive] = expected[other, negative] = True
        found = chosen_of(z, labels, kind, margin)
        assert torch.equal(found, expected | expected.T)
        shares.append(float(found.double().mean()))
    assert max(shares) > min(shares) > 0


def test_all_are_all_but_the_diagonal() -> None:
    z, labels = a_batch(0)
    assert torch.equal(chosen_of(z, labels, "all", 0.7), ~torch.eye(24, dtype=torch.bool))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_averages_over_the_chosen_pairs(kind: str, dtype: torch.dtype) -> None:
    z, labels = a_batch(3)
    z, unit = z.to(dtype), normalize(z, dim=-1)
    chosen, margin, weight = pairs_of_triplets(unit, labels, kind=kind, margin=0.4), 0.4, 0.3
    pulled, pushed = [], []
    for i, j in chosen.triu().nonzero().tolist():
        squared = float((unit[i] - unit[j]).square().sum())
        if labels[i] == labels[j]:
            pulled.append(0.5 * squared)
        else:
            pushed.append(0.5 * max(0.0, margin**2 - squared))
    assert min(len(pulled), len(pushed)) > 2
    inside = [value for value in pushed if value > 0]
    assert 0 < len(inside) < len(pushed)  # so that it matters which are averaged over
    for reduction, averaged in (("all", pushed), ("active", inside)):
        expected = 2 * (1 - weight) * sum(pulled) / len(pulled) + 2 * weight * sum(averaged) / len(averaged)
        found = contrastive_loss(
            z, labels, margin=margin, negative_weight=weight, pairs=kind, reduction=reduction
        )
        assert float(found) == pytest.approx(expected, rel=1e-5 if dtype == torch.float32 else 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_is_that_of_the_pairs(kind: str) -> None:
    """The choice is a constant: where it does not change, finite differences agree."""
    z, labels = a_batch(1, batch=8, classes=2)
    z.requires_grad_()
    for reduction in ("active", "all"):
        assert torch.autograd.gradcheck(
            lambda z, reduction=reduction: contrastive_loss(
                z, labels, margin=0.6, pairs=kind, reduction=reduction
            ),
            z,
        )


LONELY = {
    "one label": ([0, 0, 0, 0], "semi-hard"),
    "all labels differ": ([0, 1, 2, 3], "semi-hard"),
    "one label, hard": ([0, 0, 0, 0], "hard"),
    "all labels differ, hard": ([0, 1, 2, 3], "hard"),
    "in order by more than the margin": ([0, 0, 1, 1], "semi-hard"),
    "in order": ([0, 0, 1, 1], "hard"),
}


@pytest.mark.parametrize("case", LONELY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_a_triplet_loss_and_gradient_are_0(case: str, dtype: torch.dtype) -> None:
    labels, kind = LONELY[case]
    z = torch.tensor([[1, 0.1], [1, 0], [-1, 0.1], [-1, 0]], dtype=dtype, requires_grad=True)
    assert not chosen_of(z.detach(), torch.tensor(labels), kind, 0.7).any()
    loss = contrastive_loss(z, torch.tensor(labels), margin=0.7, pairs=kind)
    loss.backward()
    assert float(loss.detach()) == 0
    assert torch.equal(z.grad, torch.zeros_like(z))


def test_equal_points_are_hard_and_no_nan() -> None:
    z = torch.ones(4, 3, requires_grad=True)
    labels = torch.tensor([0, 0, 1, 1])
    assert int(chosen_of(z.detach(), labels, "hard", 0.7).sum()) == 12
    assert int(chosen_of(z.detach(), labels, "semi-hard", 0.7).sum()) == 0
    for start in (z, torch.zeros(4, 3, requires_grad=True)):
        contrastive_loss(start, labels, margin=0.7, pairs="hard").backward()
        assert torch.isfinite(start.grad).all()


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_read_back_and_nothing_is_cubic(kind: str) -> None:
    """Fake tensors have no values: waiting for one would raise. And 2,048³ booleans would be 8 GB."""
    with FakeTensorMode():
        z = torch.empty(64, 3, requires_grad=True)
        contrastive_loss(z, torch.zeros(64, dtype=torch.long), margin=0.7, pairs=kind).backward()
        assert z.grad is not None
    z, labels = torch.randn(2048, 3), torch.arange(2048) % 8
    assert chosen_of(z, labels, kind, 0.7).shape == (2048, 2048)


def test_compiles_without_graph_breaks() -> None:
    explained = torch._dynamo.explain(lambda z, y: contrastive_loss(z, y, margin=0.7, pairs="semi-hard"))(
        torch.randn(8, 4), torch.arange(8) % 2
    )
    assert explained.graph_break_count == 0


def test_an_unknown_choice_gets_a_sentence() -> None:
    with pytest.raises(InputError, match="no choice of pairs 'semihard'; did you mean 'semi-hard'"):
        contrastive_loss(torch.ones(2, 2), torch.tensor([0, 0]), margin=0.7, pairs="semihard")  # type: ignore[arg-type]
