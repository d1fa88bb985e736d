"""`Service`: a gallery, ready for many askers at once. API and page both use it.

Everything may be called from any thread. Images and embeddings of all callers go through one `Batcher`; uploads are
decoded by a `Decoder` within limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery import Answer, Gallery, PairAnswer, Queries
from doubtless.runs.data import image_size
from doubtless.runs.model import Model
from doubtless.server.service.browse import Browse
from doubtless.server.service.decoder import Decoder, Limits, Picture, accepted_files, refuse_shape
from doubtless.server.service.drift import Drift
from doubtless.server.service.items import Items, StoredImage
from doubtless.server.service.judgements import Judgements
from doubtless.server.service.overview import Overview
from doubtless.server.service.queue import Batcher, Batching, Engine, Query, Question, Reply
from doubtless.server.service.readiness import Readiness
from doubtless.server.service.thumbnails import Thumbnails
from doubtless.version import __version__

ImageLike = bytes | Image.Image | Tensor
"""An image: the bytes of a file, a Pillow image, or a tensor (C, H, W), uint8 or floats in [0, 1]."""


class Service:
    """Answers from an index.

    >>> with Service.open("gallery", read_only=True) as service:
    ...     answer = service.answer_images([Path("shoe.jpg").read_bytes()], k=5)[0]
    >>> answer.decision in ("answer", "abstain", "not-in-gallery"), len(answer.hits)
    (True, 5)
    """

    def __init__(
        self,
        gallery: Gallery,
        *,
        read_only: bool = False,
        limits: Limits | None = None,
        batching: Batching | None = None,
        image_root: Path | None = None,
        audit: float = 0.0,
    ) -> None:
        """`image_root`: if given, only images below this folder are shown, and those kept in the index itself.

        audit: the share of queries that are drawn to be judged, and kept with their pictures (`Gallery.review`).
        """
        self.gallery, self.read_only = gallery, read_only
        # Pictures are not embedded by the items' model where queries are by another one: vectors are asked with.
        self.model: Model | None = gallery.find_model() if gallery.query_model is None else None
        self.limits = limits or Limits()
        self.items = Items(gallery, read_only=read_only, largest=self.limits.upload, image_root=image_root)
        self.browse = Browse(gallery, self.items)
        self.overview = Overview(gallery)
        self.judgements = Judgements(gallery, read_only=read_only, audit=audit)
        self.engine = Engine(gallery)
        model = self.model
        self.decoder = None if model is None else Decoder(model.preparation, self.limits)
        self.thumbnails = Thumbnails(
            self.limits, budget=None if self.decoder is None else self.decoder.budget
        )
        self.batcher: Batcher[Query, Reply] = Batcher(
            self.engine.answer, batching, coming=lambda: 0 if self.decoder is None else self.decoder.pending
        )
        if model is not None:
            _warm_up(model)
        self.readiness = Readiness(gallery, self.batcher, model, read_only=read_only)

    @classmethod
    def open(
        cls,
        place: str | Path,
        *,
        model: str | Path | None = None,
        read_only: bool = False,
        limits: Limits | None = None,
        batching: Batching | None = None,
        image_root: str | Path | None = None,
        audit: float = 0.0,
    ) -> Service:
        """Opens a gallery and the model of the run `model`, by default of the run that it remembers.

        A gallery of vectors that remembers none is served without: it can be asked with embeddings only.
        """
        gallery = Gallery.open(place, model=model, writable=not read_only)
        try:
            return cls(
                gallery,
                read_only=read_only,
                limits=limits,
                batching=batching,
                image_root=None if image_root is None else Path(image_root),
                audit=audit,
            )
        except BaseException:
            gallery.close()
            raise

    # -- asking --------------------------------------------------------------------------------------

    def answer_images(
        self,
        images: Sequence[ImageLike],
        k: int = 10,
        *,
        where: Mapping[str, Any] | None = None,
        confidence: float = 0.9,
        watched: bool = True,
    ) -> list[Answer]:
        """An answer to every image. watched=False: these do not count when drift is looked for."""
        question = self.question(k, where=where, confidence=confidence, watched=watched)
        prepared = [self._prepared(image) for image in images]
        futures = [self.submit(Query(pixels=pixels, question=question)) for pixels in prepared]
        answers = [answer_of(future.result()) for future in futures]
        for image, answer in zip(images, answers, strict=True):
            self.judgements.note(answer, image if isinstance(image, bytes) else None, counted=watched)
        return answers

    def embed(self, images: Sequence[ImageLike]) -> Embedding:
        """What the model makes of images, on the CPU."""
        if not images:
            raise InputError("There is no image to embed.")
        prepared = [self._prepared(image) for image in images]
        futures = [self.submit(Query(pixels=pixels)) for pixels in prepared]
        return Embedding.cat([future.result().embedding for future in futures])

    def compare(
        self,
        first: ImageLike | Embedding,
        second: ImageLike | Embedding,
        *,
        prior: float = 0.5,
        target_error: float | None = None,
    ) -> PairAnswer:
        """Do two images, or embeddings of one item each, show the same? As `Gallery.compare`."""
        one, other = (
            image if isinstance(image, Embedding) else self.embed([image]) for image in (first, second)
        )
        return self.gallery.compare(one, other, prior=prior, target_error=target_error)

    def answer_together(self, photos: Sequence[Tensor] | Embedding, question: Question) -> Answer:
        """One answer about one thing, from what `decode` gave of several photos, or their embeddings."""
        queries: Embedding | Queries
        if isinstance(photos, Embedding):
            queries = photos
        else:
            queries = Queries.cat([self.gallery.read_prepared(pixels.unsqueeze(0)) for pixels in photos])
        answer = self.gallery.ask(
            queries, question.k, where=question.where or None, confidence=question.confidence, together=True
        )
        self.engine.tell([answer], [question])
        return answer

    # -- asking without waiting in a thread: the API --------------------------------------------------

    def decode(self, data: bytes) -> Future[Picture]:
        """An upload as what the model takes, decoded within the limits by threads of the service."""
        return self._needed_decoder().submit(data)

    def submit(self, query: Query) -> Future[Reply]:
        """A query with what `decode` gave, or with an embedding that `fitted` gave, and what `question` gave."""
        return self.batcher.submit(query)

    def question(
        self,
        k: int,
        *,
        where: Mapping[str, Any] | None = None,
        confidence: float = 0.9,
        watched: bool = True,
    ) -> Question:
        """What an answer is wanted for, within the limits."""
        if not 1 <= k <= self.limits.k:
            raise InputError(f"k must lie between 1 and {self.limits.k}, got {k}.")
        if not 0 < confidence < 1:
            raise InputError(f"Confidence must lie between 0 and 1, got {confidence}.")
        return Question(k, where, confidence, watched)

    def fitted(self, embedding: Embedding) -> Embedding:
        """As the gallery takes it; refused where it is of another kind, or points nowhere."""
        return self.gallery.fitted(embedding)

    # -- items ---------------------------------------------------------------------------------------

    def add(
        self,
        id: str,
        image: bytes | Embedding,
        *,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Stores an item of an image file's bytes, with a copy of it, or of an embedding; durable on return."""
        self.items.refuse_read_only()
        if isinstance(image, Embedding):
            self.items.add(id, image, label=label, metadata=metadata)
            return
        picture = self.decode(image).result()
        embedding = self.submit(Query(pixels=picture.pixels)).result().embedding
        self.items.add(id, embedding, label=label, metadata=metadata, image=image, suffix=picture.suffix)

    def remove(self, ids: Sequence[str]) -> None:
        """Takes items out, and the images that were stored with them."""
        self.items.remove(ids)

    def recalibrate(self) -> dict[str, Any]:
        """Brings the calibration to the items as they are now, while others go on asking; returns the record."""
        self.items.refuse_read_only()
        with self.items.writing:
            return self.gallery.recalibrate()

    def image_of(self, id: str) -> StoredImage:
        """`data` and `media_type` of an item's image; `NotFoundError` where there is none to show."""
        return self.items.image(id)

    # -- itself --------------------------------------------------------------------------------------

    @property
    def drift(self) -> Drift | None:
        """What watches the queries go by; None where nothing was calibrated that they could be compared with."""
        return self.engine.drift

    def info(self) -> dict[str, Any]:
        """What is served: plain values, no paths."""
        status, batcher = self.gallery.status(), self.batcher
        del status["calibration"], status["watch"]  # what is promised says enough
        model = None if self.model is None else _model(self.model, status["model"])
        return {
            **status,
            "version": __version__,
            "model": model,
            "read_only": self.read_only,
            "accepts": accepted_files(),
            "drift": None if self.drift is None else asdict(self.drift.state),
            "limits": asdict(self.limits),
            "batching": asdict(batcher.settings) | {"batches": batcher.batches, "queries": batcher.items},
        }

    def status(self) -> dict[str, Any]:
        """What is held and promised, and whether that still holds: plain values."""
        found = self.gallery.status()
        told = {name: found[name] for name in ("items", "labels", "calibrated", "promise", "watch")}
        return {**told, "drift": None if self.drift is None else asdict(self.drift.state)}

    def close(self) -> None:
        """Finishes what was asked, then lets go of the index. Closing twice is allowed."""
        if self.decoder is not None:
            self.decoder.close()
        self.readiness.close()
        self.thumbnails.close()
        self.overview.close()
        self.batcher.close()
        self.judgements.close()
        with self.items.writing:
            self.gallery.close()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside --------------------------------------------------------------------------------------

    def _needed_decoder(self) -> Decoder:
        if self.decoder is None:
            raise InputError("This index is served without a model; ask with embeddings.")
        return self.decoder

    def _prepared(self, image: ImageLike) -> Tensor:
        """(C, H, W) as the model takes it."""
        from doubtless.data import pixels_of

        decoder = self._needed_decoder()
        if isinstance(image, bytes):
            return decoder.submit(image).result().pixels
        assert self.model is not None
        pixels = pixels_of(image)
        refuse_shape(pixels.shape[2], pixels.shape[1], self.limits)
        return self.model.preparation(pixels)


def answer_of(reply: Reply) -> Answer:
    """Of a query that asked a question."""
    assert reply.answer is not None
    return reply.answer


def _warm_up(model: Model) -> None:
    """Embeds one black image of another size: what is imported and allocated at a first time is so from here on."""
    size = image_size(model.method)
    model.embed(torch.zeros(1, 3, size, 2 * size, dtype=torch.uint8))


def _model(model: Model, fingerprint: str | None) -> dict[str, Any]:
    takes, method = model.preparation, model.method.name
    return {"method": method, "fingerprint": fingerprint, "channels": takes.channels, "size": takes.size}
