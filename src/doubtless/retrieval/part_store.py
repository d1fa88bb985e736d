"""Where embedded parts are kept: safetensors with JSON as `doubtless embed` writes them, or parquet files.

A parquet part is one file, part-00000.parquet: columns `id`, `label`, `path`, `metadata` (JSON), the family's
parameters (`location`, `variance`, `concentration`, `samples`) and `uncertainty`; its schema's metadata has
the family and the bad images. pandas, Spark, DuckDB and Ray read it as it is.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor

from doubtless.embedding import FAMILIES, Embedding
from doubtless.errors import InputError
from doubtless.files import write_bytes
from doubtless.methods import Method
from doubtless.retrieval.bulk import (
    PART_SIZE,
    Embedded,
    Meter,
    Plan,
    WorkUnit,
    begin,
    embed_unit,
    method_of,
    plan_work,
)
from doubtless.retrieval.embedded_parts import (
    MANIFEST,
    BadImage,
    EmbeddedPart,
    bad_of_part,
    has_part,
    read_manifest,
    remove_leftovers,
    write_bad,
    write_part,
)
from doubtless.retrieval.parquet_stream import Columns

if TYPE_CHECKING:
    from doubtless.api import Model

PartFormat = Literal["safetensors", "parquet"]
FORMATS: tuple[PartFormat, ...] = ("safetensors", "parquet")
ABOUT = b"doubtless"
SCHEMA = 1

Produce = Callable[[Sequence[WorkUnit]], Iterable[tuple[int, EmbeddedPart]]]
"""Units to their parts, each with its unit's number, in any order."""


@dataclass(frozen=True)
class PartStore:
    """The parts of one folder in one format; each is whole or not there."""

    folder: Path
    format: PartFormat = "safetensors"

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise InputError(f"There is no format {self.format!r}; accepted: {', '.join(FORMATS)}.")
        if self.format == "parquet":
            _arrow()

    def has(self, number: int) -> bool:
        return self._file(number).is_file() if self.format == "parquet" else has_part(self.folder, number)

    def write(self, number: int, part: EmbeddedPart) -> None:
        if self.format == "parquet":
            write_bytes(self._file(number), encode_part(part))
        else:
            write_part(self.folder, number, part)

    def bad(self, number: int) -> list[BadImage]:
        if self.format != "parquet":
            return bad_of_part(self.folder, number)
        _, parquet = _arrow()
        about = json.loads(parquet.read_schema(self._file(number)).metadata[ABOUT])
        return [BadImage(*entry) for entry in about["bad"]]

    def begin(self, plan: Plan) -> None:
        """As `doubtless.retrieval.bulk.begin`; a folder that began in the other format is refused too."""
        self.must_fit()
        extra = {} if self.format == FORMATS[0] else {"format": self.format}
        begin(self.folder, Plan(plan.units, plan.manifest | extra))

    def must_fit(self) -> None:
        """Refuses a folder that was begun in the other format."""
        if not (self.folder / MANIFEST).exists():
            return
        before = read_manifest(self.folder).get("format", FORMATS[0])
        if before != self.format:
            raise InputError(
                f"{self.folder} was begun as {before}; continue it as it was begun, or name another folder."
            )

    def collect(self, plan: Plan) -> list[BadImage]:
        """Lists the bad images of the parts that are there in bad.csv; with all of them there, tidies up."""
        there = [unit.number for unit in plan.units if self.has(unit.number)]
        bad = [image for number in there for image in self.bad(number)]
        write_bad(self.folder, bad)
        if len(there) == len(plan.units):
            remove_leftovers(self.folder)
        return bad

    def _file(self, number: int) -> Path:
        return self.folder / f"part-{number:05d}.parquet"


def embed_into(store: PartStore, plan: Plan, produce: Produce, *, meter: Meter | None = None) -> Embedded:
    """Has the parts made that are not there yet, by whatever makes them, and writes each as it comes."""
    store.begin(plan)
    waiting = {unit.number: unit for unit in plan.units if not store.has(unit.number)}
    found = len(plan.units) - len(waiting)
    if meter is not None:
        meter.start(plan.total, plan.total - sum(len(unit.images) for unit in waiting.values()))
    try:
        for number, part in produce(list(waiting.values())) if waiting else ():
            store.write(number, part)
            if meter is not None:
                meter.advance(len(waiting[number].images), len(part.bad))
    finally:
        bad = store.collect(plan)
    return Embedded(store.folder, plan.total, plan.total - len(bad), len(bad), len(plan.units), found)


