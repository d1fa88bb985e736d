"""A new index out of parts, whole or not at all: it is built beside its place and moved there at the end.

While `gallery` is being made, all of it lies in `.gallery.creating`, which goes when it is done or has failed.
After a kill it stays; the next creation of `gallery` clears it away, or, from images, continues it.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doubtless.embedding import Embedding
from doubtless.errors import InputError, StoreError
from doubtless.index.base import Index, folder_beside
from doubtless.index.folder import FolderIndex
from doubtless.index.lock import WriterLock
from doubtless.index.milvus.connection import Address, is_milvus
from doubtless.index.settings import IndexScore, Kind
from doubtless.ingest.bulk import SHARD_SIZE, Meter, embed_files, method_of
from doubtless.ingest.parquet import Columns
from doubtless.ingest.shards import BadImage, EmbeddedShard, read_shards, write_bad
from doubtless.methods import Method
from doubtless.runs.model import model_fingerprint

if TYPE_CHECKING:
    from doubtless.runs.model import Model


MODEL = "model"
"""Under this name an index keeps where the run lies whose embeddings it holds."""

EMBEDDED = "embedded"
UNFINISHED = "its creation was stopped; repeat the command, which begins anew."


@dataclass
class Filled:
    """What has been put into an index."""

    path: Path | str
    """Of the index, or its address in Milvus."""
    items: int = 0
    skipped: int = 0
    """Items that were there already and left alone."""
    bad: list[BadImage] = field(default_factory=list)


def create_index(
    path: str | Path,
    parts: Iterable[EmbeddedShard],
    *,
    kind: Kind = "auto",
    score: IndexScore = "direction",
    model: str | None = None,
    run: str | Path | None = None,
) -> Filled:
    """A new index of everything in `parts`.

    model: the fingerprint of what made the embeddings; run: where that lies, so that a search can find it.
    """
    options: dict[str, Any] = {"kind": kind, "score": score, "model": model, "run": run}
    if is_milvus(path):
        return _build_in_milvus(str(path), parts, **options)
    path = Path(path)
    with _workshop(path) as folder:
        return _finish(path, _build(folder / "index", parts, **options))


def create_index_of_images(
    path: str | Path,
    model: Model | Method,
    sources: str | Path | Sequence[str | Path],
    *,
    kind: Kind = "auto",
    score: IndexScore = "direction",
    columns: Columns | None = None,
    shard_size: int = SHARD_SIZE,
    batch_size: int | None = None,
    workers: int | None = None,
    meter: Meter | None = None,
) -> Filled:
    """A new index of images: embedded into the workshop first, which a killed creation continues."""
    method, elsewhere = method_of(model), is_milvus(path)
    place = Address.parse(str(path)).beside("embedded") if elsewhere else Path(path)
    with _workshop(place, keep=EMBEDDED) as folder:
        embed_files(
            method,
            sources,
            folder / EMBEDDED,
            columns=columns,
            shard_size=shard_size,
            batch_size=batch_size,
            workers=workers,
            meter=meter,
        )
        options: dict[str, Any] = {"kind": kind, "score": score, "model": model_fingerprint(method)}
        parts = read_shards(folder / EMBEDDED)
        if elsewhere:
            return _build_in_milvus(str(path), parts, **options, run=method.folder)
        return _finish(place, _build(folder / "index", parts, **options, run=method.folder))


def fill(
    index: Index, parts: Iterable[EmbeddedShard], *, existing: str = "refuse", model: str | None = None
) -> Filled:
    """Adds parts to an index, each durable by itself; what is there already is refused, skipped or updated."""
    if existing not in ("refuse", "skip", "update"):
        raise InputError(f"existing items are to refuse, skip or update, got {existing!r}.")
    done, known = Filled(index.path), set(index.ids()) if existing != "refuse" else set[str]()
    for part in parts:
        done.bad += part.bad
        if part.embedding is None:
            continue
        old = [row for row, name in enumerate(part.ids) if name in known]
        new = [row for row, name in enumerate(part.ids) if name not in known]
        if new:
            index.add(part.embedding[new], **_chosen(part, new), model=model)
        if old and existing == "update":
            index.update(part.embedding[old], **_chosen(part, old), model=model)
        done.skipped += len(old) if existing == "skip" else 0
        done.items += len(new) + (len(old) if existing == "update" else 0)
    return done


def recorded_run(index: Index) -> Path | None:
    """Where the run lay whose embeddings the index holds, when it was created."""
    found = index.attached(MODEL)
    return None if found is None or not found[1].get("run") else Path(found[1]["run"])


def _build_in_milvus(path: str, parts: Iterable[EmbeddedShard], **options: Any) -> Filled:
    """A new index in Milvus, which nobody can open before it is whole."""
    from doubtless.index.milvus.index import MilvusIndex, discard_unfinished, look_at

    if look_at(path)[1] == UNFINISHED:
        discard_unfinished(path)  # of a process that was killed

    def make(**shape: Any) -> Index:
        return MilvusIndex.create(path, **shape, unfinished=UNFINISHED)

    try:
        done = _build(path, parts, **options, make=make)
        with MilvusIndex.open(path, writable=True, unfinished=True) as index:
            index.finish()
    except BaseException:
        with contextlib.suppress(InputError, StoreError):
            if look_at(path)[1] == UNFINISHED:
                discard_unfinished(path)
        raise
    if done.bad:
        write_bad(folder_beside(path), done.bad)
    return done


def _build(
    path: Path | str,
    parts: Iterable[EmbeddedShard],
    *,
    kind: Kind,
    score: IndexScore,
    model: str | None,
    run: str | Path | None,
    make: Callable[..., Index] | None = None,
) -> Filled:
    make = make or functools.partial(FolderIndex.create, path)
    remaining, empty = iter(parts), list[BadImage]()
    for first in remaining:
        empty += first.bad if first.embedding is None else []
        if first.embedding is not None:
            break
    else:
        why = f"; of {len(empty)} images none could be used, the first: {empty[0].reason}" if empty else ""
        raise InputError(f"there is nothing to put into an index{why}.")
    with make(**_shape(first.embedding), kind=kind, score=score, model=model) as index:
        if run is not None:
            index.attach(MODEL, {}, {"run": str(Path(run).absolute()), "fingerprint": model})
        done = fill(index, _chain(first, remaining), model=model)
    done.bad = empty + done.bad
    return done


def _shape(embedding: Embedding) -> dict[str, Any]:
    """What an index must be to take embeddings like these."""
    variance = embedding.parameters.get("variance")
    return {
        "family": embedding.family,
        "dim": embedding.dim,
        "variances": None if variance is None else variance.shape[1],
    }


def _chain(first: EmbeddedShard, others: Iterator[EmbeddedShard]) -> Iterator[EmbeddedShard]:
    yield first
    yield from others


def _chosen(part: EmbeddedShard, rows: list[int]) -> dict[str, Any]:
    return {
        "ids": [part.ids[row] for row in rows],
        "labels": [part.labels[row] for row in rows],
        "paths": [part.paths[row] for row in rows],
        "metadata": [part.metadata[row] for row in rows],
    }


def _finish(path: Path, done: Filled) -> Filled:
    """Moves the finished index to its place."""
    built = Path(done.path)
    if done.bad:
        write_bad(built, done.bad)
    _refuse_existing(path)
    try:
        os.replace(built, path)
    except OSError as error:
        raise StoreError(
            f"The index {path} cannot be put into its place: {error.strerror or error}."
        ) from error
    return Filled(path, done.items, done.skipped, done.bad)


@contextlib.contextmanager
def _workshop(path: Path, *, keep: str | None = None) -> Iterator[Path]:
    """The folder beside `path` in which it is made; `keep` in it survives a failure once it has something."""
    _refuse_existing(path)
    folder = path.with_name(f".{path.name}.creating")
    if keep is None:
        _refuse_unfinished(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(f"{folder} cannot be made: {error.strerror or error}.") from error
    lock = WriterLock(folder / "creating.lock")  # a second creation of the same index is told so
    try:
        shutil.rmtree(folder / "index", ignore_errors=True)  # of a process that was killed: the lock is ours
        yield folder
    except BaseException:
        shutil.rmtree(folder / "index", ignore_errors=True)
        if keep is None or not any((folder / keep).glob("part-*")):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    else:
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        lock.release()


def _refuse_unfinished(folder: Path) -> None:
    """What a stopped creation has embedded is continued by its own command, and by no other cleared away."""
    if any((folder / EMBEDDED).glob("part-*")):
        raise InputError(
            f"{folder} holds images that were embedded for this index by a creation that was stopped; repeat that "
            "command to continue it, or delete the folder."
        )


def _refuse_existing(path: Path) -> None:
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} exists already; an index is only created where there is nothing.")
