"""Embedding very many images: a list of work units, one unit at a time, what they gave together.

    plan = plan_work(method, ["photos/", "shards/"])       # what is to be done: values, no images yet
    shard = embed_unit(method, plan.units[0])              # one unit; any process may do it
    ShardStore(out).collect(len(plan.units))               # after the last one

`embed_files` does the three in turn, resumably; `embedded` gives the shards without writing them. Decoding runs in
threads beside the model, within bounds of memory. Every batch that the model sees has one shape, the last one of a
unit filled up, so that an image's embedding depends neither on the images around it nor on where a run was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from doubtless.data import Source
from doubtless.data.streams.opening import open_streams
from doubtless.data.streams.records import Columns, ImageRecord, ImageStream
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.files import write_json
from doubtless.ingest.decode import decode_all, default_workers
from doubtless.ingest.shards import (
    FORMATS,
    MANIFEST,
    BadImage,
    EmbeddedShard,
    ShardFormat,
    ShardStore,
    read_manifest,
)
from doubtless.methods import Method
from doubtless.runs.data import preparation_of
from doubtless.runs.model import model_fingerprint
from doubtless.version import __version__

if TYPE_CHECKING:
    from doubtless.runs.model import Model


Sources = str | Path | Source | Sequence[str | Path | Source | ImageStream]
"""Folders, image files, lists, tar shards, parquet files, names of sources; or a source or a stream itself."""

SCHEMA = 1
SHARD_SIZE = 4096
CPU_BATCH, GPU_BATCH = 32, 256


class Meter(Protocol):
    """What is told how the work goes: `doubtless.ingest.progress` shows it."""

    def start(self, total: int, done: int) -> None:
        """Called once: so many images, so many of them done before."""

    def advance(self, images: int, bad: int) -> None:
        """Called as images are done, with how many of them are bad."""


@dataclass(frozen=True)
class WorkUnit:
    """Images that become one shard: a value that can be sent to any process."""

    number: int
    images: ImageStream


@dataclass(frozen=True)
class Plan:
    """All the work: units in order, and the manifest that says what they are of."""

    units: list[WorkUnit]
    manifest: dict[str, Any]

    @property
    def total(self) -> int:
        """Images of all units."""
        return int(self.manifest["images"])

    @property
    def batch_size(self) -> int:
        """Images that the model takes at a time."""
        return int(self.manifest["batch_size"])


Produce = Callable[[Sequence[WorkUnit]], Iterable[tuple[int, EmbeddedShard]]]
"""Units to their shards, each with its unit's number, in any order."""


@dataclass(frozen=True)
class Embedded:
    """What `embed_files` has done."""

    folder: Path
    images: int
    items: int
    bad: int
    shards: int
    found_shards: int
    """Of the shards, those that were there already."""


def embed_files(
    model: Model | Method,
    sources: Sources,
    out: str | Path,
    *,
    format: ShardFormat = "safetensors",
    columns: Columns | None = None,
    shard_size: int = SHARD_SIZE,
    batch_size: int | None = None,
    workers: int | None = None,
    meter: Meter | None = None,
) -> Embedded:
    """Embeds all images of some sources into a folder of shards; called again, it continues where it was killed.

    >>> import doubtless
    >>> embed_files(doubtless.load("runs/first"), "photos", "photos-embedded").items
    160
    """
    method, store = method_of(model), ShardStore(Path(out), format)
    store.must_fit()
    plan = plan_work(model, sources, columns=columns, shard_size=shard_size, batch_size=batch_size)

    def produce(units: Sequence[WorkUnit]) -> Iterator[tuple[int, EmbeddedShard]]:
        for unit in units:
            yield (
                unit.number,
                embed_unit(method, unit, batch_size=plan.batch_size, workers=workers, meter=meter),
            )

    return embed_into(store, plan, produce, meter=meter)


