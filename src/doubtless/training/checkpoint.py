"""Checkpoints that are whole or not there: written atomically, read as tensors and plain values only."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from doubtless.files import atomic_writer
from doubtless.training.run import read_checkpoint


class AtomicCheckpoints(TorchCheckpointIO):
    """Write, fsync, rename: a full disk or a crash leaves the previous checkpoint as it was."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None
    ) -> None:
        # Into memory first: torch hides a failed write behind an error of its own.
        whole = io.BytesIO()
        torch.save(checkpoint, whole)
        with atomic_writer(path) as file:
            file.write(whole.getbuffer())

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        return read_checkpoint(Path(path))
