"""The model that belongs to an index that is served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch

from doubtless.errors import InputError
from doubtless.retrieval.creating import recorded_run
from doubtless.retrieval.fingerprint import must_match
from doubtless.retrieval.interface import AnyIndex

if TYPE_CHECKING:
    from doubtless.api import Model


def open_model(index: AnyIndex, run: Path | None) -> Model | None:
    """Of the run named, or of the one that the index remembers; None for an index of vectors without one."""
    import doubtless

    path = run or recorded_run(index)
    if path is None:
        return None
    if run is None and not path.is_dir():
        raise InputError(
            f"{index.path} was made by the model of {path}, which is not there; name it with --model."
        )
    model = doubtless.load(path)
    must_match(model.method, index.model, where=index.path)
    accelerator = model.method.config.training.accelerator
    return model.to("cuda" if accelerator != "cpu" and torch.cuda.is_available() else "cpu")
