"""Parquet files with a column of images: bytes, or {bytes, path} as Hugging Face's datasets write them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from doubtless.data.images import too_large
from doubtless.data.streams.records import Columns, ImageRecord, file_fingerprint, plain_metadata
from doubtless.data.streams.tables import FILE_NAMES, LABEL_NAMES
from doubtless.errors import InputError, nearest
from doubtless.files import reading
from doubtless.parquet import opened_parquet

IMAGE_NAMES = ("image", "img", "picture", "image_bytes", "bytes", "jpg", "jpeg", "png")
ID_NAMES = ("id", "image_id", "__key__", "key")
ROWS = 64  # in memory at a time


@dataclass(frozen=True)
class ParquetStream:
    """Rows first … stop − 1 of a file. Without a column of ids, an id is file name and row."""

    path: Path
    columns: Columns
    first: int
    stop: int

    @classmethod
    def open(cls, path: Path, columns: Columns) -> ParquetStream:
        """Finds the columns of a file."""
        with opened_parquet(path) as file:
            detected = detect_columns(path, file.schema_arrow, columns)
            rows = file.metadata.num_rows
        if rows == 0:
            raise InputError(f"{path} holds no rows.")
        return cls(path.absolute(), detected, 0, rows)

    @property
    def name(self) -> str:
        """Where they come from."""
        return str(self.path)

    def __len__(self) -> int:
        return self.stop - self.first

    def ids(self) -> Iterator[str]:
        """All ids, in order, without reading an image."""
        if self.columns.id is None:
            return (self._numbered(row) for row in range(self.first, self.stop))
        return (self._named(row, values[self.columns.id]) for row, values in self._rows([self.columns.id]))

    def fingerprint(self) -> str:
        """Changes when the images do."""
        return f"{file_fingerprint(self.path)}-{self.columns.image}-{self.columns.label}-{self.columns.id}"

    def slice(self, start: int, stop: int) -> ParquetStream:
        """Images start … stop − 1 alone."""
        return replace(self, first=self.first + start, stop=self.first + stop)

    def records(self) -> Iterator[ImageRecord]:
        """One by one, not yet decoded."""
        with opened_parquet(self.path) as file:
            schema = file.schema_arrow
        used = {self.columns.image, self.columns.label, self.columns.id}
        others = [field.name for field in schema if is_plain(field.type) and field.name not in used]
        names = class_names(schema, self.columns.label)
        wanted = [
            name for name in (self.columns.image, self.columns.label, self.columns.id) if name is not None
        ]
        for row, values in self._rows([*wanted, *others]):
            yield self._record(row, values, others, names)

    def _record(
        self, row: int, values: dict[str, Any], others: Sequence[str], names: Sequence[str]
    ) -> ImageRecord:
        name = self._numbered(row) if self.columns.id is None else self._named(row, values[self.columns.id])
        return record_of_row(name, f"{self.path}#{row}", values, self.columns, others=others, names=names)

    def _rows(self, columns: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Row numbers and values of some columns; only the row groups that are touched are read."""
        with opened_parquet(self.path) as file:
            groups, row = [], 0
            for group in range(file.metadata.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if row < self.stop and row + rows > self.first:
                    groups.append((group, row))
                row += rows
            for group, row in groups:
                yield from self._rows_of_group(file, group, row, columns)

    def _rows_of_group(
        self, file: Any, group: int, row: int, columns: list[str]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        try:
            for batch in file.iter_batches(batch_size=ROWS, row_groups=[group], columns=columns):
                if row >= self.stop:
                    return
                inside = slice(max(0, self.first - row), max(0, self.stop - row))
                chosen = batch.slice(inside.start, max(0, min(inside.stop, len(batch)) - inside.start))
                yield from enumerate(chosen.to_pylist(), start=row + inside.start)
                row += len(batch)
        except (OSError, ValueError) as error:  # pyarrow's own errors are ValueErrors and OSErrors
            raise InputError(f"{self.path} is damaged: {error}.") from error

    def _numbered(self, row: int) -> str:
        return f"{self.path.stem}/{row}"

    def _named(self, row: int, value: Any) -> str:
        if value is None:
            raise InputError(f"{self.path} has no id in row {row} of its column {self.columns.id!r}.")
        return str(value)


def record_of_row(
    name: str,
    where: str,
    values: dict[str, Any],
    columns: Columns,
    *,
    others: Sequence[str],
    names: Sequence[str],
) -> ImageRecord:
    """A row as a record. others: columns that are metadata; names: of whole-number labels."""
    assert columns.image is not None
    image = values[columns.image]
    data = image.get("bytes") if isinstance(image, dict) else image
    if data is None:
        file = image.get("path") if isinstance(image, dict) else None
        if not file or not Path(file).is_file():
            return ImageRecord(name, None, path=where, problem="it has no bytes in this file")
        data = Path(file)
    elif (problem := too_large(len(data))) is not None:
        return ImageRecord(name, None, path=where, problem=problem)
    label = None if columns.label is None else values[columns.label]
    if isinstance(label, int) and 0 <= label < len(names):
        label = names[label]
    metadata = plain_metadata({key: values[key] for key in others})
    label = None if label is None else str(label)
    return ImageRecord(name, data, label=label, path=where, metadata=metadata)


def lists_files(path: Path) -> bool:
    """Whether a parquet file has no images of its own, and a column that may name their files."""
    with opened_parquet(path) as file:
        fields = list(file.schema_arrow)
    from pyarrow import types

    words = {
        field.name for field in fields if types.is_string(field.type) or types.is_large_string(field.type)
    }
    return not any(holds_images(field.type) for field in fields) and bool(words & {"id", *FILE_NAMES})


def read_plain_columns(path: Path) -> dict[str, list[Any]]:
    """Columns of texts, numbers and truth values, whole."""
    with opened_parquet(path) as file:
        names = [field.name for field in file.schema_arrow if is_plain(field.type)]
        with reading(path, "parquet file"):
            columns = file.read(columns=names).to_pydict()
    return {name: list(columns[name]) for name in names}


def detect_columns(path: Path, schema: Any, wanted: Columns) -> Columns:
    """Which columns are image, label and id: those that were named, else those with the usual names."""
    for name in (wanted.image, wanted.label, wanted.id):
        if name is not None and name not in schema.names:
            raise InputError(f"{path} has no column {name!r}{nearest(name, schema.names)}")
    images = [field.name for field in schema if holds_images(field.type)]
    if wanted.image is not None and wanted.image not in images:
        raise InputError(
            f"The column {wanted.image!r} of {path} is {schema.field(wanted.image).type}; images are binary, or a "
            "struct with a binary field `bytes`."
        )
    usual = [name for name in IMAGE_NAMES if name in images]
    if wanted.image is None and not usual and len(images) != 1:
        raise InputError(
            f"{path} has {len(images)} columns that may hold images ({', '.join(images) or 'none'}); "
            "name one with --image-column."
        )
    return Columns(
        image=wanted.image or (usual or images)[0],
        label=wanted.label or next((name for name in LABEL_NAMES if name in schema.names), None),
        id=wanted.id or next((name for name in ID_NAMES if name in schema.names), None),
    )


def holds_images(kind: Any) -> bool:
    """Whether a column of this type may hold images: bytes, or a struct with a field of them."""
    from pyarrow import types

    if types.is_struct(kind):
        index = kind.get_field_index("bytes")
        return index >= 0 and holds_images(kind.field(index).type)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def is_plain(kind: Any) -> bool:
    """Whether a column of this type can be kept as metadata."""
    from pyarrow import types

    tests = (types.is_string, types.is_large_string, types.is_integer, types.is_floating, types.is_boolean)
    return any(test(kind) for test in tests)


def class_names(schema: Any, column: str | None) -> list[str]:
    """Names of whole-number labels, where Hugging Face's datasets left them in the file."""
    try:
        about = json.loads((schema.metadata or {})[b"huggingface"])
        return [str(name) for name in about["info"]["features"][column]["names"]]
    except (KeyError, TypeError, ValueError):
        return []


def class_names_of(feature: Any) -> list[str]:
    """Names of whole-number labels of a `ClassLabel`; none of any other column."""
    return [str(name) for name in getattr(feature, "names", None) or []]
