"""`Gallery`: an index, the model that embeds for it, its calibration and its doubt. The front door.

Whatever is done with pictures goes through it: command line, server, page and notebooks ask it and nothing below
it. What is decided once for all of them is decided here: which model embeds, whether features before the head are
looked at, what is calibrated, and what an answer is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, overload

from torch import Tensor

from doubtless.calibration.features import DEPTH
from doubtless.calibration.pair_answer import PairAnswer as PairAnswer
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery.answer import Answer
from doubtless.gallery.answers import Answers
from doubtless.gallery.calibrated import Calibrated
from doubtless.gallery.judge import Judge
from doubtless.gallery.model import ModelLike, ModelOf, opened, recorded_model
from doubtless.gallery.pairs import compare as compare_in
from doubtless.gallery.queries import Picture, Pictures, Queries, is_picture
from doubtless.index.backends import folder_beside, open_index
from doubtless.index.base import Index
from doubtless.index.forms import fitting
from doubtless.index.items import Item as Item
from doubtless.search.hits import without_itself

if TYPE_CHECKING:
    from doubtless.calibration.fit import Targets
    from doubtless.data import Progress
    from doubtless.gallery.calibration import NoveltyOf
    from doubtless.gallery.content import ImageSources, Imported, Reading
    from doubtless.gallery.labelled import LabelledQueries
    from doubtless.index.filters import Where
    from doubtless.index.settings import IndexScore, Kind
    from doubtless.ingest.create import Filled
    from doubtless.methods import Described
    from doubtless.runs.model import Model


class Gallery:
    """An index that can be asked.

    >>> import torch
    >>> labels = torch.arange(200) % 4
    >>> vectors = 3 * torch.eye(4)[labels] + torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    >>> embedding = Embedding.point(vectors)
    >>> gallery = Gallery.create("animals", embedding=embedding, labels=[f"animal {label}" for label in labels])
    >>> gallery.calibrate(target_error=0.1)["queries"]
    200
    >>> answer = gallery.ask(embedding[:1], k=3)[0]
    >>> answer.decision, answer.label, 0.9 < answer.probability < 1
    ('answer', 'animal 0', True)
    >>> gallery.close()

    With a model it is asked with pictures: ``doubtless.open("shop").ask("photo.jpg")``.
    """

    def __init__(
        self,
        index: Index,
        *,
        model: ModelLike | None = None,
        target_error: float | None = None,
        error_confidence: float | None = None,
        unknown: float | None = None,
    ) -> None:
        """Around an open index. `model` names another place of the model than the one the index remembers;
        `target_error`, `error_confidence` and `unknown` ask for another promise than the calibrated one."""
        self.index = index
        self.filled: Filled | None = None  # what `create` has put in
        self._model_of = ModelOf(index, model)
        self._promise = target_error, error_confidence, unknown
        self._judge: Judge | None = None

    @classmethod
    def open(
        cls,
        place: str | Path,
        *,
        model: ModelLike | None = None,
        writable: bool = False,
        target_error: float | None = None,
        error_confidence: float | None = None,
        unknown: float | None = None,
    ) -> Gallery:
        """Opens the gallery in a folder, or at a backend's address, to ask it or, `writable`, to change it."""
        index = open_index(place, writable=writable)
        try:
            return cls(
                index,
                model=model,
                target_error=target_error,
                error_confidence=error_confidence,
                unknown=unknown,
            )
        except BaseException:
            index.close()
            raise

    @classmethod
    def create(
        cls,
        place: str | Path,
        images: ImageSources | None = None,
        *,
        embedding: Embedding | Imported | None = None,
        ids: Sequence[str] | None = None,
        labels: Sequence[str | None] | None = None,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
        model: ModelLike | None = None,
        kind: Kind = "auto",
        score: IndexScore | None = None,
        reading: Reading | None = None,
    ) -> Gallery:
        """A new gallery, open for writing, of images or of embeddings; never over one that is there.

        place       a folder, or a backend's address such as ``milvus:http://localhost:19530``
        images      folders, files, tar shards, parquet files, a source's name; or a data set of (image, label)
        embedding   instead of images: embeddings with their ids (numbers by default), labels and metadata, or what
                    `doubtless.ingest.vectors` has imported from files
        model       what embeds, or has embedded: a run, a `Model`, an `nn.Module`, or ``module:package.function``
        kind        "flat" looks at every vector, "hnsw" and "ivf" are approximate, "auto" goes by size
        score       what is ranked by: "direction" (default) or "expected-distance"
        """
        from doubtless.gallery import content

        if (images is None) == (embedding is None):
            raise InputError("A gallery is made of images or of an embedding; give one of the two.")
        loaded = None if model is None else opened(model)
        if images is not None:
            if loaded is None:
                raise InputError("Images need a model that embeds them: name a run, or give a network.")
            filled = content.create_of_images(place, images, loaded, kind=kind, score=score, reading=reading)
        else:
            vectors = content.vectors_of(embedding, ids=ids, labels=labels, metadata=metadata)
            filled = content.create_of_vectors(place, vectors, loaded, kind=kind, score=score)
        gallery = cls.open(place, model=loaded, writable=True)
        gallery.filled = filled
        return gallery

    # -- asking --------------------------------------------------------------------------------------

    @overload
    def ask(  # type: ignore[overload-overlap]  # a string is a sequence of strings, too
        self,
        what: Picture,
        k: int = 10,
        *,
        where: Where | None = None,
        confidence: float = 0.9,
        score: IndexScore | None = None,
    ) -> Answer: ...

    @overload
    def ask(
        self,
        what: Pictures | Embedding | Queries,
        k: int = 10,
        *,
        where: Where | None = None,
        confidence: float = 0.9,
        score: IndexScore | None = None,
    ) -> Answers: ...

    def ask(
        self,
        what: Picture | Pictures | Embedding | Queries,
        k: int = 10,
        *,
        where: Where | None = None,
        confidence: float = 0.9,
        score: IndexScore | None = None,
    ) -> Answer | Answers:
        """What the gallery thinks of a picture; of several, or of an embedding, one answer each.

        k            hits that are shown
        where        only items for which it holds are searched: ``{"label": ["cat"], "year": 2024}``
        confidence   1 − α of the covering set, in (0, 1)
        score        another score than the gallery's own to rank by: hits are then shown and not judged
        """
        if k < 1:
            raise InputError(f"k must be at least 1, got {k}.")
        if not 0 < confidence < 1:
            raise InputError(f"The confidence of a covering set must lie between 0 and 1, got {confidence}.")
        one = is_picture(what)
        queries = self.read([what] if one else what)  # type: ignore[list-item, arg-type]
        judge = self.judge
        if score is not None and score != self.index.settings.score:
            judge = Judge.of_nothing(score)
        hits = self.index.search(queries.embedding, judge.depth(k), where=where, score=score)
        answers = judge.answers(
            hits,
            queries.embedding,
            self.index,
            k=k,
            confidence=confidence,
            features=queries.features,
            filtered=bool(where),
        )
        return answers[0] if one else answers

    def ask_items(self, rows: Tensor, k: int = 10) -> Answers:
        """What the gallery thinks of its own items at some rows (n,), each among all others."""
        embedding = self.index.embedding(rows)
        hits = without_itself(self.index.search(embedding, max(self.judge.depth(k), DEPTH) + 1), rows)
        return self.judge.answers(hits, embedding, self.index, k=k)

    def read(self, what: Pictures | Embedding | Queries, *, progress: Progress | None = None) -> Queries:
        """Pictures as queries: embedded by the gallery's model, with features where its doubt looks at them.

        Embeddings become what the index keeps of such: doubt and probabilities were fitted on items in that form.
        """
        if isinstance(what, Queries):
            return what
        if isinstance(what, Embedding):
            return Queries(fitting(what, self.index.settings))
        return self._queries(self.model.describe(what, progress=progress))

    def read_prepared(self, images: Tensor) -> Queries:
        """The same of images (n, C, H, W) that the model's preparation has made."""
        return self._queries(self.model.method.describe(images).to("cpu"))

    def _queries(self, described: Described) -> Queries:
        embedding = fitting(described.embedding, self.index.settings)
        return Queries(embedding, described.features if self.judge.wants_features else None)

    def compare(
        self,
        first: Picture | Embedding,
        second: Picture | Embedding,
        *,
        prior: float = 0.5,
        target_error: float | None = None,
    ) -> PairAnswer:
        """Do two pictures, or embeddings of one item each, show the same? `prior`: how likely that is before.

        target_error: share of the pairs decided alike that may be wrong; None: as calibrated.
        """
        one, other = (
            what if isinstance(what, Embedding) else self.read([what]).embedding for what in (first, second)
        )
        one, other, pairs = self.fitted(one), self.fitted(other), self.judge.calibrated.pairs
        return compare_in(self.index, pairs, one, other, prior=prior, target_error=target_error)

    def fitted(self, embedding: Embedding) -> Embedding:
        """As the index takes it; refused where it is of another kind, or points nowhere."""
        fitted = fitting(embedding, self.index.settings)
        lengths = fitted.direction.norm(dim=1)  # 0, or not finite where numbers are too large to be squared
        if not bool(((lengths - 1).abs() < 1e-3).all()):
            raise InputError("An embedding has a location without a direction: it is zero, or far too large.")
        return fitted

    # -- changing ------------------------------------------------------------------------------------

    def add(
        self,
        images: ImageSources | None = None,
        *,
        embedding: Embedding | Imported | None = None,
        ids: Sequence[str] | None = None,
        labels: Sequence[str | None] | None = None,
        paths: Sequence[str | None] | None = None,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
        existing: str = "refuse",
        reading: Reading | None = None,
    ) -> Filled:
        """Adds images or embeddings, as `create` takes them; durable when it returns, images shard by shard.

        existing   what to do with ids that are there already: refuse, skip or update
        """
        from doubtless.gallery import content

        if (images is None) == (embedding is None):
            raise InputError("Images or an embedding are added; give one of the two.")
        if images is not None:
            return content.add_images(self.index, images, self.model, existing=existing, reading=reading)
        vectors = content.vectors_of(embedding, ids=ids, labels=labels, paths=paths, metadata=metadata)
        model = None if self._model_of.named is None else self.model
        return content.add_vectors(self.index, vectors, model, existing=existing)

    def remove(self, ids: Sequence[str]) -> None:
        """Takes items out, all or none; durable when it returns."""
        self.index.remove(ids)

    def item(self, id: str) -> Item | None:
        """What is known of an item beside its embedding; None where there is no such item."""
        row = self.index.rows_of([id]).get(id)
        return None if row is None else self.index.items([row])[0]

    def calibrate(
        self,
        targets: Targets | None = None,
        *,
        target_error: float | None = None,
        queries: Pictures | Embedding | LabelledQueries | str | Path | None = None,
        labels: Sequence[str] | str | Path | None = None,
        pairs: Sequence[tuple[str, str, bool]] | None = None,
        novelty: NoveltyOf = "auto",
        most: int | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Calibrates match probability, abstention, covering sets, presence, pairs and doubt; returns the record.

        targets    what is to be promised; `target_error` alone stands for the usual ones with another error
        queries    with `labels`, or the place of labelled ones (`labelled_queries`); None: items search all others
        pairs      ids of two items and whether they are the same: match probability only
        novelty    what is looked at to tell what is new: "features" of the items' images, "directions", "leverage"
                   (these and the space that they fill), or "auto": features where model and images are found
        most       queries used, drawn at random with `seed` where there are more
        """
        from doubtless.gallery import calibration, labelled

        if pairs is not None:
            record = calibration.calibrate_on_pairs(self.index, pairs)
        else:
            given = labelled.outside(self, queries, labels, progress=progress)
            # Of queries from outside only directions are compared, so no image is looked at again.
            looked_at: NoveltyOf = novelty if queries is None else "directions"
            record = calibration.calibrate(
                self.index,
                calibration.targets_of(targets, target_error),
                queries=given.embedding,
                labels=given.labels,
                features_of=calibration.feature_reader(self, looked_at, progress=progress),
                leverage=novelty == "leverage",
                most=most or calibration.MOST,
                seed=seed,
            )
            record = given.noted(self, record)
        self.reload()
        return record

    # -- itself --------------------------------------------------------------------------------------

    @property
    def model(self) -> Model:
        """What embeds for this gallery, loaded when first needed; a sentence where it names none."""
        return self._model_of.needed()

    def find_model(self) -> Model | None:
        """The same, or None for a gallery of vectors without one."""
        return self._model_of.found()

    @property
    def judge(self) -> Judge:
        """What was calibrated, and what it makes of hits; read when first needed."""
        if self._judge is None:
            known, (target, confidence, unknown) = Calibrated.load(self.index), self._promise
            self._judge = Judge(known, target_error=target, error_confidence=confidence, unknown=unknown)
        return self._judge

    def reload(self) -> None:
        """Has what was calibrated read anew, as after a calibration by another process."""
        self._judge = None

    def status(self) -> dict[str, Any]:
        """What it holds and what it promises, in plain values."""
        return {**self.index.holds(), **self.judge.status()}

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

    def __enter__(self) -> Gallery:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Gallery({str(self.index.path)!r}, {len(self)} items)"
