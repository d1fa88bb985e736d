"""What goes into a gallery: images that its model embeds, or vectors that somebody has, and who they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doubtless.data import Source
from doubtless.data.objects import as_source
from doubtless.data.streams.labelled import LabelledStream, with_table
from doubtless.data.streams.opening import open_streams
from doubtless.data.streams.records import Columns, ImageStream
from doubtless.data.streams.tables import read_labels
from doubtless.errors import InputError
from doubtless.gallery.queries import Vectors, embedding_of, label_words
from doubtless.index.backends import folder_beside
from doubtless.index.base import Index
from doubtless.index.database.migration import migrate as migrate
from doubtless.index.settings import IndexScore, Kind
from doubtless.ingest.bulk import Meter, embedded
from doubtless.ingest.create import Filled, Finish, create_index, create_index_of_images, fill
from doubtless.ingest.shards import BAD, EmbeddedShard, read_manifest, write_bad
from doubtless.ingest.vectors import Vectors as FileVectors
from doubtless.ingest.vectors import imported, joined, read_faiss
from doubtless.runs.model import Model, model_fingerprint

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    ImageSources = str | Path | Source | Sequence[Any] | Dataset[Any]


@dataclass(frozen=True)
class Reading:
    """How images are read.

    columns      of parquet files; found by their usual names by default
    batch_size   images the model takes at a time; by the device where None
    workers      threads that decode; by the cores where None
    meter        is told how the work goes
    """

    columns: Columns | None = None
    batch_size: int | None = None
    workers: int | None = None
    meter: Meter | None = None
    labels: str | Path | Sequence[str | None] | None = None
    """What the images show: a table of ids and labels (CSV or parquet), or one label per image of a list."""
    label: str | None = None
    """What all of them show."""


@dataclass(frozen=True)
class Imported:
    """Vectors on their way into an index.

    fingerprint, run   of the model that made them, as far as that is known
    score              what they are to be ranked by, where that was decided elsewhere
    notes              sentences about what became of them
    """

    shards: Iterable[EmbeddedShard]
    fingerprint: str | None = None
    run: str | None = None
    score: IndexScore | None = None
    notes: list[str] = field(default_factory=list)


def import_file(
    path: str | Path,
    *,
    labels: str | Path | None = None,
    variance: str | Path | None = None,
    family: str | None = None,
) -> Imported:
    """Vectors of a .npy, .npz or .safetensors file, or of a folder that `doubtless embed` made.

    labels     a labels.csv: id, label and, where there are any, path and metadata
    variance   a .npy beside .npy vectors; family: what they are then, gaussian or projected-gaussian
    """
    shards = imported(path, labels=labels, variance=variance, family=family)
    if not Path(path).is_dir():
        return Imported(shards)
    manifest = read_manifest(path)
    return Imported(shards, str(manifest["model"]), manifest.get("run"))


def import_faiss(path: str | Path, *, labels: str | Path | None = None) -> Imported:
    """The vectors of a FAISS index that still holds them, to be found by what they were found by there."""
    content = read_faiss(path)
    shards = joined(content.vectors, None if labels is None else read_labels(labels))
    return Imported(shards, score=content.score, notes=content.notes)


def vectors_of(
    embedding: Vectors | Imported | None,
    *,
    ids: Sequence[str] | None = None,
    labels: Sequence[str | None] | str | Path | None = None,
    paths: Sequence[str | None] | None = None,
    metadata: Sequence[Mapping[str, Any] | None] | None = None,
) -> Imported:
    """Embeddings in memory with who they are, numbered where they have no ids; what was imported as it is.

    labels   one per embedding, or a table of ids and labels: row by row, or by id where ids are given
    """
    if isinstance(embedding, str | Path):
        raise InputError(
            f"An embedding is an Embedding or an array (n, D) of floats; read {embedding} with "
            "doubtless.gallery.content.import_file, or name it to `doubtless create --embeddings`."
        )
    if isinstance(embedding, Imported):
        if any(value is not None for value in (ids, labels, paths, metadata)):
            raise InputError(
                "Imported vectors say themselves who they are; ids and labels go with an embedding."
            )
        return embedding
    assert embedding is not None
    known = embedding_of(embedding)
    if isinstance(labels, str | Path):
        given = FileVectors(known, None if ids is None else list(ids))
        return Imported(joined(given, read_labels(labels)))
    count = len(known)
    shard = EmbeddedShard(
        known,
        [str(number) for number in range(count)] if ids is None else list(ids),
        [None] * count if labels is None else label_words(labels),
        [None] * count if paths is None else list(paths),
        [{} for _ in range(count)] if metadata is None else [dict(values or {}) for values in metadata],
    )
    return Imported([shard])


def with_labels(reading: Reading | None, labels: Sequence[str | None] | str | Path | None) -> Reading | None:
    """How images are read, with their labels where these are given apart."""
    if labels is None:
        return reading
    said = labels if isinstance(labels, str | Path) else label_words(labels)
    return replace(reading or Reading(), labels=said)


def create_of_images(
    place: str | Path,
    images: ImageSources,
    model: Model,
    *,
    finish: Finish | None = None,
    kind: Kind,
    score: IndexScore | None,
    reading: Reading | None,
) -> Filled:
    """A new index of images, embedded by a model; killed, the same call goes on."""
    reading = reading or Reading()
    sources, notes = _sources(images, reading)
    filled = create_index_of_images(
        place,
        model,
        sources,
        kind=kind,
        score=score or "direction",
        finish=finish,
        columns=reading.columns,
        batch_size=reading.batch_size,
        workers=reading.workers,
        meter=reading.meter,
    )
    filled.notes += notes
    return filled


def create_of_vectors(
    place: str | Path, vectors: Imported, model: Model | None, *, kind: Kind, score: IndexScore | None
) -> Filled:
    """A new index of vectors; `model` is what made them, where it is at hand."""
    return create_index(
        place,
        vectors.shards,
        kind=kind,
        score=score or vectors.score or "direction",
        model=_fingerprint(vectors, model),
        run=vectors.run if model is None else model.place,
        keep=None if model is None else model.method,
    )


def add_images(
    index: Index, images: ImageSources, model: Model, *, existing: str, reading: Reading | None
) -> Filled:
    """Adds images, embedded by the index's model, shard by shard."""
    reading = reading or Reading()
    sources, notes = _sources(images, reading)
    shards = embedded(
        model,
        sources,
        columns=reading.columns,
        batch_size=reading.batch_size,
        workers=reading.workers,
        meter=reading.meter,
    )
    filled = fill(index, shards, existing=existing, model=model_fingerprint(model.method))
    filled.notes += notes
    if filled.bad:
        write_bad(folder_beside(index.path), filled.bad)
    return filled