def embed_into(store: ShardStore, plan: Plan, produce: Produce, *, meter: Meter | None = None) -> Embedded:
    """Has the shards made that are not there yet, by whatever makes them, and writes each as it comes.

    The meter is told here what there is to do; whoever makes the shards tells it how that goes.
    """
    begin(store, plan)
    waiting = [unit for unit in plan.units if not store.has(unit.number)]
    if meter is not None:
        meter.start(plan.total, plan.total - sum(len(unit.images) for unit in waiting))
    try:
        for number, shard in produce(waiting) if waiting else ():
            store.write(number, shard)
    finally:
        bad = store.collect(len(plan.units))
    count, before = len(plan.units), len(plan.units) - len(waiting)
    return Embedded(store.folder, plan.total, plan.total - len(bad), len(bad), count, before)


def embedded(
    model: Model | Method,
    sources: Sources,
    *,
    columns: Columns | None = None,
    shard_size: int = SHARD_SIZE,
    batch_size: int | None = None,
    workers: int | None = None,
    meter: Meter | None = None,
) -> Iterator[EmbeddedShard]:
    """The embedded images of some sources, shard after shard, written nowhere."""
    method = method_of(model)
    plan = plan_work(model, sources, columns=columns, shard_size=shard_size, batch_size=batch_size)
    if meter is not None:
        meter.start(plan.total, 0)
    for unit in plan.units:
        yield embed_unit(method, unit, batch_size=plan.batch_size, workers=workers, meter=meter)


def plan_work(
    model: Model | Method,
    sources: Sources,
    *,
    columns: Columns | None = None,
    shard_size: int = SHARD_SIZE,
    batch_size: int | None = None,
) -> Plan:
    """Lists the images and cuts them into units; a unit never spans two folders or shards."""
    method = method_of(model)
    for name, value in (("shard_size", shard_size), ("batch_size", batch_size)):
        if value is not None and value < 1:
            raise InputError(f"{name} must be at least 1, got {value}.")
    streams = open_streams(
        [sources] if isinstance(sources, str | Path | Source) else sources, columns=columns
    )
    pieces = [
        stream.slice(start, min(start + shard_size, len(stream)))
        for stream in streams
        for start in range(0, len(stream), shard_size)
    ]
    manifest = {
        "schema": SCHEMA,
        "doubtless": __version__,
        "model": model_fingerprint(method),
        "run": place_of(model),
        "method": method.name,
        "sources": [
            {"name": stream.name, "images": len(stream), "fingerprint": stream.fingerprint()}
            for stream in streams
        ],
        "images": sum(len(stream) for stream in streams),
        "parts": len(pieces),
        "part_size": shard_size,
        "batch_size": batch_size or usual_batch(method),
    }
    return Plan([WorkUnit(number, piece) for number, piece in enumerate(pieces)], manifest)


def begin(store: ShardStore, plan: Plan) -> None:
    """Writes the manifest; a folder that began with other images, another model or format is refused."""
    store.must_fit()
    folder = store.folder
    if not (folder / MANIFEST).exists():
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InputError(f"{folder} exists already and is no embedding of images; name another folder.")
        kind = {} if store.format == FORMATS[0] else {"format": store.format}
        write_json(folder / MANIFEST, plan.manifest | kind)
        return
    before = read_manifest(folder)
    if int(before.get("schema", 0)) > SCHEMA:
        raise InputError(
            f"{folder} was begun by a newer doubtless ({before.get('doubtless')}); update to continue it."
        )
    if changed := [
        text for key, text in _SAME.items() if _essence(before, key) != _essence(plan.manifest, key)
    ]:
        raise InputError(
            f"{folder} was begun with {' and '.join(changed)}; continue it as it was begun, delete it, or name "
            "another folder."
        )


