"""What of a device a training uses without being asked: half precision and compilation, where they pay.

More of it lies elsewhere: the channels-last layout in `doubtless.models.encoder`, recorded steps in
`doubtless.training.graphed`, augmentation in `doubtless.data.device_augmentation`.
"""

from __future__ import annotations

from typing import Literal

import torch

from doubtless.config import Config
from doubtless.models.small import SMALL

Precision = Literal["32", "bf16"]
COMPILE_PAYS_FROM = 1_000_000
"""Images of 224×224 shown in all: compiling takes most of a minute, and saves a tenth to a fifth of a step."""


def best_device(accelerator: str) -> torch.device:
    """The device that `training.accelerator` means here."""
    use_gpu = accelerator != "cpu" and torch.cuda.is_available()
    return torch.device("cuda" if use_gpu else "cpu")


def device_name(device: torch.device) -> str:
    """What a table says it was measured on: ``NVIDIA H200``, ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def precision_of(config: Config, device: torch.device) -> Precision:
    """What `training.precision` means on a device; auto is bf16 on GPUs that have it, but for the small networks.

    Losses, heads' distances and curvatures are computed in 32 bits either way, and so is every embedding of a
    trained network. Those of LAM (`SMALL`) gain little: they wait for memory and for launches.
    """
    asked = config.training.precision
    if asked != "auto":
        return asked
    fast = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bf16" if fast and not _is_small(config) and not config.model.freeze else "32"


def compiles(config: Config, device: torch.device, *, images: int, size: int) -> bool:
    """Whether the backbone is compiled: as `training.compile` says, else on a GPU if the training is long."""
    asked = config.training.compile
    if asked is not None:
        return asked
    shown = images * config.training.epochs * (size / 224) ** 2
    trained = not _is_small(config) and not config.model.freeze
    return device.type == "cuda" and trained and shown >= COMPILE_PAYS_FROM


def _is_small(config: Config) -> bool:
    return config.model.backbone in SMALL
