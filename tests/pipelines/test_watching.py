"""The callback beside a module that knows nothing of us, and the same figures as a measurement afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from doubtless import Embedding
from doubtless.errors import InputError
from doubtless.evaluation import EvaluationOptions, evaluate
from doubtless.pipelines.watching import MeasureRetrieval


class Foreign(LightningModule):
    """Somebody's classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.5), nn.ReLU(), nn.Linear(16, 4))
        self.modes: list[bool] = []

    def forward(self, images: Tensor) -> Tensor:
        return self.body(images)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        self.modes.append(self.training)
        return nn.functional.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def data(seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(128) % 4
    centers = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    return TensorDataset(centers[labels] + torch.randn(128, 6, generator=generator), labels)


def trained(folder: Path, *callbacks: Any, epochs: int = 4) -> Foreign:
    torch.manual_seed(0)
    module = Foreign()
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=CSVLogger(folder, name="", version=""),
        callbacks=list(callbacks),
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        log_every_n_steps=1,
    )
    trainer.fit(module, DataLoader(data(1), batch_size=32))
    return module


def test_retrieval_and_doubt_are_measured_and_logged(tmp_path: Path) -> None:
    watching = MeasureRetrieval(DataLoader(data(2), batch_size=50), every=2)
    module = trained(tmp_path, watching)
    assert [row["epoch"] for row in watching.history] == [1, 3]
    with torch.no_grad():
        points = Embedding.point(module.eval()(data(2).tensors[0]))
    options = EvaluationOptions(bootstrap=0, clusters=False)
    expected = evaluate(points, data(2).tensors[1], options=options)
    last = watching.history[-1]
    assert last["recall@1"] == pytest.approx(expected["recall@1"], abs=1e-6)
    assert last["map@r"] == pytest.approx(expected["map@r"], abs=1e-6)
    assert last["error_auroc"] == pytest.approx(expected.baselines["distance"]["error_auroc"].value, abs=1e-6)
    written = (tmp_path / "metrics.csv").read_text()
    assert "doubtless/recall@1" in written.splitlines()[0]


def test_the_training_is_the_same_as_without(tmp_path: Path) -> None:
    seen = trained(tmp_path / "a", MeasureRetrieval(DataLoader(data(2), batch_size=50)))
    unseen = trained(tmp_path / "b")
    assert all(seen.modes)
    for one, other in zip(seen.parameters(), unseen.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_distributions_bring_their_own_doubt(tmp_path: Path) -> None:
    def embed(module: LightningModule, batch: Any) -> tuple[Embedding, Tensor]:
        return Embedding.gaussian(module(batch["image"]), torch.ones(len(batch["label"]), 1)), batch["label"]

    images, labels = data(2).tensors
    batches = [{"image": images[:64], "label": labels[:64]}, {"image": images[64:], "label": labels[64:]}]
    watching = MeasureRetrieval(batches, embed=embed)
    trained(tmp_path, watching, epochs=1)
    assert watching.history[0]["error_auroc"] == pytest.approx(0.5)  # all variances alike: it knows nothing
    with pytest.raises(InputError, match="every 1 epoch"):
        MeasureRetrieval(batches, every=0)
