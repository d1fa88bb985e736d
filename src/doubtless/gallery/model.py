"""The model whose embeddings an index holds, opened when it is first needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Union

from doubtless.errors import DoubtlessError, InputError
from doubtless.index.backends import folder_beside
from doubtless.index.base import Index
from doubtless.index.settings import KEPT_MODEL, MODEL
from doubtless.registry import names_network

if TYPE_CHECKING:
    from torch import nn

    from doubtless.runs.model import Model

ModelLike = Union["Model", "nn.Module", str, Path]
"""A model, a network, or the place or name of one: what `doubtless.runs.names.open_model` takes."""


class ModelOf:
    """The model of an index: the one that was named, or the one that the index remembers."""

    def __init__(self, index: Index, named: ModelLike | None = None) -> None:
        self.index, self.named = index, named
        self._model: Model | None = None

    def found(self) -> Model | None:
        """None for an index of vectors that remembers none; one of another fingerprint is refused."""
        if self._model is None:
            place = _place_of(self.index) if self.named is None else self.named
            if place is None:
                return None
            if self.named is None and isinstance(place, Path) and not place.exists():
                raise InputError(
                    f"{self.index.path} was made by the model of {place}, which is not there; name it with --model."
                )
            from doubtless.runs.model import must_match

            model = opened(place)
            must_match(model.method, self.index.model, where=self.index.path)
            self._model = model
        return self._model

    def needed(self) -> Model:
        """The same for who cannot do without."""
        model = self.found()
        if model is None:
            raise InputError(
                f"{self.index.path} does not say which model made its embeddings; name a run with --model, or "
                "give vectors."
            )
        return model


def _place_of(index: Index) -> str | Path | None:
    """Where a model is opened from: its copy in the gallery's own folder, or where it was when it embedded."""
    from doubtless.runs.pretrained import is_saved

    kept = folder_beside(index.path) / KEPT_MODEL
    return kept if is_saved(kept) else recorded_model(index)


def damage_of_model(index: Index) -> list[str]:
    """What is wrong with the copy of its model that a gallery keeps; nothing where it keeps none."""
    from doubtless.runs.model import must_match
    from doubtless.runs.pretrained import is_saved

    kept = folder_beside(index.path) / KEPT_MODEL
    if not kept.is_dir():
        return []
    if not is_saved(kept):
        return [f"The model in {kept} is not whole: a file of it is gone."]
    try:
        must_match(opened(kept).method, index.model, where=index.path)
    except DoubtlessError as error:
        return [f"The model in {kept} is not what was stored: {error}"]
    return []


def recorded_model(index: Index) -> str | Path | None:
    """Where the model is that an index remembers: a run's folder, or the name of a network."""
    attachment = index.attached(MODEL)
    place = None if attachment is None else attachment[1].get("run")
    if not place:
        return None
    return str(place) if names_network(str(place)) else Path(place)


def opened(model: ModelLike | None, *, weights: str | Path | None = None) -> Model:
    """A model wherever it is, on the device its configuration allows; None: the usual network."""
    from doubtless.runs.names import DEFAULT_MODEL, open_model

    return open_model(DEFAULT_MODEL if model is None else model, weights=weights)
