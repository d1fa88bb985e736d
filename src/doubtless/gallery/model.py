"""The model whose embeddings an index holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from doubtless.errors import InputError
from doubtless.index.base import Index
from doubtless.ingest.create import recorded_run
from doubtless.runs.model import must_match

if TYPE_CHECKING:
    from doubtless.runs.model import Model


def load_model(run: Path) -> Model:
    """A run's model, on the device its configuration allows."""
    import doubtless
    from doubtless.runs.model import best_device

    model = doubtless.load(run)
    return model.to(best_device(model.method.config.training.accelerator))


def model_of(index: Index, run: Path | None = None) -> Model | None:
    """Of the run named, or of the one that the index remembers; None for an index of vectors without one."""
    path = run or recorded_run(index)
    if path is None:
        return None
    if run is None and not path.is_dir():
        raise InputError(
            f"{index.path} was made by the model of {path}, which is not there; name it with --model."
        )
    model = load_model(path)
    must_match(model.method, index.model, where=index.path)
    return model


def needed_model(index: Index, run: Path | None = None) -> Model:
    """The same for who cannot do without."""
    model = model_of(index, run)
    if model is None:
        raise InputError(
            f"{index.path} does not say which model made its embeddings; name a run with --model, or give vectors."
        )
    return model
