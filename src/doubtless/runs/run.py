"""A run: the folder that holds everything of one training, from configuration to report."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import nn

from doubtless.config import Config
from doubtless.data import Split
from doubtless.errors import FileError, InputError, RunError
from doubtless.files import read_json, reading, write_bytes, write_json, write_text
from doubtless.methods import DataSpec, Method, method_class
from doubtless.methods.configuration import load_config
from doubtless.models.backbones import PYTHON
from doubtless.registry import MODULE
from doubtless.runs.data import RunData
from doubtless.version import __version__

SCHEMA = 1


@dataclass(frozen=True)
class Run:
    """Paths and readers of a run folder.

    config.yaml  split.json  model.safetensors  model.json  last.ckpt  log.csv  timing.json  metrics.json
    report.html
    """

    path: Path

    @classmethod
    def create(cls, path: str | Path, config: Config) -> Run:
        """A new run folder with its configuration; one that exists is never overwritten."""
        run = cls(Path(path))
        if run.path.exists() and any(run.path.iterdir() if run.path.is_dir() else [run.path]):
            raise RunError(f"{path} exists already; name another folder, or continue it with --resume.")
        write_text(run.path / "config.yaml", config.to_yaml())
        return run

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """A run that exists, finished or not."""
        run = cls(Path(path))
        if not run.path.is_dir():
            raise RunError(f"There is no run folder {path}.")
        if not (run.path / "config.yaml").is_file():
            raise RunError(f"{path} is not a run: it has no config.yaml. `doubtless train` makes one.")
        return run

    @property
    def config(self) -> Config:
        """What the run was made with."""
        return load_config(self.path / "config.yaml")

    @property
    def split(self) -> Split:
        """Which images trained, validated and tested it."""
        return Split.load(self.path / "split.json")

    @property
    def checkpoint(self) -> Path:
        """Where Lightning's training state lies."""
        return self.path / "last.ckpt"

    @property
    def is_finished(self) -> bool:
        """Whether training came to its end and the model was saved."""
        return (self.path / "model.json").is_file()

    @property
    def log(self) -> list[dict[str, Any]]:
        """Rows of log.csv, numbers as numbers."""
        import csv

        file = self.path / "log.csv"
        if not file.is_file():
            return []
        with reading(file, "log of a training", kind=RunError), file.open() as lines:
            return [
                {key: float(value) for key, value in row.items() if value} for row in csv.DictReader(lines)
            ]

    def save_model(self, method: Method, *, choice: dict[str, Any] | None = None) -> None:
        """Weights first, then the description: a run with a model.json is complete.

        `choice` says which epoch the weights are of, and why, where epochs were trained.
        """
        state = {name: value.detach().cpu().contiguous() for name, value in method.state_dict().items()}
        write_bytes(
            self.path / "model.safetensors", save_safetensors(state, metadata={"schema": str(SCHEMA)})
        )
        write_json(
            self.path / "model.json",
            {
                "schema": SCHEMA,
                "doubtless": __version__,
                "method": method.name,
                "method_version": method.version,
                "data": method.spec.record(),
                "record": method.record(),
                "choice": choice,
            },
        )

    def load_method(self, *, encoder: nn.Module | None = None) -> Method:
        """The trained method, on the CPU, in evaluation mode; `encoder` is its network where it was an object."""
        if not self.is_finished:
            raise RunError(f"{self.path} has no finished model; continue it with `doubtless train --resume`.")
        about = self._about()
        if about.get("schema", 0) > SCHEMA:
            raise RunError(
                f"{self.path}/model.json has schema {about['schema']}, this doubtless {__version__} reads up to "
                f"{SCHEMA}; update doubtless (it was written by {about.get('doubtless', 'a newer one')})."
            )
        with reading(self.path, "run", kind=RunError, then="Train it again."):
            spec = DataSpec(**about["data"], backbone=encoder if self.has_network_of_others else None)
            method = method_class(self.config.method)(self._without_downloads(), spec)
            self.adopt(method)
            self._load_state(method)
        return method.eval()

    @property
    def has_network_of_others(self) -> bool:
        """Whether its network is an object, or made by an import path."""
        name = self.config.model.backbone
        return name == PYTHON or name.startswith(MODULE)

    def _about(self) -> dict[str, Any]:
        try:
            about = read_json(self.path / "model.json")
        except FileError as error:
            raise RunError(f"{error} Or train the run again.") from error
        if not isinstance(about, dict) or not isinstance(about.get("schema", 0), int):
            raise RunError(f"{self.path}/model.json is damaged; train again.")
        return about

    def adopt(self, method: Method) -> None:
        """Tells a method where its run is, and how the runs it is made of are opened."""
        method.folder = self.path
        method.load_run = functools.partial(load_if_finished, encoder=method.spec.backbone)

    def _without_downloads(self) -> Config:
        """The run's configuration less where the backbone came from: its weights are in the run."""
        config = self.config
        model = config.model.model_copy(update={"weights": None, "pretrained": False})
        return config.model_copy(update={"model": model})

    def _load_state(self, method: Method) -> None:
        path = self.path / "model.safetensors"
        try:
            method.load_state_dict(load_safetensors(path.read_bytes()))
        except FileNotFoundError:
            raise RunError(f"{self.path} has no model.safetensors; train it again.") from None
        except (SafetensorError, OSError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise RunError(f"{path} is damaged or of another model ({reason}); train it again.") from error


@dataclass(frozen=True)
class TrainedRun(Run):
    """A run that was just trained: its method, finished, in evaluation mode, and its data are still in memory."""

    method: Method = field(repr=False, compare=False)
    data: RunData = field(repr=False, compare=False)


def load_if_finished(path: Path, *, encoder: nn.Module | None = None) -> Method | None:
    """The trained method of a run, as `Run.load_method` gives it; None where there is no finished run."""
    run = Run(path)
    return run.load_method(encoder=encoder) if run.is_finished else None


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Lightning's training state, read as tensors and plain values only; damaged or newer files are a sentence."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise RunError(f"There is no checkpoint {path} to resume; start without --resume.") from None
    except Exception as error:  # zip, zlib and torch each raise their own for a truncated file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(
            f"{path} is damaged and cannot be resumed ({reason}); start again elsewhere."
        ) from error
    about = state.get("doubtless") if isinstance(state, dict) else None
    if not isinstance(about, dict) or not isinstance(about.get("schema"), int):
        raise RunError(f"{path} is not a checkpoint of doubtless.")
    if about["schema"] > SCHEMA:
        raise RunError(
            f"{path} has schema {about['schema']}, this doubtless {__version__} reads up to "
            f"{SCHEMA}; update doubtless to resume it."
        )
    return state


def same_config(run: Run, config: Config) -> bool:
    """Refuses to resume a run with another configuration than it began with; true where it has more epochs."""
    before, now = run.config.to_dict(), config.to_dict()
    epochs = before["training"]["epochs"], now["training"]["epochs"]
    if epochs[1] < epochs[0]:
        raise InputError(
            f"{run.path} began with {epochs[0]} epochs, and cannot be resumed with {epochs[1]}: accepted are as "
            "many or more."
        )
    before["training"]["epochs"] = epochs[1]
    before["training"]["timeout"] = now["training"]["timeout"]  # changes nothing of what comes out
    changed = [key for key in now if json.dumps(before.get(key)) != json.dumps(now[key])]
    if changed:
        raise InputError(
            f"{run.path} began with another configuration ({', '.join(changed)} differ); resume it as it was, or "
            "with more epochs."
        )
    return epochs[1] > epochs[0]
