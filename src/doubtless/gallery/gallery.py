"""`Gallery`: an index, the model that embeds for it, its calibration and its doubt. The front door.

Whatever is done with pictures goes through it: command line, server, page and notebooks ask it and nothing below
it. What is decided once for all of them is decided here: which model embeds, whether features before the head are
looked at, what is calibrated, and what an answer is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doubtless.errors import InputError
from doubtless.gallery.judged import Judged
from doubtless.gallery.listing import Listing
from doubtless.gallery.model import ModelLike, opened
from doubtless.gallery.queries import Vectors
from doubtless.gallery.query_model import QueryModelLike
from doubtless.index.backends import backend_of, open_index
from doubtless.index.construction import exists_already
from doubtless.index.settings import check_choices

if TYPE_CHECKING:
    from doubtless.gallery.content import ImageSources, Imported, Reading
    from doubtless.gallery.head import HeadName
    from doubtless.index.in_place.store import Metric, Store
    from doubtless.index.settings import IndexScore, Kind


class Gallery(Judged, Listing):
    """An index that can be asked.

    >>> import torch
    >>> from doubtless import Embedding
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
        query_model: QueryModelLike | None = None,
    ) -> Gallery:
        """Opens the gallery in a folder, or at a backend's address, to ask it or, `writable`, to change it.

        query_model   what embeds queries, where that is another encoder than the items': a model, its name, or a
                      function from a list (of words, say) to vectors; None: the one it was calibrated for
        """
        index = open_index(place, writable=writable)
        try:
            return cls(
                index,
                model=model,
                target_error=target_error,
                error_confidence=error_confidence,
                unknown=unknown,
                query_model=query_model,
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
        embedding: Vectors | Imported | None = None,
        ids: Sequence[str] | None = None,
        labels: Sequence[str | None] | str | Path | None = None,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
        model: ModelLike | None = None,
        weights: str | Path | None = None,
        head: HeadName = "auto",
        dim: int | None = None,
        kind: Kind = "auto",
        score: IndexScore | None = None,
        reading: Reading | None = None,
    ) -> Gallery:
        """A new gallery, open for writing, of images or of embeddings; never over one that is there.

        place       a folder, or a backend's address such as ``milvus:http://localhost:19530``
        images      folders, files, lists (CSV), tar shards, parquet files, ``hf:NAME``, a source's name; or a data
                    set of (image, label), or an array of images (n, H, W, 3)
        embedding   instead of images: an Embedding, or an array (n, D), with ids (numbers by default), labels and
                    metadata; or what `doubtless.ingest.vectors` has imported from files
        labels      what each shows, in order; or a table (CSV, parquet) of ids or file names, labels and metadata
        model       what embeds, or has embedded: ``timm:NAME``, a run, a folder of `save_pretrained`,
                    ``hub:USER/NAME``, an ONNX file, another gallery, ``module:package.function``, a `Model` or an
                    `nn.Module`; images without one are embedded by a pretrained network. It is kept in the gallery
        weights     a safetensors file for ``timm:NAME``; its published ones by default
        head, dim   of a network that nobody trained for this: "raw" features, "half-whitened" ones, or "auto"
        kind        "flat" looks at every vector, "hnsw" and "ivf" are approximate, "auto" goes by size
        score       what is ranked by: "direction" (default) or "expected-distance"
        """
        from doubtless.gallery import content
        from doubtless.gallery.head import head_for

        if (images is None) == (embedding is None):
            raise InputError("A gallery is made of images or of an embedding; give one of the two.")
        check_choices(kind=kind, score=score or "direction")  # before an hour of embedding, not after
        backend, name = backend_of(place)
        if backend.exists(name):  # before a model is waited for
            raise exists_already(name)
        finish = None
        loaded = None if model is None and images is None else opened(model, weights=weights)
        if images is not None:
            assert loaded is not None
            finish = head_for(loaded, head, dim)
            reading = content.with_labels(reading, labels)
            filled = content.create_of_images(
                place, images, loaded, finish=finish, kind=kind, score=score, reading=reading
            )
        else:
            vectors = content.vectors_of(embedding, ids=ids, labels=labels, metadata=metadata)
            filled = content.create_of_vectors(place, vectors, loaded, kind=kind, score=score)
        # Where the gallery may have made its own head, the model that was named is not its model.
        gallery = cls.open(place, model=loaded if finish is None else None, writable=True)
        gallery.filled = filled
        return gallery

    @classmethod
    def over(
        cls,
        store: Store,
        folder: str | Path,
        *,
        dim: int | None = None,
        metric: Metric = "cosine",
        ids: Sequence[str] | None = None,
        model: ModelLike | None = None,
        writable: bool = True,
        query_model: QueryModelLike | None = None,
    ) -> Gallery:
        """A gallery over vectors that stay where they are: any object with `search(vectors, k, where)`.

        store    gives ids, scores and labels (`doubtless.index.in_place.store`); with `fetch(ids)` also vectors,
                 without which some of the doubt is not measured, as `status` says
        folder   where calibration and feedback are kept; made where there is none
        dim      of the vectors, when the folder is made
        metric   what the scores are: "cosine" (inner product of unit vectors), "cosine-distance", "euclidean" or
                 "squared-euclidean" distance of unit vectors
        ids      of items to calibrate on, if they and not queries from outside are to be; needs `fetch`
        query_model   as of `open`
        """
        from doubtless.index.in_place.index import StoreIndex

        index = StoreIndex.over(store, folder, dim=dim, metric=metric, writable=writable)
        try:
            if ids is not None:
                index.get_to_know(ids)
            return cls(index, model=model, query_model=query_model)
        except BaseException:
            index.close()
            raise


open_gallery = Gallery.open
