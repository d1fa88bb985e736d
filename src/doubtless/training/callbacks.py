"""What Lightning calls beside the module: checkpoints that are whole or not there, and a bar over the epochs.

Checkpoints are written atomically and read as tensors and plain values only.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.plugins.io import TorchCheckpointIO
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from doubtless.distributed import rank
from doubtless.files import atomic_writer
from doubtless.runs.run import read_checkpoint
from doubtless.terminal import Terminal


class AtomicCheckpoints(TorchCheckpointIO):
    """Write, fsync, rename: a full disk or a crash leaves the previous checkpoint as it was."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        """Writes the whole state, or leaves the file as it was."""
        # Into memory first: torch hides a failed write behind an error of its own.
        whole = io.BytesIO()
        torch.save(checkpoint, whole)
        with atomic_writer(path) as file:
            file.write(whole.getbuffer())

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Reads tensors and plain values only."""
        return read_checkpoint(Path(path))


Item = TypeVar("Item")
SLOWEST = 3600.0  # seconds of steps that tell the time left: a CPU may not take two of them in half a minute


class EpochDisplay(Callback):
    """A bar for the whole training on a terminal; elsewhere one plain line per epoch."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.console = Terminal(stderr=True)
        self.progress: Progress | None = None
        self.task: Any = None

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Draws the bar, on a terminal."""
        if rank() != 0 or not self.console.is_terminal:
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[last]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.progress = Progress(*columns, console=self.console, speed_estimate_period=SLOWEST)
        steps = int(trainer.num_training_batches)
        self.task = self.progress.add_task(
            "training", total=self.epochs * steps, completed=trainer.current_epoch * steps, last=""
        )
        self.progress.start()

    def announce(self, sentence: str) -> None:
        """Says something before the training begins; nothing where there is nothing to say."""
        if sentence and rank() == 0:
            self.console.print(sentence, highlight=False, markup=False)

    def on_train_batch_end(self, trainer: Trainer, *arguments: Any, **named: Any) -> None:
        """Moves the bar on."""
        if self.progress is not None:
            self.progress.advance(self.task)

    def on_train_epoch_start(self, trainer: Trainer, module: LightningModule) -> None:
        """Shows the epoch before: Lightning calls this before the module's own epoch end."""
        self._show(module)

    def on_train_end(self, trainer: Trainer, module: LightningModule) -> None:
        """Shows the last epoch and takes the bar away."""
        self._show(module)
        self._stop()

    def on_exception(self, trainer: Trainer, module: LightningModule, exception: BaseException) -> None:
        """Takes the bar away."""
        self._stop()

    def bar(self, items: Iterable[Item], text: str, total: int | None = None) -> Iterator[Item]:
        """Something that takes a while within the training: a second bar below the first, gone when it is over."""
        if self.progress is None:
            yield from items
            return
        task = self.progress.add_task(text, total=total, last="")
        for item in items:
            yield item
            self.progress.advance(task)
        self.progress.remove_task(task)

    def _show(self, module: LightningModule) -> None:
        rows = getattr(module, "rows", [])
        if rank() != 0 or not rows:
            return
        line = describe(rows[-1])
        if self.progress is not None:
            self.progress.update(self.task, last=line)
        else:
            self.console.print(f"epoch {int(rows[-1]['epoch']) + 1}/{self.epochs}  {line}", highlight=False)

    def _stop(self) -> None:
        if self.progress is not None:
            self.progress.stop()
            self.progress = None


def describe(row: dict[str, float]) -> str:
    """Loss and validation of one epoch in a line."""
    shown = [(name, row[name]) for name in row if name == "train_loss" or name.startswith("validation_")]
    return "  ".join(
        f"{name.removeprefix('train_').replace('validation_', 'val ')} {value:.4f}" for name, value in shown
    )
