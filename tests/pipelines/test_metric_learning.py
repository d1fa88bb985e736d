"""Our losses and pairs in pytorch-metric-learning's own trainer, and its losses and miners in ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from pytorch_metric_learning import losses, miners, trainers
from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import doubtless
from doubtless.errors import InputError
from doubtless.losses import batch_triplet_loss, contrastive_loss
from doubtless.losses.proxy import ProxyLoss
from doubtless.pipelines.metric_learning import ChosenPairsMiner, LossForTrainers


def blobs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(256) % 8
    return torch.randn(8, 12, generator=generator)[labels] * 0.5 + torch.randn(
        256, 12, generator=generator
    ), labels


def precision(model: nn.Module) -> float:
    points, labels = blobs()
    calculator = AccuracyCalculator(include=("precision_at_1",), k=1, device=torch.device("cpu"))
    with torch.no_grad():
        return float(calculator.get_accuracy(model(points), labels)["precision_at_1"])


def trained(loss: nn.Module, miner: nn.Module | None = None) -> tuple[float, float]:
    """precision@1 before and after their trainer has used a loss, ours or theirs."""
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Linear(32, 8))
    before = precision(trunk)
    parameters = [*trunk.parameters(), *loss.parameters()]
    trainers.MetricLossOnly(
        models={"trunk": trunk},
        optimizers={"trunk_optimizer": torch.optim.Adam(parameters, lr=3e-3)},
        batch_size=64,
        loss_funcs={"metric_loss": loss},
        mining_funcs={} if miner is None else {"tuple_miner": miner},
        dataset=TensorDataset(*blobs()),
        dataloader_num_workers=0,
        data_device=torch.device("cpu"),
        end_of_iteration_hook=None,
    ).train(num_epochs=15)
    return before, precision(trunk.eval())


@pytest.mark.parametrize(
    "loss",
    [
        LossForTrainers(contrastive_loss, margin=0.7, pairs="semi-hard"),
        LossForTrainers(batch_triplet_loss, margin=0.2),
    ],
    ids=["contrastive", "triplet"],
)
def test_our_losses_train_in_their_trainer(loss: nn.Module) -> None:
    before, after = trained(loss)
    assert after > before + 0.1


def test_our_pairs_serve_their_loss() -> None:
    miner = ChosenPairsMiner("hard", margin=0.2, collect_stats=True)
    before, after = trained(losses.ContrastiveLoss(), miner)
    assert after > before + 0.1


def test_our_pairs_are_those_of_their_triplet_miner() -> None:
    points, labels = (one[:40] for one in blobs())
    for kind, theirs in (("semi-hard", "semihard"), ("hard", "hard")):
        anchor, positive, negative = miners.TripletMarginMiner(margin=0.2, type_of_triplets=theirs)(
            points, labels
        )
        a1, p, a2, n = ChosenPairsMiner(kind, margin=0.2)(points, labels)  # type: ignore[arg-type]

        def pairs(*sides: Tensor) -> set[frozenset[int]]:
            return {frozenset(pair) for pair in torch.stack(sides, 1).tolist()}

        assert pairs(a1, p) == pairs(anchor, positive)
        assert pairs(a2, n) == pairs(anchor, negative)


def test_a_module_with_parameters_and_what_is_refused() -> None:
    points, labels = blobs()
    module = LossForTrainers(nn.Linear(1, 1))
    assert len(list(module.parameters())) == 2
    with pytest.raises(InputError, match="pairs='semi-hard'"):
        LossForTrainers(contrastive_loss, margin=0.7)(points, labels, (labels, labels, labels))
    with pytest.raises(InputError, match="options already"):
        LossForTrainers(nn.Linear(1, 1), margin=0.7)
    with pytest.raises(InputError, match="within a batch"):
        ChosenPairsMiner()(points, labels, points[:3], labels[:3])
    assert issubclass(ProxyLoss, nn.Module)


def test_their_loss_and_miner_in_our_training(tiny_config: dict[str, Any], tmp_path: Path) -> None:
    config = {
        **tiny_config,
        "loss": {"name": "MultiSimilarityLoss", "miner": {"name": "MultiSimilarityMiner"}},
        "training": {**tiny_config["training"], "epochs": 2},
    }
    run = doubtless.train(config, tmp_path / "run", quiet=True)
    assert "MultiSimilarityLoss" in (run.path / "config.yaml").read_text()
    rows = (run.path / "log.csv").read_text().splitlines()
    assert len(rows) == 3
