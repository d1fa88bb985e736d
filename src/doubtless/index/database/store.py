"""`Store`: the truth of an index, a SQLite database in WAL mode. It knows rows and blobs, nothing of vectors.

A row number names one version of one item: it is never used again, an update gives the item a new one. So what
a cache has to learn is always "rows above the last one I saw" and "rows removed after the version I saw".

Every method that reads several things is called inside `reading()`, every one that changes inside `writing()`:
transactions that are durable, with errors that are sentences.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from doubtless.errors import DiskFullError, InputError
from doubtless.index.database import seals
from doubtless.index.database.connection import PAGE, connect, create, full, reading, translated, writing
from doubtless.index.database.reserve import Reserve
from doubtless.index.database.witness import Witness, refuse_older
from doubtless.index.forms import Block, Floats, Integers
from doubtless.index.items import Fields
from doubtless.index.settings import DATABASE, SCHEMA, Settings

UNWRITTEN = 2 << 20  # bytes of a transaction that SQLite holds in memory until it ends, at most
TABLES = """
CREATE TABLE setting (name TEXT PRIMARY KEY, value TEXT NOT NULL, checksum INTEGER) WITHOUT ROWID;
CREATE TABLE state (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    generation INTEGER NOT NULL,  -- rises with every compaction: caches start again
    version INTEGER NOT NULL,     -- rises with every change
    next_row INTEGER NOT NULL,
    items INTEGER NOT NULL,
    checksum INTEGER
);
CREATE TABLE label (code INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, checksum INTEGER);
CREATE TABLE item (
    row INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, label INTEGER, path TEXT, metadata TEXT, checksum INTEGER
);
CREATE TABLE vector (row INTEGER PRIMARY KEY, numbers BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE removed (version INTEGER, row INTEGER, PRIMARY KEY (version, row)) WITHOUT ROWID;
CREATE TABLE part (name TEXT PRIMARY KEY, tensors BLOB NOT NULL, record TEXT NOT NULL, checksum INTEGER);
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
        self.folder, self._reserve = folder, Reserve(folder)
        self._connection = self._connected() if writable else connect(folder, writable=False)
        with contextlib.ExitStack() as undo, translated(folder):
            undo.callback(self._connection.close)
            self._sealed = seals.is_sealed(self._connection)
            if writable and not self._sealed:
                with writing(self._connection, folder):
                    seals.seal_all(self._connection, SCHEMA)
                self._sealed = True
            self.settings = self._read_settings()
            self._witness = Witness(folder, self.settings.identity)
            noted = self._witness.version()
            refuse_older(folder, noted, self.state().version)
            if writable:
                self._reserve.keep(self._growth())
            undo.pop_all()

    @staticmethod
    def create(folder: Path, settings: Settings) -> None:
        """Writes an empty index into an existing folder."""
        connection = create(folder)
        try:
            with translated(folder):
                connection.executescript(f"BEGIN;{TABLES}COMMIT;")
                values = [(name, json.dumps(value)) for name, value in settings.record().items()]
                sealed = [(*value, seals.of_words(*value)) for value in values]
                with writing(connection, folder):
                    connection.executemany("INSERT INTO setting VALUES (?, ?, ?)", sealed)
                    start = State(0, 0, 0, 0)
                    connection.execute(
                        "INSERT INTO state VALUES (1, ?, ?, ?, ?, ?)", (*start, seals.of_words(*start))
                    )
        finally:
            connection.close()

    @property
    def connection(self) -> sqlite3.Connection:
        """For who looks at the database as a whole."""
        return self._connection

    def close(self) -> None:
        """Lets go of the database."""
        self._connection.close()

    def reading(self) -> AbstractContextManager[None]:
        """Everything read inside is of one moment."""
        return reading(self._connection, self.folder)

    @contextlib.contextmanager
    def writing(self, *, frees: bool = False) -> Iterator[None]:
        """All that is changed inside, or none of it.

        frees: on a nearly full disk as well. What lies in the log must fit into the database some day; where it
        would not, nothing could be removed any more.
        """
        if self._lacks(2 * UNWRITTEN):
            self._shrink_log()
        try:
            with writing(self._connection, self.folder):
                yield
                if not frees and self._lacks(UNWRITTEN):
                    raise full(self.folder, "hardly anything is free")
        except DiskFullError:
            self._shrink_log()
            raise
        self._witness.note(self.state().version)
        self._reserve.keep(self._growth())

    def make_room(self) -> bool:
        """Gives the disk what was kept of it, and what the log takes; whether there was anything."""
        had = self._reserve.give()
        self._shrink_log()
        return had

    # -- what there is -------------------------------------------------------------------------------

    def state(self) -> State:
        """Where the database stands now."""
        query = f"SELECT generation, version, next_row, items, {self._seal()} FROM state"
        row = self._connection.execute(query).fetchone()
        if row is None:
            raise sqlite3.DatabaseError("the table of its state is empty; no such table row")
        self._verify(row[-1], seals.of_words(*row[:-1]), "where it stands")
        return State(*row[:-1])

    def label_names(self) -> list[str]:
        """Code → name."""
        labels = self._connection.execute(
            f"SELECT code, name, {self._seal()} FROM label ORDER BY code"
        ).fetchall()
        for place, (code, name, seal) in enumerate(labels):
            if code != place:
                raise seals.damaged(self.folder, f"label {place} is missing")
            self._verify(seal, seals.of_words(code, name), f"label {code}")
        return [name for _, name, _ in labels]

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Id → row of those that are stored."""
        query = "SELECT id, row FROM item WHERE id IN (SELECT value FROM json_each(?))"
        return dict(self._connection.execute(query, (json.dumps(list(ids)),)).fetchall())

    def block(self, after: int, limit: int) -> Block:
        """The first `limit` rows above `after`, in order."""
        query = (
            f"SELECT {self._whole} FROM vector JOIN item ON item.row = vector.row "
            "WHERE vector.row > ? ORDER BY vector.row LIMIT ?"
        )
        return self._block(self._connection.execute(query, (after, limit)).fetchall())

    def chosen(self, rows: Iterable[int]) -> Block:
        """These rows in rising order; those that are not stored are left out."""
        query = (
            f"SELECT {self._whole} FROM vector JOIN item ON item.row = vector.row "
            "WHERE vector.row IN (SELECT value FROM json_each(?)) ORDER BY vector.row"
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
            f"SELECT {self._seal()}, row, id, label, path, metadata FROM item "
            "WHERE row IN (SELECT value FROM json_each(?))"
        )
        found = {}
        for seal, row, *rest in self._connection.execute(query, (json.dumps(list(rows)),)):
            self._verify(seal, seals.of_item(row, *rest), f"what is stored of row {row}")
            found[row] = Fields(*rest)
        return found

    # -- changes -------------------------------------------------------------------------------------

    def codes(self, names: Sequence[str | None]) -> list[int | None]:
        """Codes of labels; names that are new get the next ones."""
        known = {name: code for code, name in enumerate(self.label_names())}
        new = [name for name in dict.fromkeys(names) if name is not None and name not in known]
        for name in new:
            known[name] = len(known)
        rows = [(known[name], name, seals.of_words(known[name], name)) for name in new]
        self._connection.executemany("INSERT INTO label VALUES (?, ?, ?)", rows)
        return [None if name is None else known[name] for name in names]

    def insert(self, fields: Sequence[Fields], numbers: Floats) -> Integers:
        """Stores items in new rows, which it returns."""
        state = self.state()
        rows = range(state.next_row, state.next_row + len(fields))
        self._connection.executemany(
            "INSERT INTO item VALUES (?, ?, ?, ?, ?, ?)",
            ((row, *field, seals.of_item(row, *field)) for row, field in zip(rows, fields, strict=True)),
        )
        blobs = (line.tobytes() for line in numbers)
        self._connection.executemany(
            "INSERT INTO vector VALUES (?, ?, ?)",
            ((row, blob, zlib.crc32(blob)) for row, blob in zip(rows, blobs, strict=True)),
        )
        self._come_to(
            state._replace(version=state.version + 1, next_row=rows.stop, items=state.items + len(fields))
        )
        return np.arange(rows.start, rows.stop, dtype=np.int64)

    def remove(self, rows: Iterable[int]) -> None:
        """Takes rows out and notes them for the caches."""
        chosen, state = [(int(row),) for row in rows], self.state()
        version = state.version + 1
        for table in ("item", "vector"):
            self._connection.executemany(f"DELETE FROM {table} WHERE row = ?", chosen)
        self._connection.executemany(f"INSERT INTO removed VALUES ({version}, ?)", chosen)
        self._come_to(state._replace(version=version, items=state.items - len(chosen)))

    def take_out(self, rows: Iterable[int]) -> State:
        """Removes rows in a transaction of its own, also where the disk is full; the state that follows."""
        chosen = list(rows)
        try:
            return self._taken_out(chosen)
        except DiskFullError:
            if not self.make_room():
                raise
            return self._taken_out(chosen)

    def _taken_out(self, rows: Iterable[int]) -> State:
        with self.writing(frees=True):
            self.remove(rows)
            return self.state()

    def new_generation(self) -> None:
        """Forgets what was removed; caches of before are not patched any more."""
        self._connection.execute("DELETE FROM removed")
        state = self.state()
        self._come_to(state._replace(version=state.version + 1, generation=state.generation + 1))

    def vacuum(self) -> None:
        """Gives the space of removed items back to the disk."""
        with translated(self.folder):
            self._connection.execute("VACUUM")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._reserve.give()  # it was as large as the longest log had been
        self._reserve.keep(self._growth())

    def attach(self, name: str, tensors: bytes, record: str) -> None:
        """Keeps an attachment in place of what was there; the table's name is older than the word."""
        seal, state = seals.of_part(name, tensors, record), self.state()
        self._connection.execute(
            "INSERT OR REPLACE INTO part VALUES (?, ?, ?, ?)", (name, tensors, record, seal)
        )
        self._come_to(state._replace(version=state.version + 1))

    def attachment(self, name: str) -> tuple[bytes, str] | None:
        """Tensors and record under a name."""
        query = f"SELECT tensors, record, {self._seal()} FROM part WHERE name = ?"
        found = self._connection.execute(query, (name,)).fetchone()
        if found is None:
            return None
        self._verify(found[-1], seals.of_part(name, *found[:-1]), f"what is attached as {name!r}")
        return found[0], found[1]

    def attachments(self) -> list[str]:
        """Names of all attachments, sorted."""
        return [name for (name,) in self._connection.execute("SELECT name FROM part ORDER BY name")]

    # -- inside --------------------------------------------------------------------------------------

    def _connected(self) -> sqlite3.Connection:
        """Where the disk has no room for what SQLite shares beside the database, the reserve has."""
        try:
            return connect(self.folder, writable=True)
        except DiskFullError:
            if not self._reserve.give():
                raise
            return connect(self.folder, writable=True)

    def _lacks(self, more: int) -> bool:
        """Whether the disk has less room than the database will need, and so many bytes."""
        disk = shutil.disk_usage(self.folder)
        return disk.total > 0 and disk.free < self._growth() + more  # some file systems do not say

    def _growth(self) -> int:
        """Bytes by which the database will grow when all that lies in the log is moved into it."""
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        return max(0, pages * PAGE - (self.folder / DATABASE).stat().st_size)

    def _shrink_log(self) -> None:
        """Moves what lies in the log into the database, as far as it fits, and gives the log's room back."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def _seal(self, table: str = "") -> str:
        return f"{table}checksum" if self._sealed else "NULL"

    @property
    def _whole(self) -> str:
        """Columns of `_block`."""
        return (
            "vector.row, item.id, item.label, item.path, item.metadata, "
            f"{self._seal('item.')}, numbers, vector.checksum"
        )

    def _verify(self, seal: int | None, found: int, what: str) -> None:
        if self._sealed and seal != found:
            raise seals.damaged(self.folder, f"{what} is not what was stored")

    def _come_to(self, state: State) -> None:
        """Where the database stands from now on."""
        self._connection.execute(
            "UPDATE state SET generation = ?, version = ?, next_row = ?, items = ?, checksum = ?",
            (*state, seals.of_words(*state)),
        )

    def _read_settings(self) -> Settings:
        stored: dict[str, Any] = {}
        for name, value, seal in self._connection.execute(
            f"SELECT name, value, {self._seal()} FROM setting"
        ).fetchall():
            self._verify(seal, seals.of_words(name, value), f"setting {name!r}")
            stored[name] = value
        try:
            return Settings(**{name: json.loads(value) for name, value in stored.items()})
        except (TypeError, ValueError, InputError) as error:
            raise seals.damaged(self.folder, f"its settings cannot be read ({error})") from error

    def _block(self, records: list[tuple[Any, ...]]) -> Block:
        width = self.settings.width
        for row, id, label, path, metadata, seal, blob, checksum in records:
            if not isinstance(blob, bytes) or len(blob) != 4 * width or zlib.crc32(blob) != checksum:
                raise seals.damaged(self.folder, f"the numbers of row {row} are not what was stored")
            if self._sealed and seals.of_item(row, id, label, path, metadata) != seal:
                raise seals.damaged(self.folder, f"what is stored of row {row} is not what was stored")
        joined = b"".join(record[6] for record in records)
        numbers = np.frombuffer(joined, dtype="<f4").reshape(-1, width)
        rows = np.array([record[0] for record in records], dtype=np.int64)
        labels = [-1 if record[2] is None else record[2] for record in records]
        return Block(rows, np.array(labels, dtype=np.int64), numbers)


def rows_where(folder: Path, condition: str, values: Sequence[Any]) -> Integers:
    """Rows of items for which a condition of `filters` holds, by a connection of its own.

    It also knows `folded`: text without regard to case.
    """
    with contextlib.closing(connect(folder, writable=False)) as connection, translated(folder):
        connection.create_function("folded", 1, lambda value: str(value).lower(), deterministic=True)
        rows = connection.execute(f"SELECT row FROM item WHERE {condition} ORDER BY row", values)
        return np.array([row for (row,) in rows], dtype=np.int64)
