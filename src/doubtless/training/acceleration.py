"""What of a device a training uses without being asked: half precision, where it pays.

More of it lies elsewhere: the channels-last layout in `doubtless.models.encoder`, recorded steps in
`doubtless.training.graphed`, augmentation in `doubtless.data.device_augmentation`.
"""

from __future__ import annotations

from typing import Literal

import torch

from doubtless.config import Config
from doubtless.models.small import SMALL

Precision = Literal["32", "bf16"]


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


def _is_small(config: Config) -> bool:
    return config.model.backbone in SMALL
