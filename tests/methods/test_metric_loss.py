"""Metric losses: `loss.pairs`, over draws too, and for which losses it is refused; losses of other packages."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from doubtless.config import LossConfig
from doubtless.errors import InputError
from doubtless.losses.contrastive import contrastive_loss
from doubtless.methods.metric_loss import LOSSES, MetricLoss


@pytest.mark.parametrize("pairs", ["all", "semi-hard", "hard"])
def test_pairs_reach_the_contrastive_loss(pairs: str) -> None:
    loss = MetricLoss(LossConfig(margin=0.6, negative_weight=0.4, pairs=pairs), dim=3, classes=4)
    draws = torch.randn(3, 16, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(16) % 4
    expected = [contrastive_loss(z, labels, margin=0.6, negative_weight=0.4, pairs=pairs) for z in draws]
    assert len({float(value) for value in expected}) == 3
    for z, value in zip(draws, expected, strict=True):
        torch.testing.assert_close(loss(z, labels), value)
    torch.testing.assert_close(loss.over_samples(draws, labels), torch.stack(expected).mean())


@pytest.mark.parametrize("pairs", ["all", "semi-hard"])
def test_the_reduction_reaches_the_contrastive_loss(pairs: str) -> None:
    draws = torch.randn(3, 16, 3, generator=torch.Generator().manual_seed(0))
    labels, found = torch.arange(16) % 4, []
    for reduction in ("active", "all"):
        loss = MetricLoss(LossConfig(margin=0.6, pairs=pairs, reduction=reduction), dim=3, classes=4)
        expected = [contrastive_loss(z, labels, margin=0.6, pairs=pairs, reduction=reduction) for z in draws]
        torch.testing.assert_close(loss(draws[0], labels), expected[0])
        found.append(loss.over_samples(draws, labels))
        torch.testing.assert_close(found[-1], torch.stack(expected).mean())
    assert float(found[0]) > float(found[1])
    unsaid = MetricLoss(LossConfig(margin=0.6, pairs=pairs), dim=3, classes=4)
    assert torch.equal(unsaid.over_samples(draws, labels), found[0])


@pytest.mark.parametrize("name", ["triplet", "NTXentLoss"])
def test_a_reduction_is_of_no_concern_to_other_losses(name: str) -> None:
    """A suite sets it once for all its rows."""
    embeddings, labels = torch.randn(16, 3), torch.arange(16) % 4
    found = [
        MetricLoss(LossConfig(name=name, reduction=reduction), dim=3, classes=4)(embeddings, labels)
        for reduction in ("active", "all")
    ]
    assert torch.equal(*found)


@pytest.mark.parametrize("name", ["triplet", "NTXentLoss"])
def test_other_losses_refuse_pairs(name: str) -> None:
    MetricLoss(LossConfig(name=name), dim=3, classes=4)
    with pytest.raises(InputError, match=f"belongs to the contrastive loss, got loss '{name}'"):
        MetricLoss(LossConfig(name=name, pairs="hard"), dim=3, classes=4)


def pull(embeddings: Tensor, labels: Tensor, *, margin: float = 1.0, power: int = 2) -> Tensor:
    """Distances to the mean, whatever the labels."""
    return margin * (embeddings - embeddings.mean(0)).abs().pow(power).mean()


class Proxies(nn.Module):
    """A loss with parameters, and a pool of things it was made with."""

    def __init__(self, dim: int, classes: int, scale: float = 1.0) -> None:
        super().__init__()
        self.proxies = nn.Parameter(torch.ones(classes, dim))
        self.scale = scale

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return self.scale * (embeddings - self.proxies[labels]).square().mean()


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOSSES, "_items", dict(LOSSES._items))
    LOSSES.register("pull", pull)
    LOSSES.register("proxies", Proxies)


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("name", ["pull", f"module:{__name__}.pull"])
def test_a_function_of_another_package_is_a_loss(name: str) -> None:
    embeddings, labels = torch.randn(6, 3), torch.arange(6) % 2
    loss = MetricLoss(LossConfig(name=name, margin=0.5, arguments={"power": 1}), dim=3, classes=2)
    torch.testing.assert_close(loss(embeddings, labels), pull(embeddings, labels, margin=0.5, power=1))
    draws = torch.stack([embeddings, 2 * embeddings])
    torch.testing.assert_close(
        loss.over_samples(draws, labels), torch.stack([loss(z, labels) for z in draws]).mean()
    )
    assert not loss.fixed_shapes


@pytest.mark.usefixtures("registered")
def test_a_class_is_given_the_sizes_and_trains_its_parameters() -> None:
    loss = MetricLoss(LossConfig(name="proxies", arguments={"scale": 3.0}), dim=3, classes=2)
    assert [tuple(value.shape) for value in loss.parameters()] == [(2, 3)]
    torch.testing.assert_close(loss(torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])), torch.tensor(3.0))


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("loss", "sentence"),
    [
        ({"name": "pull", "arguments": {"powr": 1}}, "'pull' takes margin, power, got powr"),
        ({"name": "pull", "miner": {"name": "MultiSimilarityMiner"}}, "loss.miner belongs to"),
        ({"name": "pull", "pairs": "hard"}, "belongs to the contrastive loss"),
        ({"name": "pul"}, "did you mean 'pull'"),
        ({"name": "proxies", "arguments": {"size": 1}}, "takes classes, dim, scale, got size"),
        (
            {"name": "contrastive", "arguments": {"power": 1}},
            "takes distance, margin, negative_weight, pairs, reduction, got power",
        ),
        ({"name": "module:os.sep"}, "must be a function"),
    ],
)
def test_a_loss_that_cannot_be_made_is_a_sentence(loss: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        MetricLoss(LossConfig(**loss), dim=3, classes=2)


@pytest.mark.parametrize("arguments", [{}, {"alpha": 16}])
@pytest.mark.parametrize("labels", [[0, 1, 2, 0, 3, 3], [1, 1, 1, 1, 1, 1]])
def test_proxy_anchor_does_the_same_work_for_every_batch(
    arguments: dict[str, Any], labels: list[int]
) -> None:
    """By our own function and with the proxies of its class: the same number, over draws too, also in a copy."""
    config = LossConfig(name="ProxyAnchorLoss", margin=0.2, arguments=arguments)
    torch.manual_seed(0)
    loss, others = MetricLoss(config, dim=5, classes=4), torch.tensor(labels)
    assert loss.fixed_shapes
    draws = torch.randn(3, 6, 5, requires_grad=True)
    for of in (loss, copy.deepcopy(loss)):
        with torch.no_grad():
            of.peer.proxies.mul_(1.1).add_(0.1)  # a copy has proxies of its own
        expected = torch.stack([of.peer(draw, others) for draw in draws])
        torch.testing.assert_close(of(draws[0], others), expected[0])
        torch.testing.assert_close(of.over_samples(draws, others), expected.mean())
        wanted = torch.autograd.grad(expected.mean(), [draws, of.peer.proxies])
        found = torch.autograd.grad(of.over_samples(draws, others), [draws, of.peer.proxies])
        torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "ProxyNCALoss"},
        {"miner": {"name": "BatchHardMiner"}},
        {"arguments": {"distance": {"name": "DotProductSimilarity"}}},
    ],
)
def test_proxy_anchor_with_parts_of_others_is_left_to_its_class(changed: dict[str, Any]) -> None:
    loss = MetricLoss(LossConfig(**{"name": "ProxyAnchorLoss"} | changed), dim=5, classes=4)
    assert not loss.fixed_shapes
    assert loss(torch.randn(6, 5), torch.arange(6) % 4).shape == ()
