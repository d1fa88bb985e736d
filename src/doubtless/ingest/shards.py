"""Embedded images and who they are; a folder of such shards on disk, which `doubtless embed` writes.

    embed.json                 what is embedded, and by which model
    part-00000.safetensors     distributions and ids, as `doubtless.embedding.read_embedding` reads them
    part-00000.json            labels, paths and metadata, item by item, and the shard's bad images
    bad.csv                    all bad images with the reason, when the work is done or stopped

A shard is there when its JSON is: it is written last, and each file is written, synced and renamed.

A parquet shard is one file, part-00000.parquet: columns `id`, `label`, `path`, `metadata` (JSON), the family's
parameters (`location`, `variance`, `concentration`, `samples`) and `uncertainty`; its schema's metadata has
the family and the bad images. pandas, Spark, DuckDB and Ray read it as it is.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from doubtless.embedding import FAMILIES, Embedding, read_embedding, save_embedding
from doubtless.errors import InputError
from doubtless.files import read_json, reading, write_bytes, write_json, write_text
from doubtless.parquet import arrow_and_parquet

MANIFEST = "embed.json"
BAD = "bad.csv"
AGAIN = "Delete it, and the same `doubtless embed` makes it again."


class BadImage(NamedTuple):
    """An image that was skipped, and why."""

    id: str
    path: str | None
    reason: str


@dataclass(frozen=True)
class EmbeddedShard:
    """Some embedded items, and who they are."""

    embedding: Embedding | None
    """None: there is no item, all images were bad."""
    ids: list[str]
    labels: list[str | None]
    paths: list[str | None]
    metadata: list[dict[str, Any]]
    bad: list[BadImage] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = 0 if self.embedding is None else len(self.embedding)
        for name in ("ids", "labels", "paths", "metadata"):
            if len(getattr(self, name)) != count:
                raise InputError(
                    f"{name.capitalize()} must have one entry per item, got {len(getattr(self, name))} for {count}."
                )

    def __len__(self) -> int:
        return len(self.ids)


def write_shard(folder: Path, number: int, shard: EmbeddedShard) -> None:
    """Distributions first, then who they are: a shard with its JSON is whole."""
    if shard.embedding is not None:
        save_embedding(_vectors(folder, number), shard.embedding, ids=shard.ids)
    about = {
        "items": len(shard),
        "labels": shard.labels,
        "paths": shard.paths,
        "metadata": shard.metadata if any(shard.metadata) else None,
        "bad": shard.bad,
    }
    write_json(_about(folder, number), about)


def has_shard(folder: Path, number: int) -> bool:
    """Whether a shard is there whole."""
    about = _about(folder, number)
    return about.is_file() and (read_json(about)["items"] == 0 or _vectors(folder, number).is_file())


def read_shard(folder: Path, number: int) -> EmbeddedShard:
    """What `write_shard` was given."""
    about = read_json(_about(folder, number))
    bad = [BadImage(*entry) for entry in about["bad"]]
    if about["items"] == 0:
        return EmbeddedShard(None, [], [], [], [], bad)
    stored = read_embedding(_vectors(folder, number))
    if stored.ids is None:
        raise InputError(f"{_vectors(folder, number)} has lost its ids; delete it and embed again.")
    metadata = about["metadata"] or [{} for _ in stored.ids]
    return EmbeddedShard(stored.embedding, stored.ids, about["labels"], about["paths"], metadata, bad)


def read_manifest(folder: str | Path) -> dict[str, Any]:
    """What is embedded in a folder, and by which model."""
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise InputError(f"{folder} was not made by `doubtless embed`: it has no {MANIFEST}.")
    about = read_json(path)
    wanted = {"parts": int, "model": str}
    if not isinstance(about, dict) or not all(
        isinstance(about.get(name), kind) for name, kind in wanted.items()
    ):
        raise InputError(f"{path} is damaged: it does not say how many parts there are, and of which model.")
    return about


def write_bad(folder: Path, bad: Sequence[BadImage]) -> None:
    """id, path, reason of every skipped image; only a heading where there is none."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(BadImage._fields)
    lines.writerows(bad)
    write_text(folder / BAD, text.getvalue())


def remove_leftovers(folder: Path) -> None:
    """Temporary files of a killed process, once all shards are there."""
    for file in folder.glob(".part-*"):
        file.unlink(missing_ok=True)


def bad_of_shard(folder: Path, number: int) -> list[BadImage]:
    """The bad images of one shard."""
    return [BadImage(*entry) for entry in read_json(_about(folder, number))["bad"]]