def bad_list(filled: Filled) -> Path | None:
    """Where images that could not be used are listed, each with the reason; None where all could."""
    return folder_beside(filled.path) / BAD if filled.bad else None


def add_vectors(index: Index, vectors: Imported, model: Model | None, *, existing: str) -> Filled:
    """Adds vectors, which `model` has made where it is named; those of another than the index's are refused."""
    return fill(index, vectors.shards, existing=existing, model=_fingerprint(vectors, model))


def _fingerprint(vectors: Imported, model: Model | None) -> str | None:
    """Of the model that made vectors, as they say themselves or as it was named; both must be one."""
    named = None if model is None else model_fingerprint(model.method)
    if None not in (named, vectors.fingerprint) and named != vectors.fingerprint:
        raise InputError("These vectors were embedded by another model than the one that was named.")
    return named or vectors.fingerprint


def _sources(
    images: ImageSources, reading: Reading
) -> tuple[Sequence[str | Path | Source | ImageStream], list[str]]:
    """What is embedded, with the labels that were said of it, and sentences about those that were not found."""
    if reading.label is not None and reading.labels is not None:
        raise InputError("Images have one label, or a table of labels; give one of the two.")
    if reading.labels is not None and not isinstance(reading.labels, str | Path):
        return [as_source(images, name="images", labels=reading.labels)], []
    named = _named(images)
    if reading.label is None and reading.labels is None:
        return named, []
    streams = open_streams(named, columns=reading.columns)
    if reading.label is not None:
        return [LabelledStream(stream, label=reading.label) for stream in streams], []
    assert reading.labels is not None
    return with_table(streams, read_labels(reading.labels))


def _named(images: ImageSources) -> list[str | Path | Source]:
    """Names of sources as they are; a data set or a list of pictures as a source of its own."""
    if isinstance(images, str | Path | Source):
        return [images]
    if isinstance(images, Sequence) and all(isinstance(image, str | Path | Source) for image in images):
        return list(images)
    return [as_source(images, name="images")]
