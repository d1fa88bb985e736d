"""`loss.pairs` in a metric loss: what it computes, over draws too, and for which losses it is refused."""

from __future__ import annotations

import pytest
import torch

from doubtless.config import LossConfig
from doubtless.errors import InputError
from doubtless.losses.contrastive import contrastive_loss
from doubtless.methods.metric_loss import MetricLoss


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


@pytest.mark.parametrize("name", ["triplet", "NTXentLoss"])
def test_other_losses_refuse_pairs(name: str) -> None:
    MetricLoss(LossConfig(name=name), dim=3, classes=4)
    with pytest.raises(InputError, match=f"belongs to the contrastive loss, got loss '{name}'"):
        MetricLoss(LossConfig(name=name, pairs="hard"), dim=3, classes=4)
