"""What a gallery is made of: an index, the model that embeds for it, and what was calibrated for it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from copy import copy
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery.calibration.calibrated import Calibrated, stamp_of
from doubtless.gallery.calibration.kept import Change
from doubtless.gallery.calibration.standing import Standings
from doubtless.gallery.calibration.unlabelled import answered
from doubtless.gallery.feedback.pairs import said_of_pairs
from doubtless.gallery.feedback.store import FeedbackStore
from doubtless.gallery.judge import Judge
from doubtless.gallery.model import ModelLike, ModelOf, recorded_model
from doubtless.gallery.queries import Pictures, Queries, embedding_of, is_vectors
from doubtless.gallery.query_model import QueryModel, QueryModelLike, mismatch
from doubtless.index.backends import folder_beside
from doubtless.index.base import Index
from doubtless.index.forms import fitting

if TYPE_CHECKING:
    from doubtless.data import Progress
    from doubtless.index.filters import Where
    from doubtless.ingest.create import Filled
    from doubtless.methods import Described
    from doubtless.runs.model import Model

LOOK_EVERY = 1.0
"""Seconds between two looks whether another process has calibrated."""


class OpenGallery:
    """An open index with its model and its judge, both read when they are first needed."""

    def __init__(
        self,
        index: Index,
        *,
        model: ModelLike | None = None,
        target_error: float | None = None,
        error_confidence: float | None = None,
        unknown: float | None = None,
        query_model: QueryModelLike | None = None,
    ) -> None:
        """Around an open index. `model` names another place of the model than the one the index remembers;
        `query_model` what embeds queries, where that is another one; `target_error`, `error_confidence` and
        `unknown` ask for another promise than the calibrated one."""
        self.index = index
        self.filled: Filled | None = None  # what `create` has put in
        self._model_of = ModelOf(index, model)
        self._query_model = None if query_model is None else QueryModel.of(query_model)
        self._promise = target_error, error_confidence, unknown
        self._standings: Standings | None = None
        self._stamp: tuple[str | None, int] | None = None
        self._looked = 0.0  # when the stamp was looked at

    @property
    def model(self) -> Model:
        """What embeds for this gallery, loaded when first needed; a sentence where it names none."""
        return self._model_of.needed()

    def find_model(self) -> Model | None:
        """The same, or None for a gallery of vectors without one."""
        return self._model_of.found()

    @property
    def query_model(self) -> QueryModel | None:
        """What embeds queries where that is not the gallery's own model: as was named, or calibrated for."""
        return self._query_model or QueryModel.recorded(self.judge.calibrated.record)

    def must_ask_by_itself(self) -> None:
        """Refuses where another encoder than the items' embeds queries: items are no examples of such."""
        if self._query_model is not None:
            raise InputError(
                f"Queries of this gallery are embedded by {self._query_model}, and its items say nothing of what "
                "such queries find; give some of them with their labels, or with the items that they belong to."
            )

    @property
    def asking_model(self) -> Model:
        """What embeds pictures that are calibrated on: the query model that was named, or the gallery's own."""
        return self.model if self._query_model is None else self._query_model.model()

    @property
    def judge(self) -> Judge:
        """What was calibrated, and what it makes of hits; read when first needed."""
        return self._standing().judge

    def judge_of(self, where: Where | None = None) -> Judge:
        """The judge of the gallery as it is now, or of the part that a filter lets through."""
        return self._of_these_queries(self._standing().of(self.index, where))

    def _of_these_queries(self, judge: Judge) -> Judge:
        """The judge; one that says nothing where it was calibrated for queries of another encoder."""
        other = mismatch(self._query_model, judge.calibrated.record)
        return judge if other is None else judge.saying_nothing(other)

    def judge_of_photos(self, count: int, where: Where | None = None) -> Judge:
        """The judge of so many photos of one thing."""
        return self._of_these_queries(self._standing().of_photos(self.index, count, where))

    def change(self) -> Change | None:
        """What became of its items since it was calibrated; None where nothing was kept to tell that by."""
        return self._standing().change(self.index)

    def reload(self) -> None:
        """Has what was calibrated read anew; a calibration by another process is noticed without."""
        self._standings = None

    def _standing(self) -> Standings:
        standings = self._standings
        if standings is not None and time.monotonic() - self._looked > LOOK_EVERY:
            self._looked = time.monotonic()
            standings = standings if self._stamped(standings.judge.calibrated) == self._stamp else None
        if standings is None:
            known = Calibrated.load(self.index)
            self._looked, self._stamp = time.monotonic(), self._stamped(known)
            if known.unlabelled is not None:
                known = answered(known, said_of_pairs(FeedbackStore(self.folder), self.index), self.index)
            self._standings = standings = self._standings_of(known)
        return standings

    def _stamped(self, known: Calibrated) -> tuple[str | None, int]:
        """Another one after every calibration and, where people's answers are a part of it, every answer."""
        said = 0 if known.unlabelled is None else FeedbackStore(self.folder).last
        return stamp_of(self.index), said

    def _standings_of(self, known: Calibrated) -> Standings:
        target, confidence, unknown = self._promise
        return Standings(Judge(known, target_error=target, error_confidence=confidence, unknown=unknown))

    def under(self, calibrated: Calibrated) -> Self:
        """The same gallery, asked under a calibration that is not kept with it (yet)."""
        other = copy(self)
        other._standings, other._looked = self._standings_of(calibrated), float("inf")
        return other

    def read(
        self,
        what: Pictures | Embedding | Queries,
        *,
        as_items: bool = False,
        progress: Progress | None = None,
    ) -> Queries:
        """Pictures as queries: embedded by the gallery's model, with features where its doubt looks at them.

        By its query model, where it has one, unless they are read `as_items`. Embeddings become what the index
        keeps of such: doubt and probabilities were fitted on items in that form.
        """
        if isinstance(what, Queries):
            return what
        if isinstance(what, Embedding) or is_vectors(what):
            return Queries(fitting(embedding_of(what), self.index.settings))
        if not isinstance(what, Sequence | Tensor | np.ndarray) or isinstance(what, str | bytes):
            raise InputError(
                "A gallery is asked with pictures (files, bytes, Pillow images, arrays) or vectors (an Embedding, "
                f"an array (n, D)), got a {type(what).__name__}."
            )
        by = None if as_items else self.query_model
        if by is not None:
            return Queries(fitting(by.embed(what, progress=progress), self.index.settings))
        pictures = list(what) if isinstance(what, np.ndarray) else what
        return self._queries(self.model.describe(pictures, progress=progress))

    def read_prepared(self, images: Tensor) -> Queries:
        """The same of images (n, C, H, W) that the model's preparation has made."""
        return self._queries(self.model.method.describe(images).to("cpu"))

    def _queries(self, described: Described) -> Queries:
        embedding = fitting(described.embedding, self.index.settings)
        return Queries(embedding, described.features if self.judge.wants_features else None)

    def fitted(self, embedding: Embedding) -> Embedding:
        """As the index takes it; refused where it is of another kind, or points nowhere."""
        fitted = fitting(embedding, self.index.settings)
        lengths = fitted.direction.norm(dim=1)  # 0, or not finite where numbers are too large to be squared
        if not bool(((lengths - 1).abs() < 1e-3).all()):
            raise InputError("An embedding has a location without a direction: it is zero, or far too large.")
        return fitted

    def status(self) -> dict[str, Any]:
        """What it holds and what it promises, in plain values."""
        change = self.change()
        told = None if change is None else {**asdict(change), "gone": change.gone, "share": change.share}
        return {**self.index.holds(), **self.judge_of().status(), "change": told}

    def statistics(self) -> dict[str, Any]:
        """Counts, sizes, how it is searched, what was calibrated and, measured now, what its search misses."""
        model = recorded_model(self.index)
        return {**self.index.stats(), "run": None if model is None else str(model)}

    def compact(self) -> tuple[int | None, int | None]:
        """Gives the space of removed and updated items back; bytes before and after, where these are known."""
        before = self.index.stats()["bytes"]
        self.index.compact()
        return before, self.index.stats()["bytes"]

    @property
    def folder(self) -> Path:
        """Where files that belong to the gallery lie: in its folder, or beside a backend's address."""
        return folder_beside(self.index.path)

    def close(self) -> None:
        """Lets go of the index. Closing twice is allowed."""
        self.index.close()

    def __len__(self) -> int:
        return len(self.index)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Gallery({str(self.index.path)!r}, {len(self)} items)"