def embed_unit(
    model: Model | Method,
    unit: WorkUnit,
    *,
    batch_size: int,
    workers: int | None = None,
    meter: Meter | None = None,
) -> EmbeddedShard:
    """Embeds the images of one unit; what it gives depends on nothing but the unit and the model."""
    method = method_of(model)
    preparation = preparation_of(method)
    work = _Work(method, batch_size)
    with ThreadPoolExecutor(workers or default_workers(), thread_name_prefix="decode") as pool:
        for record, image in decode_all(unit.images.records(), preparation, pool, ahead=2 * batch_size):
            bad = work.take(record, image)
            if meter is not None:
                meter.advance(1, bad)
        rest = work.finish()
        if meter is not None:
            meter.advance(0, rest)
    return work.shard()


class _Work:
    """Good images fill batches of one shape; the model takes each as it is full."""

    def __init__(self, method: Method, batch_size: int) -> None:
        self.method = method
        self.batch_size = batch_size
        self.waiting: list[tuple[ImageRecord, Tensor]] = []
        self.embeddings: list[Embedding] = []
        self.records: list[ImageRecord] = []
        self.bad: list[BadImage] = []

    def take(self, record: ImageRecord, image: Tensor | str) -> int:
        """How many images turned out to be bad."""
        if isinstance(image, str):
            self.bad.append(BadImage(record.id, record.path, image))
            return 1
        self.waiting.append((record, image))
        return self._embed_waiting() if len(self.waiting) == self.batch_size else 0

    def finish(self) -> int:
        return self._embed_waiting() if self.waiting else 0

    def shard(self) -> EmbeddedShard:
        return EmbeddedShard(
            Embedding.cat(self.embeddings) if self.embeddings else None,
            [record.id for record in self.records],
            [record.label for record in self.records],
            [record.path for record in self.records],
            [record.metadata for record in self.records],
            self.bad,
        )

    def _embed_waiting(self) -> int:
        before, waiting, self.waiting = len(self.bad), self.waiting, []
        try:
            self._keep(waiting, self._embed([image for _, image in waiting]))
        except InputError:  # NaN out of the model: find out whose
            for record, image in waiting:
                try:
                    self._keep([(record, image)], self._embed([image]))
                except InputError as error:
                    self.bad.append(BadImage(record.id, record.path, f"the model fails on it: {error}"))
        return len(self.bad) - before

    def _embed(self, images: list[Tensor]) -> Embedding:
        """Filled up to a whole batch with the first image, which is then dropped again."""
        batch = torch.stack([*images, *[images[0]] * (self.batch_size - len(images))])  # (batch, C, H, W)
        return self.method.embed(batch)[: len(images)].to("cpu")

    def _keep(self, waiting: list[tuple[ImageRecord, Tensor]], embedding: Embedding) -> None:
        has_direction = embedding.location.any(dim=1)
        for (record, _), good in zip(waiting, has_direction.tolist(), strict=True):
            if good:
                self.records.append(record)
            else:
                self.bad.append(
                    BadImage(record.id, record.path, "its embedding is zero and has no direction")
                )
        if bool(has_direction.any()):
            self.embeddings.append(embedding[has_direction.nonzero()[:, 0]])


def usual_batch(method: Method) -> int:
    """Images that a model takes at a time where nobody says otherwise, by its device."""
    return GPU_BATCH if method.device.type == "cuda" else CPU_BATCH


def method_of(model: Model | Method) -> Method:
    """The method, of itself or of a model."""
    return model if isinstance(model, Method) else model.method


def place_of(model: Model | Method) -> str | None:
    """What names a model so that it can be opened again: its run's folder or an import path; None without one."""
    if not isinstance(model, Method):
        return model.place
    return None if model.folder is None else str(model.folder.absolute())


_SAME = {
    "model": "another model",
    "sources": "other images",
    "part_size": "another shard size",
    "batch_size": "another batch size",
}


def _essence(manifest: dict[str, Any], key: str) -> Any:
    """What must stay as it was; where a source lies does not matter."""
    if key != "sources":
        return manifest.get(key)
    return [(source["images"], source["fingerprint"]) for source in manifest["sources"]]