def _vectors(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.safetensors"


def _about(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.json"


ShardFormat = Literal["safetensors", "parquet"]
FORMATS: tuple[ShardFormat, ...] = ("safetensors", "parquet")
ABOUT = b"doubtless"
SCHEMA = 1


@dataclass(frozen=True)
class ShardStore:
    """The shards of one folder in one format; each is whole or not there."""

    folder: Path
    format: ShardFormat = "safetensors"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise InputError(f"There is no format {self.format!r}; accepted: {', '.join(FORMATS)}.")
        if self.format == "parquet":
            arrow_and_parquet()

    def has(self, number: int) -> bool:
        """Whether a shard is there whole."""
        if self.format == "parquet":
            return self._file(number).is_file()
        with reading(self._place(number), "shard", then=AGAIN):
            return has_shard(self.folder, number)

    def write(self, number: int, shard: EmbeddedShard) -> None:
        """Writes a shard, whole or not at all."""
        if self.format == "parquet":
            write_bytes(self._file(number), encode_shard(shard))
        else:
            write_shard(self.folder, number, shard)

    def read(self, number: int) -> EmbeddedShard:
        """What `write` was given."""
        with reading(self._place(number), "shard", then=AGAIN):
            if self.format == "parquet":
                return decode_shard(self._file(number).read_bytes())
            return read_shard(self.folder, number)

    def bad(self, number: int) -> list[BadImage]:
        """The bad images of one shard."""
        with reading(self._place(number), "shard", then=AGAIN):
            if self.format != "parquet":
                return bad_of_shard(self.folder, number)
            _, parquet = arrow_and_parquet()
            about = json.loads(parquet.read_schema(self._file(number)).metadata[ABOUT])
            return [BadImage(*entry) for entry in about["bad"]]

    def must_fit(self) -> None:
        """Refuses a folder that was begun in the other format."""
        if not (self.folder / MANIFEST).exists():
            return
        before = read_manifest(self.folder).get("format", FORMATS[0])
        if before != self.format:
            raise InputError(
                f"{self.folder} was begun as {before}; continue it as it was begun, or name another folder."
            )

    def collect(self, count: int) -> list[BadImage]:
        """Lists the bad images of those of `count` shards that are there in bad.csv; with all there, tidies up."""
        there = [number for number in range(count) if self.has(number)]
        bad = [image for number in there for image in self.bad(number)]
        write_bad(self.folder, bad)
        if len(there) == count:
            remove_leftovers(self.folder)
        return bad

    def _file(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}.parquet"

    def _place(self, number: int) -> Path:
        """What is read first of a shard."""
        return self._file(number) if self.format == "parquet" else _about(self.folder, number)


def read_shards(folder: str | Path) -> Iterator[EmbeddedShard]:
    """All shards of a finished folder, in order, one at a time in memory; in whichever format it was made."""
    about = read_manifest(folder)
    store, count = ShardStore(Path(folder), about.get("format", FORMATS[0])), int(about["parts"])
    if missing := [number for number in range(count) if not store.has(number)]:
        raise InputError(
            f"{folder} is not finished: {len(missing)} of {count} shards are missing; continue it with the same "
            "`doubtless embed`."
        )
    return (store.read(number) for number in range(count))


def encode_shard(shard: EmbeddedShard) -> bytes:
    """A shard as the bytes of a parquet file; every number as it is, bit for bit."""
    arrow, parquet = arrow_and_parquet()
    texts = {
        "id": shard.ids,
        "label": shard.labels,
        "path": shard.paths,
        "metadata": [json.dumps(values, ensure_ascii=False) if values else None for values in shard.metadata],
    }
    columns = {name: arrow.array(values, arrow.string()) for name, values in texts.items()}
    about: dict[str, Any] = {"schema": SCHEMA, "bad": shard.bad}
    if shard.embedding is not None:
        about["family"] = shard.embedding.family
        columns |= _number_columns(shard.embedding, about)
    schema = arrow.schema(
        [(name, values.type) for name, values in columns.items()], metadata={ABOUT: json.dumps(about)}
    )
    file = io.BytesIO()
    parquet.write_table(arrow.table(list(columns.values()), schema=schema), file, compression="zstd")
    return file.getvalue()


def decode_shard(data: bytes) -> EmbeddedShard:
    """What `encode_shard` was given."""
    _, parquet = arrow_and_parquet()
    table = parquet.read_table(io.BytesIO(data))
    about = json.loads(table.schema.metadata[ABOUT])
    if about["schema"] > SCHEMA:
        raise InputError(
            f"A parquet shard has schema {about['schema']}, this doubtless reads up to {SCHEMA}; update it."
        )
    texts = {name: table.column(name).to_pylist() for name in ("id", "label", "path", "metadata")}
    return EmbeddedShard(
        _embedding_of(table, about) if "family" in about else None,
        texts["id"],
        texts["label"],
        texts["path"],
        [json.loads(values) if values else {} for values in texts["metadata"]],
        [BadImage(*entry) for entry in about["bad"]],
    )


def _number_columns(embedding: Embedding, about: dict[str, Any]) -> dict[str, Any]:
    """One column per parameter, items first, and the uncertainty; the shapes of an item's numbers go into
    `about`."""
    arrow, _ = arrow_and_parquet()
    columns, shapes = {}, {}
    for name, axis in embedding.item_axes.items():
        values = embedding.parameters[name].detach().cpu().movedim(axis, 0)  # (n, …)
        shapes[name] = list(values.shape[1:])
        flat = arrow.array(values.reshape(-1).numpy())
        width = int(np.prod(shapes[name]))
        columns[name] = flat if not shapes[name] else arrow.FixedSizeListArray.from_arrays(flat, width)
    if (uncertainty := embedding.uncertainty) is not None:
        columns["uncertainty"] = arrow.array(uncertainty.detach().cpu().numpy())
    about["shapes"] = shapes
    return columns


def _embedding_of(table: Any, about: dict[str, Any]) -> Embedding:
    kind = FAMILIES[about["family"]]
    parameters: dict[str, Tensor] = {}
    for name, axis in kind.item_axes.items():
        column, shape = table.column(name).combine_chunks(), about["shapes"][name]
        flat = (column.flatten() if shape else column).to_numpy(zero_copy_only=False)
        values = torch.from_numpy(flat.copy()).reshape(len(table), *shape)
        parameters[name] = values.movedim(0, axis).contiguous()
    return kind(parameters)
