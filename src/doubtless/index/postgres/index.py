"""`PostgresIndex`: an index in PostgreSQL with pgvector. docs/stores.md says how it is kept.

NAME          one row per item: row, id, label, path, metadata (text), facts (the same as JSONB), and the
              vectors that are searched, direction and expected
NAME_numbers  the stored distributions as bytes, which a search reads for what it found only
NAME_parts    all else, as text: the state, names of labels, attachments in pieces
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from doubtless.errors import InputError
from doubtless.index.filters import accepted_filter, label_codes
from doubtless.index.forms import Floats
from doubtless.index.items import Fields
from doubtless.index.postgres.connection import Address, Sessions
from doubtless.index.remote.driver import ITEMS, Driver, Part, Record, Wanted
from doubtless.index.remote.index import RemoteIndex
from doubtless.index.remote.vectors import FIELD_OF, is_lifted, kind_of, searching_vectors, widths
from doubtless.index.settings import Settings

WIDEST, WIDEST_INDEXED = 16_000, 2_000  # numbers per vector of pgvector, and of its approximate indexes
EFFORT = 128  # candidates HNSW keeps
ITEM_COLUMNS = frozenset({"row", "id", "label", "path", "metadata", "facts", "direction"})
PART_COLUMNS = frozenset({"key", "kind", "number", "text"})


class PostgresDriver(Driver):
    """Three tables of one database."""

    product = "PostgreSQL"
    text_bytes = 1_000_000
    deepest = 1_000_000

    def __init__(self, sessions: Sessions) -> None:
        self._sessions, self.name = sessions, sessions.address.name
        table = sessions.address.table
        # In quotes: a table may be called "user".
        self._items, self._numbers, self._parts = (f'"{table}{end}"' for end in ("", "_numbers", "_parts"))
        self._lock = f"doubtless {table}"

    @classmethod
    def connect(cls, name: str | Path, *, may_create: bool = False) -> Self:
        """Of a server that is there; it makes no database."""
        return cls(Sessions(Address.parse(name)))

    @contextlib.contextmanager
    def changing(self) -> Iterator[None]:
        """One transaction, under a lock that all writers of this table take."""
        with self._sessions.transaction() as connection:
            # What is read after the lock is read anew: the one moment of a reader would be from before it.
            connection.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
            connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [self._lock])
            yield

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """One transaction: all it reads is of one moment."""
        with self._sessions.transaction():
            yield

    # -- the tables ----------------------------------------------------------------------------------

    def has(self, table: str) -> bool:
        """Known by its columns."""
        name, wanted = (self._items, ITEM_COLUMNS) if table == ITEMS else (self._parts, PART_COLUMNS)
        found = self._all(
            "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0", [name]
        )
        if found and not {column for (column,) in found} >= wanted:
            raise InputError(f"{self.name} has a table {name} that is none of doubtless's; name another.")
        return bool(found)

    @classmethod
    def check(cls, settings: Settings) -> None:
        """Vectors that are too long, and IVF, which pgvector must make of items that are there already."""
        if settings.kind == "ivf":
            raise InputError("An index in PostgreSQL is 'auto', 'flat' or 'hnsw', got kind 'ivf'.")
        widest = max(widths(settings).values())
        most = WIDEST if kind_of(settings) == "flat" else WIDEST_INDEXED
        if widest > most:
            raise InputError(
                f"PostgreSQL takes at most {most:,} numbers per vector ({kind_of(settings)}), got {widest:,}."
            )

    def create(self, settings: Settings) -> None:
        """Makes all, empty, and the extension where it is missing."""
        vectors = widths(settings)
        columns = "".join(f", {name} vector({width}) NOT NULL" for name, width in vectors.items())
        self._do("CREATE EXTENSION IF NOT EXISTS vector")
        self._do(
            f"CREATE TABLE {self._items} (row bigint PRIMARY KEY, id text NOT NULL, label bigint NOT NULL, "
            f"path text, metadata text, facts jsonb NOT NULL{columns})"
        )
        self._do(f"CREATE TABLE {self._numbers} (row bigint PRIMARY KEY, numbers bytea NOT NULL)")
        self._do(
            f"CREATE TABLE {self._parts} (key text PRIMARY KEY, kind text NOT NULL, "
            "number bigint NOT NULL, text text NOT NULL)"
        )
        # By hash: an id may be longer than a page of a tree.
        self._do(f"CREATE INDEX ON {self._items} USING hash (id)")
        self._do(f"CREATE INDEX ON {self._items} (label)")
        for score, name in FIELD_OF.items():
            if kind_of(settings) == "hnsw" and name in vectors:
                kind = "vector_l2_ops" if is_lifted(settings, score) else "vector_ip_ops"
                self._do(f"CREATE INDEX ON {self._items} USING hnsw ({name} {kind})")

    def drop(self) -> None:
        """All."""
        self._do(f"DROP TABLE IF EXISTS {self._parts}, {self._numbers}, {self._items}")

    def close(self) -> None:
        """Lets go of the server."""
        self._sessions.close()

    def size(self) -> int | None:
        """Of the tables with their indexes."""
        names = [self._items, self._numbers, self._parts]
        return int(
            self._all("SELECT sum(pg_total_relation_size(t::regclass)) FROM unnest(%s::text[]) t", [names])[
                0
            ][0]
        )

    # -- parts ---------------------------------------------------------------------------------------

    def read_parts(self, keys: Sequence[str]) -> dict[str, str]:
        """Key → text, of those that are there."""
        return dict(self._all(f"SELECT key, text FROM {self._parts} WHERE key = ANY(%s)", [list(keys)]))

    def parts_of(self, kind: str) -> dict[str, str]:
        """Key → text, of a kind."""
        return dict(self._all(f"SELECT key, text FROM {self._parts} WHERE kind = %s", [kind]))

    def write_parts(self, parts: Sequence[Part]) -> None:
        """In place of what has their keys."""
        self._many(
            f"INSERT INTO {self._parts} VALUES (%s, %s, %s, %s) ON CONFLICT (key) DO UPDATE "
            "SET kind = excluded.kind, number = excluded.number, text = excluded.text",
            parts,
        )

    def delete_parts(self, keys: Sequence[str]) -> None:
        """Those that are there."""
        self._do(f"DELETE FROM {self._parts} WHERE key = ANY(%s)", [list(keys)])

    # -- items ---------------------------------------------------------------------------------------

    def check_fields(self, field: Fields) -> None:
        """Zero characters, which JSONB has no way to write."""
        super().check_fields(field)
        if "\0" in (field.path or "") or "\\u0000" in (field.metadata or ""):
            raise InputError(
                f"Item {field.id!r} has a zero character in its path or metadata, which PostgreSQL keeps none of."
            )

    def insert(self, first: int, fields: Sequence[Fields], vectors: Mapping[str, Floats]) -> None:
        """By COPY."""
        searched = [name for name in vectors if name != "numbers"]
        rows = range(first, first + len(fields))
        texts = [[_text(vector) for vector in vectors[name]] for name in searched]
        items = [
            (row, field.id, _code(field), field.path, field.metadata, field.metadata or "{}", *vector)
            for row, field, *vector in zip(rows, fields, *texts, strict=True)
        ]
        columns = ", ".join(["row", "id", "label", "path", "metadata", "facts", *searched])
        self._copy(f"{self._items} ({columns})", items)
        numbers = (
            (row, one.astype("<f4").tobytes()) for row, one in zip(rows, vectors["numbers"], strict=True)
        )
        self._copy(f"{self._numbers} (row, numbers)", numbers)

    def delete_rows(self, rows: Sequence[int]) -> None:
        """Those that are there."""
        for table in (self._items, self._numbers):
            self._do(f"DELETE FROM {table} WHERE row = ANY(%s)", [list(rows)])

    def delete_from(self, row: int) -> None:
        """All rows from this one on; there are none of a transaction that was cut off."""
        for table in (self._items, self._numbers):
            self._do(f"DELETE FROM {table} WHERE row >= %s", [row])

    def rows_named(self, ids: Sequence[str]) -> Iterable[tuple[str, int]]:
        """Id and row of all rows that have one of the ids."""
        return self._all(f"SELECT id, row FROM {self._items} WHERE id = ANY(%s)", [list(ids)])

    def labels(self, start: int, stop: int) -> Iterable[tuple[int, int]]:
        """Row and label code of all rows in a range."""
        return self._all(f"SELECT row, label FROM {self._items} WHERE row >= %s AND row < %s", [start, stop])

    def fields(self, rows: Sequence[int]) -> dict[int, Fields]:
        """What is stored beside the numbers, of those that are there."""
        found = self._all(
            f"SELECT row, id, nullif(label, -1), path, metadata FROM {self._items} WHERE row = ANY(%s)",
            [list(rows)],
        )
        return {row: Fields(*field) for row, *field in found}

    def records(self, rows: Sequence[int], settings: Settings) -> Iterable[Record]:
        """Labels and numbers, of those that are there."""
        found = self._all(
            f"SELECT row, label, numbers FROM {self._items} JOIN {self._numbers} USING (row) "
            "WHERE row = ANY(%s)",
            [list(rows)],
        )
        return [Record(row, label, np.frombuffer(numbers, "<f4")) for row, label, numbers in found]

    def search(self, vectors: Floats, wanted: Wanted) -> list[list[Record]]:
        """One statement per query. Its limit is written out: a plan for any limit would join all numbers."""
        settings, score = wanted.settings, wanted.score
        condition, values = _condition(wanted)
        operator = "<->" if is_lifted(settings, score) else "<#>"
        command = (
            f"SELECT row, label, numbers FROM (SELECT row, label FROM {self._items} {condition} "
            f"ORDER BY {FIELD_OF[score]} {operator} %s::vector LIMIT {wanted.most:d}) AS found "
            f"JOIN {self._numbers} USING (row)"
        )
        hits_of = []
        with self._sessions.transaction() as connection:
            self._make_effort(connection, kind_of(settings), wanted.most)
            for vector in searching_vectors(vectors, settings, score):
                found = connection.execute(command, [*values, _text(vector)], binary=True).fetchall()
                hits_of.append([Record(row, label, np.frombuffer(some, "<f4")) for row, label, some in found])
        return hits_of

    # -- inside --------------------------------------------------------------------------------------

    def _make_effort(self, connection: Any, kind: str, count: int) -> None:
        if kind == "hnsw":  # as many as it may keep; beyond, it goes on where it stopped
            effort = min(1000, max(EFFORT, count))
            connection.execute(f"SET LOCAL hnsw.ef_search = {effort}")
            connection.execute("SET LOCAL hnsw.iterative_scan = strict_order")

    def _all(self, command: str, values: Sequence[Any]) -> list[Any]:
        with self._sessions.transaction() as connection:
            found: list[Any] = connection.execute(command, values, binary=True).fetchall()
            return found

    def _do(self, command: str, values: Sequence[Any] | None = None) -> None:
        with self._sessions.transaction() as connection:
            connection.execute(command, values)

    def _many(self, command: str, lots: Sequence[Sequence[Any]]) -> None:
        with self._sessions.transaction() as connection, connection.cursor() as cursor:
            cursor.executemany(command, lots)

    def _copy(self, into: str, rows: Iterable[Sequence[Any]]) -> None:
        with (
            self._sessions.transaction() as connection,
            connection.cursor() as cursor,
            cursor.copy(f"COPY {into} FROM STDIN") as copy,
        ):
            for row in rows:
                copy.write_row(row)


class PostgresIndex(RemoteIndex):
    """An index in PostgreSQL with pgvector; calls, rows and sentences are those of `Index`.

    >>> url = "postgres://localhost/pets"
    >>> with PostgresIndex.create(url, family="point", dim=3) as index:  # needs a server  # doctest: +SKIP
    ...     index.add(animals, ["a", "b", "c"], labels=["cat", "dog", "cat"])
    """

    driver = PostgresDriver

    @classmethod
    def place(cls, name: str | Path) -> str:
        """Server, database and table."""
        return Address.parse(name).place


def _code(field: Fields) -> int:
    return -1 if field.label is None else field.label


def _text(vector: Floats) -> str:
    """As pgvector reads it; nine digits give a float32 back bit for bit."""
    return "[" + ",".join(map("{:.9g}".format, vector.tolist())) + "]"


def _condition(wanted: Wanted) -> tuple[str, list[Any]]:
    """SQL of a filter, with its values. JSONB compares as filters do: 2 is 2.0, and true is not 1."""
    clauses, values = [], list[Any]()
    for name, accepted in accepted_filter(wanted.where or {}).items():
        if name == "label":
            clauses.append("label = ANY(%s)")
            values.append(sorted(label_codes(accepted, list(wanted.label_names))))
            continue
        absent = " OR facts -> %s IS NULL OR facts -> %s = 'null'" if None in accepted else ""
        clauses.append(f"(facts -> %s = ANY(%s::jsonb[]){absent})")
        plain = [json.dumps(one) for one in accepted if one is not None and "\0" not in str(one)]
        values += [name, plain, *([name, name] if absent else [])]
    if wanted.before is not None:
        clauses.append("row < %s")
        values.append(wanted.before)
    return f"WHERE {' AND '.join(clauses)}" if clauses else "", values
