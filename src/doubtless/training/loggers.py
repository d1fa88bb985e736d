"""Where the figures of every epoch go beside `log.csv`: Lightning's loggers, by the key `training.loggers`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger

from doubtless.config import LoggerName
from doubtless.errors import InputError

NEEDS: dict[LoggerName, tuple[str, ...]] = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
}
"""Packages of which one must be installed."""
PROJECT = "doubtless"


def must_be_installed(names: Sequence[LoggerName]) -> None:
    """Refuses loggers whose package is missing, before anything is trained."""
    for name in names:
        if not any(find_spec(package) is not None for package in NEEDS[name]):
            raise InputError(
                f"training.loggers names {name}, and its package is not installed: pip install {NEEDS[name][0]}."
            )


def loggers_of(names: Sequence[LoggerName], folder: Path) -> list[Logger]:
    """Loggers of a run. Files go into its folder; where else, the packages' own environment variables say.

    tensorboard   FOLDER/tensorboard
    wandb         project WANDB_PROJECT or doubtless, offline with WANDB_MODE=offline
    mlflow        MLFLOW_TRACKING_URI, else FOLDER/mlflow.db; experiment MLFLOW_EXPERIMENT_NAME or doubtless
    """
    must_be_installed(names)
    return [_logger(name, folder) for name in dict.fromkeys(names)]


def _logger(name: LoggerName, folder: Path) -> Logger:
    made: Any
    if name == "tensorboard":
        from lightning.pytorch.loggers import TensorBoardLogger

        made = TensorBoardLogger(folder, name="", version="tensorboard")
    elif name == "wandb":
        from lightning.pytorch.loggers import WandbLogger

        made = WandbLogger(
            name=folder.name, save_dir=folder, project=os.environ.get("WANDB_PROJECT") or PROJECT
        )
    else:
        from lightning.pytorch.loggers import MLFlowLogger

        made = MLFlowLogger(
            experiment_name=os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT,
            run_name=folder.name,
            tracking_uri=os.environ.get("MLFLOW_TRACKING_URI")
            or f"sqlite:///{folder.resolve() / 'mlflow.db'}",
        )
    logger: Logger = made
    return logger
