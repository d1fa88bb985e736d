"""Saving what can still be read of an index whose database is damaged, into a new index.

An item is taken where both of its rows can be read and its numbers have the checksum they were stored with; pages
that cannot be read are narrowed down by halving until only their own rows are lost.
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from doubtless.errors import InputError, StoreError
from doubtless.index.database import connection as database
from doubtless.index.database import seals
from doubtless.index.forms import read_attachment, unpacked
from doubtless.index.settings import DATABASE, Settings

if TYPE_CHECKING:
    from doubtless.index.folder import FolderIndex


BATCH = 1024  # rows read and stored at a time
Record = tuple[str, int | None, str | None, str | None, bytes, int, int, int | None]


@dataclass(frozen=True)
class Salvage:
    """What was saved."""

    items: int
    lost: int
    """Items that the index counted and that could not be read."""
    without_label: int
    """Saved items whose label's name could not be read."""
    attachments: list[str]

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def salvage(into: FolderIndex, connection: sqlite3.Connection) -> Salvage:
    """Copies everything readable from a damaged database into a new, empty index."""
    names = dict(_whole_rows(connection, "SELECT code, name, {seal} FROM label", seals.of_words))
    kept = nameless = 0
    for batch in _batches(connection, into.settings):
        labels = [None if code is None else names.get(code) for _, code, *_ in batch]
        nameless += sum(
            name is None and code is not None for name, (_, code, *_) in zip(labels, batch, strict=True)
        )
        numbers = np.frombuffer(b"".join(record[4] for record in batch), dtype="<f4")
        into.add(
            unpacked(numbers.reshape(len(batch), -1), into.settings),
            [record[0] for record in batch],
            labels=labels,
            paths=[record[2] for record in batch],
            metadata=[_metadata(record[3]) for record in batch],
        )
        kept += len(batch)
    counted = [
        state[3:]
        for state in _whole_rows(
            connection, "SELECT generation, version, next_row, items, {seal} FROM state", seals.of_words
        )
    ]
    return Salvage(
        kept, max(0, counted[0][0] - kept) if counted else 0, nameless, list(_attachments(connection, into))
    )


def open_damaged(path: Path) -> tuple[sqlite3.Connection, Settings]:
    """The database without the checks of a whole one, and what the index was created as."""
    if not (path / DATABASE).is_file():
        raise StoreError(f"{path} is no index: there is no {DATABASE} in it.")
    connection = database.open_as(path / DATABASE, "mode=ro")
    stored = dict(
        _whole_rows(connection, "SELECT name, value, {seal} FROM setting", seals.of_words)
    )  # what is not whole and not needed is as it is by default
    try:
        return connection, Settings(**{name: json.loads(value) for name, value in stored.items()})
    except (TypeError, ValueError, InputError) as error:
        connection.close()
        raise StoreError(
            f"Nothing can be saved from the index {path}: what kind of index it was cannot be read ({error}). "
            "Restore its database from a copy."
        ) from error


def _batches(connection: sqlite3.Connection, settings: Settings) -> Iterator[list[Record]]:
    """Whole items, each id once."""
    seen: set[str] = set()
    ends = [row for (row,) in _readable(connection, "SELECT next_row FROM state")]
    ends += [(row or 0) + 1 for (row,) in _readable(connection, "SELECT max(row) FROM vector")]
    last = min((end for end in ends if isinstance(end, int)), default=0)  # a damaged one may be anything
    for start in range(0, last, BATCH):
        batch = []
        for record in _between(connection, start, min(start + BATCH, last)):
            if _is_whole(record, settings) and record[0] not in seen:
                seen.add(record[0])
                batch.append(record)
        if batch:
            yield batch


def _between(connection: sqlite3.Connection, start: int, stop: int) -> list[Record]:
    """Rows from start to before stop; where something is in the way, those of each half."""
    seal = "item.checksum" if _is_sealed(connection) else "NULL"
    query = (
        f"SELECT id, label, path, metadata, numbers, vector.checksum, item.row, {seal} FROM item "
        "JOIN vector ON item.row = vector.row WHERE vector.row >= ? AND vector.row < ?"
    )
    try:
        with closing(connection.execute(query, (start, stop))) as records:
            return records.fetchall()
    except sqlite3.Error:
        if stop - start == 1:
            return []
        middle = (start + stop) // 2
        return _between(connection, start, middle) + _between(connection, middle, stop)


def _is_whole(record: Record, settings: Settings) -> bool:
    name, label, path, metadata, blob, checksum, row, seal = record
    return (
        isinstance(name, str)
        and (seal is None or seals.of_item(row, name, label, path, metadata) == seal)
        and isinstance(blob, bytes)
        and len(blob) == 4 * settings.width
        and zlib.crc32(blob) == checksum
    )


def _metadata(written: str | None) -> dict[str, Any] | None:
    try:
        values = json.loads(written) if written else None
    except (TypeError, ValueError):
        return None
    return values if isinstance(values, dict) else None


def _attachments(connection: sqlite3.Connection, into: FolderIndex) -> Iterator[str]:
    for (name,) in _readable(connection, "SELECT name FROM part"):
        query = "SELECT name, tensors, record, {seal} FROM part WHERE name = ?"
        for _, *attachment in _whole_rows(connection, query, seals.of_part, (name,)):
            try:
                into.attach(name, *read_attachment(*attachment))
            except Exception:
                continue
            yield name


def _whole_rows(
    connection: sqlite3.Connection, query: str, seal: Callable[..., int], values: tuple[Any, ...] = ()
) -> list[tuple[Any, ...]]:
    """What a query gives, without the rows that are not what was stored, and without their seals."""
    sealed = _is_sealed(connection)
    found = _readable(connection, query.format(seal="checksum" if sealed else "NULL"), values)
    return [row[:-1] for row in found if not sealed or seal(*row[:-1]) == row[-1]]


def _is_sealed(connection: sqlite3.Connection) -> bool:
    with suppress(sqlite3.Error):
        return seals.is_sealed(connection)
    return False


def _readable(
    connection: sqlite3.Connection, query: str, values: tuple[Any, ...] = ()
) -> list[tuple[Any, ...]]:
    """What a query gives before it fails."""
    rows: list[tuple[Any, ...]] = []
    with suppress(sqlite3.Error):
        rows.extend(connection.execute(query, values))
    return rows
