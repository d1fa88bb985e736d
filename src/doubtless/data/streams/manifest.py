"""Lists of images: a CSV or parquet file that names each image's file, its label and what else is known of it.

path,label,shop                relative paths begin at the list's folder
photos/1.jpg,garlic,Oslo       a column `id` names the items; without one the path does
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from doubtless.data.images import is_image
from doubtless.data.streams.records import Columns, ImageRecord, file_fingerprint
from doubtless.data.streams.tables import FILE_NAMES, LabelTable, read_labels
from doubtless.errors import InputError


@dataclass(frozen=True)
class ManifestStream:
    """Rows first … stop − 1 of a list of image files."""

    table: LabelTable
    files: tuple[Path, ...]
    """One per row of the table."""
    first: int
    stop: int

    @classmethod
    def open(cls, path: Path, columns: Columns) -> ManifestStream:
        """Reads a list. columns: those that hold files, labels and ids, where they have other names than usual."""
        named_by = (columns.id, "id", columns.image, *FILE_NAMES)
        table = read_labels(
            path, named_by=[name for name in named_by if name], label=columns.label, labelled=False
        )
        files = [_file(path, table, row, columns.image) for row in range(len(table.ids))]
        if not files:
            raise InputError(f"{path} lists no images.")
        if not any(is_image(file.name) for file in files):
            raise InputError(
                f"{path} names no image files: its columns path, image or id must, the first row has "
                f"{table.paths[0] or table.ids[0]!r}."
            )
        return cls(table, tuple(files), 0, len(files))

    @property
    def name(self) -> str:
        """Where they come from."""
        return str(self.table.path.absolute())

    def __len__(self) -> int:
        return self.stop - self.first

    def ids(self) -> Iterator[str]:
        """All ids, in order, without reading an image."""
        return iter(self.table.ids[self.first : self.stop])

    def fingerprint(self) -> str:
        """Changes when the list or an image does."""
        digest = hashlib.sha256(file_fingerprint(self.table.path).encode())
        for file in self.files[self.first : self.stop]:
            if file.is_file():
                stat = file.stat()
                digest.update(f"{file.name}:{stat.st_size}:{stat.st_mtime_ns}\n".encode())
        return digest.hexdigest()[:16]

    def slice(self, start: int, stop: int) -> ManifestStream:
        """Images start … stop − 1 alone."""
        return replace(self, first=self.first + start, stop=self.first + stop)

    def records(self) -> Iterator[ImageRecord]:
        """One by one, not yet decoded."""
        table = self.table
        for row in range(self.first, self.stop):
            file = self.files[row]
            problem = None if file.is_file() else "there is no such file"
            yield ImageRecord(
                table.ids[row],
                file,
                label=table.labels[row],
                path=str(file),
                metadata=table.metadata[row],
                problem=problem,
            )


def _file(path: Path, table: LabelTable, row: int, column: str | None) -> Path:
    """Where a row's image lies: a column that was named, `path`, another of the usual ones, or its id."""
    about = table.metadata[row]
    named = about.pop(column, None) if column is not None else None
    written = named or table.paths[row]
    for usual in FILE_NAMES:
        if not written and isinstance(about.get(usual), str):
            written = about.pop(usual)
    return path.absolute().parent / str(written or table.ids[row])
