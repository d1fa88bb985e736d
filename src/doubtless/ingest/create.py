"""A new index out of embedded shards, whole or not at all (`Index.under_construction`).

Images are embedded into `.NAME.creating` beside the index first. After a kill that stays, and the next creation of
the same index from images continues it.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from doubtless.data.streams.records import Columns
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.index.backends import backend_of
from doubtless.index.base import Index
from doubtless.index.construction import Construction, exists_already, locked_folder
from doubtless.index.settings import KEPT_MODEL, MODEL, IndexScore, Kind, Settings, settings_of
from doubtless.ingest.bulk import SHARD_SIZE, Meter, Sources, embed_files, method_of, place_of
from doubtless.ingest.shards import BadImage, EmbeddedShard, read_shards, write_bad
from doubtless.methods import Method
from doubtless.registry import names_network
from doubtless.runs.model import model_fingerprint
from doubtless.runs.pretrained import can_be_saved, save_method

if TYPE_CHECKING:
    from doubtless.runs.model import Model

EMBEDDED = "embedded"
Finish = Callable[
    ["Model | Method", Callable[[], Iterable[EmbeddedShard]]],
    tuple["Model | Method", Iterable[EmbeddedShard]],
]
"""A model and what gives all that it has embedded, to another model and what that would have embedded."""
CREATION = Construction("creating", "its creation was stopped; repeat the command, which begins anew.")


@dataclass
class Filled:
    """What has been put into an index."""

    path: Path | str
    """Of the index, or its address."""
    items: int = 0
    skipped: int = 0
    """Items that were there already and left alone."""
    bad: list[BadImage] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """Sentences about what became of what was given."""


def create_index(
    path: str | Path,
    shards: Iterable[EmbeddedShard],
    *,
    kind: Kind = "auto",
    score: IndexScore = "direction",
    model: str | None = None,
    run: str | Path | None = None,
    keep: Method | None = None,
) -> Filled:
    """A new index of everything in `shards`.

    model: the fingerprint of what made the embeddings; run: where that is, a run's folder or an import path, so
    that a search can find it; keep: the model itself, which is then kept beside the items.
    """
    backend, name = backend_of(path)
    if backend.exists(name):
        raise exists_already(name)
    _refuse_embedded(backend.beside(name, CREATION.name))
    return _build(path, shards, kind=kind, score=score, model=model, run=run, keep=keep)


def create_index_of_images(
    path: str | Path,
    model: Model | Method,
    sources: Sources,
    *,
    kind: Kind = "auto",
    score: IndexScore = "direction",
    finish: Finish | None = None,
    columns: Columns | None = None,
    shard_size: int = SHARD_SIZE,
    batch_size: int | None = None,
    workers: int | None = None,
    meter: Meter | None = None,
) -> Filled:
    """A new index of images: embedded beside it first, which a killed creation continues.

    finish: makes another model of the first and of all it has embedded, such as one with a head for these images.
    """
    backend, name = backend_of(path)
    if backend.exists(name):
        raise exists_already(name)
    with _workshop(backend.beside(name, CREATION.name)) as folder:
        embed_files(
            model,
            sources,
            folder,
            columns=columns,
            shard_size=shard_size,
            batch_size=batch_size,
            workers=workers,
            meter=meter,
        )
        shards: Iterable[EmbeddedShard] = read_shards(folder)
        if finish is not None:
            model, shards = finish(model, lambda: read_shards(folder))
        method = method_of(model)
        fingerprint = model_fingerprint(method)
        return _build(
            path, shards, kind=kind, score=score, model=fingerprint, run=place_of(model), keep=method
        )


def fill(
    index: Index, shards: Iterable[EmbeddedShard], *, existing: str = "refuse", model: str | None = None
) -> Filled:
    """Adds shards to an index, each durable by itself; what is there already is refused, skipped or updated."""
    if existing not in ("refuse", "skip", "update"):
        raise InputError(f"Existing items are to refuse, skip or update, got {existing!r}.")
    filled, known = Filled(index.path), set(index.ids()) if existing != "refuse" else set[str]()
    for shard in shards:
        filled.bad += shard.bad
        if shard.embedding is None:
            continue
        old = [row for row, name in enumerate(shard.ids) if name in known]
        new = [row for row, name in enumerate(shard.ids) if name not in known]
        if new:
            index.add(shard.embedding[new], **_chosen(shard, new), model=model)
        if old and existing == "update":
            index.update(shard.embedding[old], **_chosen(shard, old), model=model)
        filled.skipped += len(old) if existing == "skip" else 0
        filled.items += len(new) + (len(old) if existing == "update" else 0)
    return filled


def _build(
    path: str | Path,
    shards: Iterable[EmbeddedShard],
    *,
    kind: Kind,
    score: IndexScore,
    model: str | None,
    run: str | Path | None,
    keep: Method | None,
) -> Filled:
    backend, name = backend_of(path)
    remaining, empty = iter(shards), list[BadImage]()
    for first in remaining:
        empty += first.bad if first.embedding is None else []
        if first.embedding is not None:
            break
    else:
        why = f"; of {len(empty)} images none could be used, the first: {empty[0].reason}" if empty else ""
        raise InputError(f"There is nothing to put into an index{why}.")
    settings = _settings_for(first.embedding, kind=kind, score=score, model=model)
    with backend.under_construction(name, settings, CREATION) as index:
        if keep is not None:
            _keep_model(keep, backend.lists(index.path))
        if run is not None:
            index.attach(MODEL, {}, {"run": _absolute(run), "fingerprint": model})
        filled = fill(index, chain([first], remaining), model=model)
        filled.bad = empty + filled.bad
        if filled.bad:
            write_bad(backend.lists(index.path), filled.bad)
    return replace(filled, path=path)


def _keep_model(method: Method, folder: Path) -> None:
    """The gallery then opens wherever it is taken. An ensemble stays where its runs are."""
    if can_be_saved(method):
        save_method(method, folder / KEPT_MODEL)


def _settings_for(embedding: Embedding, *, kind: Kind, score: IndexScore, model: str | None) -> Settings:
    """What an index must be to take embeddings like these."""
    variance = embedding.parameters.get("variance")
    variances = None if variance is None else variance.shape[1]
    return settings_of(
        family=embedding.family,
        dim=embedding.dim,
        variances=variances,
        kind=kind,
        model=model,
        score=score,
    )


def _absolute(run: str | Path) -> str:
    """What names a model from everywhere: a folder's absolute path; an import path is one already."""
    return str(run) if names_network(str(run)) else str(Path(run).absolute())


def _chosen(shard: EmbeddedShard, rows: list[int]) -> dict[str, Any]:
    return {
        "ids": [shard.ids[row] for row in rows],
        "labels": [shard.labels[row] for row in rows],
        "paths": [shard.paths[row] for row in rows],
        "metadata": [shard.metadata[row] for row in rows],
    }


@contextlib.contextmanager
def _workshop(workshop: Path) -> Iterator[Path]:
    """The folder in which images are embedded; what is in it survives a failure once it has something."""
    folder = workshop / EMBEDDED
    with locked_folder(workshop, "embedding.lock"):
        try:
            yield folder
        except BaseException:
            if not _has_shards(folder):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


def _has_shards(folder: Path) -> bool:
    return any(folder.glob("part-*"))


def _refuse_embedded(workshop: Path) -> None:
    """What a stopped creation has embedded is continued by its own command, and by no other cleared away."""
    if _has_shards(workshop / EMBEDDED):
        raise InputError(
            f"{workshop} holds images that were embedded for this index by a creation that was stopped; repeat "
            "that command to continue it, or delete the folder."
        )
