"""What embeds queries where that is another encoder than the one that embedded the items.

Two models of one space (text → image, sketch → photo), or vectors that somebody else has made. Cosines between
encoders are other ones than within: what was calibrated on one kind of queries says nothing of another kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from doubtless.calibration.sentence import Sentence
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery.model import ModelLike, opened
from doubtless.gallery.queries import embedding_of

if TYPE_CHECKING:
    from doubtless.data import Progress
    from doubtless.runs.model import Model

RECORD = "query_model"
"""Of a calibration: what embedded its queries, {"name", "place"}; not there: the gallery's own model."""
QueryModelLike = ModelLike | Callable[[Sequence[Any]], Any]
"""A model, its place or name, or a function from a list of whatever is asked to vectors (n, D)."""


class QueryModel:
    """An encoder of queries, opened when it is first needed.

    >>> import torch
    >>> QueryModel.of(lambda words: torch.tensor([[1.0, len(word)] for word in words])).embed(["leek"]).location
    tensor([[1., 4.]])
    """

    def __init__(self, named: QueryModelLike, name: str, place: str | None) -> None:
        self._named, self.name, self.place = named, name, place
        self._model: Model | None = None

    @classmethod
    def of(cls, named: QueryModelLike) -> QueryModel:
        """By its name, or the name of its class or function where it is given as an object."""
        if isinstance(named, str | Path):
            return cls(named, str(named), str(named))
        place = getattr(named, "place", None)
        kind = named if hasattr(named, "__qualname__") else type(named)
        return cls(named, place or f"{kind.__module__}.{kind.__qualname__}", place)

    @classmethod
    def recorded(cls, record: Mapping[str, Any] | None) -> QueryModel | None:
        """The one that a calibration was made for; None: the gallery's own model."""
        kept = (record or {}).get(RECORD)
        return None if kept is None else cls(kept["place"] or kept["name"], kept["name"], kept["place"])

    def __str__(self) -> str:
        return self.name

    def record(self) -> dict[str, Any]:
        """What a calibration keeps of it."""
        return {RECORD: {"name": self.name, "place": self.place}}

    @property
    def is_function(self) -> bool:
        """Whether it takes whatever it takes, and not pictures."""
        from torch import nn

        from doubtless.runs.model import Model

        return not isinstance(self._named, str | Path | nn.Module | Model)

    def model(self) -> Model:
        """The model that it is; a sentence where it is a function, or cannot be opened."""
        if self.is_function:
            raise InputError(
                f"{self.name} is a function: it embeds a list of what it takes, and no files. Give such a list, "
                "or its vectors."
            )
        if self._model is None:
            try:
                self._model = opened(cast(ModelLike, self._named))
            except InputError as error:
                raise InputError(
                    f"Queries of this gallery are embedded by {self.name}; name it with query_model (a model, or a "
                    f"function), or give its vectors. {error}"
                ) from error
        return self._model

    def embed(self, what: Any, *, progress: Progress | None = None) -> Embedding:
        """Pictures, or what its function takes, as embeddings."""
        if self.is_function:
            function = cast(Callable[[Sequence[Any]], Any], self._named)
            return embedding_of(function(what))
        return self.model().embed(what, progress=progress).to("cpu")


def mismatch(asked: QueryModel | None, record: Mapping[str, Any] | None) -> Sentence | None:
    """Why a calibration says nothing of queries by this encoder; None: it was made for such, or there is none.

    >>> mismatch(QueryModel.of("texts"), {"items": 3}).code
    'other-encoder'
    """
    if asked is None or record is None:
        return None
    kept = QueryModel.recorded(record)
    if kept is not None and kept.name == asked.name:
        return None
    by = "the gallery's own model" if kept is None else kept.name
    return Sentence(
        f"No probability: it was calibrated for queries by {by}, and these are by {asked.name}, whose similarities "
        "are others. Calibrate it on queries by that, with their labels or the items that they belong to.",
        "other-encoder",
        calibrated=None if kept is None else kept.name,
        asked=asked.name,
    )
