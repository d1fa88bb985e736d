"""`Store`: the truth of an index, a SQLite database in WAL mode. It knows rows and blobs, nothing of vectors.

A row number names one version of one item: it is never used again, an update gives the item a new one. So what
a cache has to learn is always "rows above the last one I saw" and "rows removed after the version I saw".

Every method that reads several things is called inside `reading()`, every one that changes inside `writing()`:
transactions that are durable, with errors that are sentences.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from doubtless.errors import StoreError
from doubtless.index.forms import Block, Floats, Integers
from doubtless.index.items import Fields
from doubtless.index.settings import DATABASE, SCHEMA, Settings

APPLICATION = 0x646F7562  # "doub", in the header of the database
PAGE = 16384  # several items per page also where an item has a thousand numbers
PATIENCE = 30.0  # seconds to wait for a lock another process holds for a moment

TABLES = """
CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    generation INTEGER NOT NULL,  -- rises with every compaction: caches start again
    version INTEGER NOT NULL,     -- rises with every change
    next_row INTEGER NOT NULL,
    items INTEGER NOT NULL
);
INSERT INTO state VALUES (1, 0, 0, 0, 0);
CREATE TABLE label (code INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE item (
    row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, label INTEGER, path TEXT, metadata TEXT
);
CREATE TABLE vector (row INTEGER PRIMARY KEY, numbers BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE removed (version INTEGER, row INTEGER, PRIMARY KEY (version, row)) WITHOUT ROWID;
CREATE TABLE part (name TEXT PRIMARY KEY, tensors BLOB NOT NULL, record TEXT NOT NULL);
"""


class State(NamedTuple):
    """Where the database stands."""

    generation: int
    version: int
    next_row: int
    items: int


class Store:
    """The database of the index in a folder; one connection, used under the index's mutex."""

    def __init__(self, folder: Path, *, writable: bool) -> None:
        self.folder = folder
        self._connection = connect(folder, writable=writable)
        with translated(folder):
            self.settings = self._read_settings()

    @staticmethod
    def create(folder: Path, settings: Settings) -> None:
        """Writes an empty index into an existing folder."""
        connection = create(folder)
        try:
            with translated(folder):
                connection.executescript(f"BEGIN;{TABLES}COMMIT;")
                values = [(name, json.dumps(value)) for name, value in settings.record().items()]
                with writing(connection, folder):
                    connection.executemany("INSERT INTO setting VALUES (?, ?)", values)
        finally:
            connection.close()

    def close(self) -> None:
        """Lets go of the database."""
        self._connection.close()

    def reading(self) -> AbstractContextManager[None]:
        """Everything read inside is of one moment."""
        return reading(self._connection, self.folder)

    def writing(self) -> AbstractContextManager[None]:
        """All that is changed inside, or none of it."""
        return writing(self._connection, self.folder)

    # -- what there is -------------------------------------------------------------------------------

    def state(self) -> State:
        """Where the database stands now."""
        row = self._connection.execute("SELECT generation, version, next_row, items FROM state").fetchone()
        if row is None:
            raise sqlite3.DatabaseError("the table of its state is empty; no such table row")
        return State(*row)

    def label_names(self) -> list[str]:
        """Code → name."""
        return [name for (name,) in self._connection.execute("SELECT name FROM label ORDER BY code")]

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Id → row of those that are stored."""
        query = "SELECT id, row FROM item WHERE id IN (SELECT value FROM json_each(?))"
        return dict(self._connection.execute(query, (json.dumps(list(ids)),)).fetchall())

    def block(self, after: int, limit: int) -> Block:
        """The first `limit` rows above `after`, in order."""
        query = (
            "SELECT vector.row, ifnull(item.label, -1), numbers, checksum FROM vector "
            "JOIN item ON item.row = vector.row WHERE vector.row > ? ORDER BY vector.row LIMIT ?"
        )
        return self._block(self._connection.execute(query, (after, limit)).fetchall())

    def chosen(self, rows: Iterable[int]) -> Block:
        """These rows in rising order; those that are not stored are left out."""
        query = (
            "SELECT vector.row, ifnull(item.label, -1), numbers, checksum FROM vector "
            "JOIN item ON item.row = vector.row WHERE vector.row IN (SELECT value FROM json_each(?)) "
            "ORDER BY vector.row"
        )
        return self._block(self._connection.execute(query, (json.dumps(list(rows)),)).fetchall())

    def removed(self, after: int) -> Integers:
        """Rows that were removed or replaced after this version."""
        rows = self._connection.execute("SELECT row FROM removed WHERE version > ?", (after,)).fetchall()
        return np.array([row for (row,) in rows], dtype=np.int64)

    def removed_count(self) -> int:
        """Rows that were removed or replaced since the last compaction."""
        return int(self._connection.execute("SELECT count(*) FROM removed").fetchone()[0])

    def fields(self, rows: Iterable[int]) -> dict[int, Fields]:
        """What is stored beside the numbers, by row; rows that are not stored are left out."""
        query = (
            "SELECT row, id, label, path, metadata FROM item WHERE row IN (SELECT value FROM json_each(?))"
        )
        records = self._connection.execute(query, (json.dumps(list(rows)),))
        return {row: Fields(*rest) for row, *rest in records}

    def matching(self, condition: str, values: Sequence[Any]) -> Integers:
        """Rows of items for which a condition of `filters` holds."""
        return _matching(self._connection, condition, values)

    # -- changes -------------------------------------------------------------------------------------

    def codes(self, names: Sequence[str | None]) -> list[int | None]:
        """Codes of labels; names that are new get the next ones."""
        known = {name: code for code, name in enumerate(self.label_names())}
        new = [name for name in dict.fromkeys(names) if name is not None and name not in known]
        for name in new:
            known[name] = len(known)
        self._connection.executemany("INSERT INTO label VALUES (?, ?)", [(known[name], name) for name in new])
        return [None if name is None else known[name] for name in names]

    def insert(self, fields: Sequence[Fields], numbers: Floats) -> Integers:
        """Stores items in new rows, which it returns."""
        state = self.state()
        rows = range(state.next_row, state.next_row + len(fields))
        self._connection.executemany(
            "INSERT INTO item VALUES (?, ?, ?, ?, ?)",
            ((row, *field) for row, field in zip(rows, fields, strict=True)),
        )
        blobs = (line.tobytes() for line in numbers)
        self._connection.executemany(
            "INSERT INTO vector VALUES (?, ?, ?)",
            ((row, blob, zlib.crc32(blob)) for row, blob in zip(rows, blobs, strict=True)),
        )
        self._connection.execute(
            "UPDATE state SET version = version + 1, next_row = ?, items = items + ?",
            (rows.stop, len(fields)),
        )
        return np.arange(rows.start, rows.stop, dtype=np.int64)

    def remove(self, rows: Iterable[int]) -> None:
        """Takes rows out and notes them for the caches."""
        chosen, version = [(int(row),) for row in rows], self.state().version + 1
        for table in ("item", "vector"):
            self._connection.executemany(f"DELETE FROM {table} WHERE row = ?", chosen)
        self._connection.executemany(f"INSERT INTO removed VALUES ({version}, ?)", chosen)
        self._connection.execute("UPDATE state SET version = ?, items = items - ?", (version, len(chosen)))

    def new_generation(self) -> None:
        """Forgets what was removed; caches of before are not patched any more."""
        self._connection.execute("DELETE FROM removed")
        self._connection.execute("UPDATE state SET version = version + 1, generation = generation + 1")

    def vacuum(self) -> None:
        """Gives the space of removed items back to the disk."""
        with translated(self.folder):
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def attach(self, name: str, tensors: bytes, record: str) -> None:
        """Keeps an attachment in place of what was there; the table's name is older than the word."""
        self._connection.execute("INSERT OR REPLACE INTO part VALUES (?, ?, ?)", (name, tensors, record))

    def attachment(self, name: str) -> tuple[bytes, str] | None:
        """Tensors and record under a name."""
        query = "SELECT tensors, record FROM part WHERE name = ?"
        attachment: tuple[bytes, str] | None = self._connection.execute(query, (name,)).fetchone()
        return attachment

    def attachments(self) -> list[str]:
        """Names of all attachments, sorted."""
        return [name for (name,) in self._connection.execute("SELECT name FROM part ORDER BY name")]

    # -- inside --------------------------------------------------------------------------------------

    def _read_settings(self) -> Settings:
        stored = dict(self._connection.execute("SELECT name, value FROM setting").fetchall())
        return Settings(**{name: json.loads(value) for name, value in stored.items()})

    def _block(self, records: list[tuple[int, int, bytes, int]]) -> Block:
        width = self.settings.width
        for row, _, blob, checksum in records:
            if len(blob) != 4 * width or zlib.crc32(blob) != checksum:
                raise StoreError(
                    f"The database of the index {self.folder} is damaged: the numbers of row {row} are not "
                    "those that were stored. Restore it from a copy, or save what can still be read into a "
                    f"new index: FolderIndex.salvage({str(self.folder)!r}, NEW)."
                )
        joined = b"".join(blob for _, _, blob, _ in records)
        numbers = np.frombuffer(joined, dtype="<f4").reshape(-1, width)
        rows = np.array([row for row, *_ in records], dtype=np.int64)
        return Block(rows, np.array([label for _, label, *_ in records], dtype=np.int64), numbers)


def matching_apart(folder: Path, condition: str, values: Sequence[Any]) -> Integers:
    """As `Store.matching`, by a connection of its own, which also knows `folded`: text without regard to case."""
    with contextlib.closing(connect(folder, writable=False)) as connection, translated(folder):
        connection.create_function("folded", 1, lambda value: str(value).lower(), deterministic=True)
        return _matching(connection, condition, values)


def _matching(connection: sqlite3.Connection, condition: str, values: Sequence[Any]) -> Integers:
    rows = connection.execute(f"SELECT row FROM item WHERE {condition} ORDER BY row", values)
    return np.array([row for (row,) in rows], dtype=np.int64)


def connect(folder: Path, *, writable: bool) -> sqlite3.Connection:
    """Opens the database of an index and looks whether it is one that this version can read."""
    path = folder / DATABASE
    if not path.is_file():
        raise StoreError(f"{folder} is no index: there is no {DATABASE} in it.")
    with translated(folder):
        connection = open_as(path, "mode=rw" if writable else _reading_mode(path))
        if writable:
            # An acknowledged change survives a power cut: the log reaches the disk with every transaction.
            connection.execute("PRAGMA synchronous = FULL")
        _refuse_foreign(folder, connection)
    return connection


def create(folder: Path) -> sqlite3.Connection:
    """A new database with nothing in it."""
    with translated(folder):
        connection = open_as(folder / DATABASE, "mode=rwc")
        connection.execute(f"PRAGMA page_size = {PAGE}")
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    return connection


def open_as(path: Path, mode: str) -> sqlite3.Connection:
    """A connection for any thread, whose transactions begin and end where they are told to."""
    address = f"file:{quote(str(path.absolute()))}?{mode}"
    return sqlite3.connect(address, uri=True, timeout=PATIENCE, isolation_level=None, check_same_thread=False)


def _reading_mode(path: Path) -> str:
    """Where nothing can be written, SQLite cannot share its log with a writer: then there must be none."""
    log = path.with_name(f"{path.name}-wal")
    if os.access(path.parent, os.W_OK) or log.exists():
        return "mode=ro"
    return "mode=ro&immutable=1"


def _refuse_foreign(folder: Path, connection: sqlite3.Connection) -> None:
    """Refuses what is not a database of an index, or one of a later version."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (schema,) = connection.execute("PRAGMA user_version").fetchone()
    if application != APPLICATION:
        connection.close()
        raise StoreError(f"{folder / DATABASE} is a database, but not one of a doubtless index.")
    if schema > SCHEMA:
        connection.close()
        raise StoreError(
            f"The index {folder} was written by a newer doubtless (schema {schema}, this one reads up to "
            f"{SCHEMA}); update doubtless to open it."
        )


@contextlib.contextmanager
def reading(connection: sqlite3.Connection, folder: Path) -> Iterator[None]:
    """Everything read inside is of one moment, whatever a writer does meanwhile."""
    with translated(folder):
        connection.execute("BEGIN")
        try:
            yield
        finally:
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")


@contextlib.contextmanager
def writing(connection: sqlite3.Connection, folder: Path) -> Iterator[None]:
    """All of it or none of it; on the disk when the block has ended."""
    with translated(folder):
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):  # SQLite has rolled back by itself after some errors
                connection.execute("ROLLBACK")
            raise


@contextlib.contextmanager
def translated(folder: Path) -> Iterator[None]:
    """Errors of SQLite as sentences that say what to do."""
    try:
        yield
    except sqlite3.Error as error:
        raise StoreError(_sentence(folder, error)) from error


def _sentence(folder: Path, error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "")
    reason = f"({error})"
    if name == "SQLITE_FULL" or name.startswith("SQLITE_IOERR"):
        return (
            f"The disk of the index {folder} is full or failing {reason}; nothing of this call was stored, "
            "everything stored before is. Free some space and try again."
        )
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or "no such table" in str(error):
        return (
            f"The database of the index {folder} is damaged {reason}. Restore it from a copy, or save what can "
            f"still be read into a new index: FolderIndex.salvage({str(folder)!r}, NEW)."
        )
    if name.startswith(("SQLITE_READONLY", "SQLITE_PERM")):
        return f"The index {folder} cannot be written {reason}; it can be opened without writable=True."
    if name.startswith("SQLITE_CANTOPEN"):
        return (
            f"The database of the index {folder} cannot be opened {reason}. Where its folder is read-only, "
            "let a writer close the index first: then it needs no files beside the database."
        )
    if name.startswith("SQLITE_BUSY"):
        return f"The database of the index {folder} stayed locked for {PATIENCE:.0f} s {reason}; try again."
    return f"The database of the index {folder} failed: {error}."
