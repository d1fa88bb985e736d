"""Images whose labels are said elsewhere: by a table beside a flat folder, or by one word for all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from doubtless.data.streams.records import ImageRecord, ImageStream
from doubtless.data.streams.tables import LabelTable
from doubtless.errors import InputError, listed


@dataclass(frozen=True)
class LabelledStream:
    """A stream with other labels: those of a table, found by id or by how the file is called, or one label.

    Images that the table does not know keep what they had.
    """

    images: ImageStream
    table: LabelTable | None = None
    label: str | None = None

    @property
    def name(self) -> str:
        """Where they come from."""
        return self.images.name

    def __len__(self) -> int:
        return len(self.images)

    def ids(self) -> Iterator[str]:
        """All ids, in order, without reading an image."""
        return self.images.ids()

    def fingerprint(self) -> str:
        """Changes when the images do, or what is said of them."""
        said = (
            [self.label] if self.table is None else [self.table.labels, self.table.ids, self.table.metadata]
        )
        return hashlib.sha256(f"{self.images.fingerprint()}-{said}".encode()).hexdigest()[:16]

    def slice(self, start: int, stop: int) -> LabelledStream:
        """Images start … stop − 1 alone."""
        return replace(self, images=self.images.slice(start, stop))

    def records(self) -> Iterator[ImageRecord]:
        """One by one, not yet decoded."""
        for record in self.images.records():
            if self.table is None:
                yield replace(record, label=self.label)
                continue
            row = self.table.find(record.id)
            if row is None:
                yield record
            else:
                about = {**record.metadata, **self.table.metadata[row]}
                yield replace(record, label=self.table.labels[row], metadata=about)


def with_table(streams: Sequence[ImageStream], table: LabelTable) -> tuple[list[ImageStream], list[str]]:
    """Streams with a table's labels, and sentences about images without a row, and rows without an image."""
    ids = [name for stream in streams for name in stream.ids()]
    rows = [table.find(name) for name in ids]
    missing = [name for name, row in zip(ids, rows, strict=True) if row is None]
    if len(missing) == len(ids):
        raise InputError(
            f"{table.path} knows none of the {len(ids):,} images: it has the ids {listed(table.ids)}, the images "
            f"are {listed(ids)}."
        )
    left = sorted(set(range(len(table.ids))) - set(rows))
    notes = []
    if missing:
        notes.append(f"{len(missing):,} images have no row in {table.path}: {listed(missing)}.")
    if left:
        unused = listed([table.ids[row] for row in left])
        notes.append(f"{len(left):,} rows of {table.path} have no image: {unused}.")
    return [LabelledStream(stream, table) for stream in streams], notes