def embed_to_parquet(
    model: Model | Method,
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    columns: Columns | None = None,
    part_size: int = PART_SIZE,
    batch_size: int | None = None,
    workers: int | None = None,
    meter: Meter | None = None,
) -> Embedded:
    """As `doubtless.retrieval.bulk.embed_files`, into parquet files."""
    method = method_of(model)
    plan = plan_work(method, sources, columns=columns, part_size=part_size, batch_size=batch_size)

    def produce(units: Sequence[WorkUnit]) -> Iterator[tuple[int, EmbeddedPart]]:
        for unit in units:
            yield unit.number, embed_unit(method, unit, batch_size=plan.batch_size, workers=workers)

    return embed_into(PartStore(Path(out), "parquet"), plan, produce, meter=meter)


def read_parquet_parts(folder: str | Path) -> Iterator[EmbeddedPart]:
    """All parts of a finished folder of parquet files, in order, one at a time in memory."""
    store = PartStore(Path(folder), "parquet")
    count = int(read_manifest(folder)["parts"])
    if missing := [number for number in range(count) if not store.has(number)]:
        raise InputError(
            f"{folder} is not finished: {len(missing)} of {count} parts are missing; continue it."
        )
    return (decode_part(store._file(number).read_bytes()) for number in range(count))


def encode_part(part: EmbeddedPart) -> bytes:
    """A part as the bytes of a parquet file; every number as it is, bit for bit."""
    arrow, parquet = _arrow()
    texts = {
        "id": part.ids,
        "label": part.labels,
        "path": part.paths,
        "metadata": [json.dumps(values, ensure_ascii=False) if values else None for values in part.metadata],
    }
    columns = {name: arrow.array(values, arrow.string()) for name, values in texts.items()}
    about: dict[str, Any] = {"schema": SCHEMA, "bad": part.bad}
    if part.embedding is not None:
        about["family"] = part.embedding.family
        columns |= _number_columns(part.embedding, about)
    schema = arrow.schema(
        [(name, values.type) for name, values in columns.items()], metadata={ABOUT: json.dumps(about)}
    )
    file = io.BytesIO()
    parquet.write_table(arrow.table(list(columns.values()), schema=schema), file, compression="zstd")
    return file.getvalue()


def decode_part(data: bytes) -> EmbeddedPart:
    """What `encode_part` was given."""
    _, parquet = _arrow()
    table = parquet.read_table(io.BytesIO(data))
    about = json.loads(table.schema.metadata[ABOUT])
    if about["schema"] > SCHEMA:
        raise InputError(
            f"A parquet part has schema {about['schema']}, this doubtless reads up to {SCHEMA}; update it."
        )
    texts = {name: table.column(name).to_pylist() for name in ("id", "label", "path", "metadata")}
    return EmbeddedPart(
        _embedding_of(table, about) if "family" in about else None,
        texts["id"],
        texts["label"],
        texts["path"],
        [json.loads(values) if values else {} for values in texts["metadata"]],
        [BadImage(*entry) for entry in about["bad"]],
    )


def _number_columns(embedding: Embedding, about: dict[str, Any]) -> dict[str, Any]:
    """One column a parameter, items first, and the uncertainty; the shapes of an item's numbers go into
    `about`."""
    arrow, _ = _arrow()
    found, shapes = {}, {}
    for name, axis in embedding.item_axes.items():
        values = embedding.parameters[name].detach().cpu().movedim(axis, 0)  # (n, …)
        shapes[name] = list(values.shape[1:])
        flat = arrow.array(values.reshape(-1).numpy())
        width = int(np.prod(shapes[name]))
        found[name] = flat if not shapes[name] else arrow.FixedSizeListArray.from_arrays(flat, width)
    if (uncertainty := embedding.uncertainty) is not None:
        found["uncertainty"] = arrow.array(uncertainty.detach().cpu().numpy())
    about["shapes"] = shapes
    return found


def _embedding_of(table: Any, about: dict[str, Any]) -> Embedding:
    kind = FAMILIES[about["family"]]
    parameters: dict[str, Tensor] = {}
    for name, axis in kind.item_axes.items():
        column, shape = table.column(name).combine_chunks(), about["shapes"][name]
        flat = (column.flatten() if shape else column).to_numpy(zero_copy_only=False)
        values = torch.from_numpy(flat.copy()).reshape(len(table), *shape)
        parameters[name] = values.movedim(0, axis).contiguous()
    return kind(parameters)


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InputError("Parquet files need pyarrow: pip install 'doubtless[parquet]'.") from None
    return pyarrow, parquet
