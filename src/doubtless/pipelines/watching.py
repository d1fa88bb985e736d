"""`MeasureRetrieval`: a Lightning callback, retrieval and doubt measured while somebody else's module trains."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.pipelines.streaming import RetrievalMeasures

Embed = Callable[[LightningModule, Any], tuple[Embedding | Tensor, Tensor]]
"""A module and a batch → embeddings (b, D) and labels (b,)."""


def call_with_images(module: LightningModule, batch: Any) -> tuple[Embedding | Tensor, Tensor]:
    """What `module(images)` gives for a batch of (images, labels)."""
    images, labels = batch[0], batch[1]
    return module(images), labels


class MeasureRetrieval(Callback):
    """Embeds batches after every so many epochs and logs `doubtless/recall@1`, `doubtless/error_auroc` and more.

    batches   what is measured: a loader of batches, of data that is not trained on
    embed     how a batch is embedded; by default `module(batch[0])`, with labels in batch[1]
    every     epochs

    Where embeddings are distributions (`doubtless.Embedding`) their own uncertainty is measured, else the distance
    to the first hit. The module is left as it was: its mode, its gradients, its random numbers.
    """

    def __init__(
        self,
        batches: Iterable[Any],
        *,
        embed: Embed = call_with_images,
        every: int = 1,
        prefix: str = "doubtless/",
    ) -> None:
        if every < 1:
            raise InputError(f"Measuring happens every 1 epoch or more, got {every}.")
        self.batches, self.embed, self.every, self.prefix = batches, embed, every, prefix
        self.history: list[dict[str, float]] = []
        """One row per measured epoch."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measures, and logs where the module's own figures go."""
        if (trainer.current_epoch + 1) % self.every:
            return
        values = self.measured(pl_module)
        self.history.append({"epoch": float(trainer.current_epoch), **values})
        pl_module.log_dict(
            {f"{self.prefix}{name}": value for name, value in values.items()}, rank_zero_only=True
        )

    def measured(self, module: LightningModule) -> dict[str, float]:
        """Name → value, now."""
        metric = RetrievalMeasures(sync_on_compute=False)  # every process sees the same batches
        training, devices = module.training, [module.device] if module.device.type == "cuda" else []
        module.eval()
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=devices):
                for batch in self.batches:
                    embedding, labels = self.embed(module, _moved(batch, module.device))
                    here = embedding.to("cpu") if isinstance(embedding, Embedding) else embedding.cpu()
                    metric.update(here, labels.cpu())
        finally:
            module.train(training)
        return {name: float(value) for name, value in metric.compute().items()}


def _moved(batch: Any, device: torch.device) -> Any:
    """A batch on the module's device: tensors, and lists, tuples and dicts of them."""
    from lightning.fabric.utilities import move_data_to_device

    return move_data_to_device(batch, device)
