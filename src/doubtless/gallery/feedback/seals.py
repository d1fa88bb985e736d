"""Checksums over what people said: a row that says something else than what was written is noticed.

A seal is CRC-32 over the values of a row. What was written and has no seal yet gets it where the transaction ends;
so do rows of earlier versions, at the first thing that is said.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Seal(NamedTuple):
    """A column that seals others of its table."""

    table: str
    column: str
    over: tuple[str, ...]


ANSWER = Seal(
    "answer", "seal",
    ("number", "id", "promise", "time", "decision", "label", "probability", "promised", "labels", "drawn",
     "thinned", "share", "asked", "place", "numbers"),
)  # fmt: skip
PICTURE = Seal("answer", "picture_seal", ("number", "picture"))
SAID = Seal("said", "seal", ("number", "answer", "time", "verdict", "label", "who"))
CHECKED = Seal("checked", "seal", ("id", "label", "time", "who"))
GIVEN = Seal("given", "seal", ("promise", "answers"))
SEALS = (ANSWER, PICTURE, SAID, CHECKED, GIVEN)
VERSION = 1
"""Of databases whose rows are all sealed."""


def of_values(*values: object) -> int:
    """CRC-32 of a row.

    >>> of_values(1, "leek", None) != of_values(1, None, "leek")
    True
    """
    seal = 0
    for value in values:
        data = value if isinstance(value, bytes) else repr(value).encode(errors="surrogatepass")
        seal = zlib.crc32(data, zlib.crc32(f"{type(value).__name__} {len(data)} ".encode(), seal))
    return seal


def know_seals(connection: sqlite3.Connection) -> None:
    """Lets SQL compute seals."""
    connection.create_function("sealing", -1, of_values, deterministic=True)


def has_seals(connection: sqlite3.Connection) -> bool:
    """Whether every row has to have its own."""
    return bool(connection.execute("PRAGMA user_version").fetchone()[0] >= VERSION)


def prepare(connection: sqlite3.Connection) -> None:
    """Makes room for seals where there is none; inside a transaction that writes."""
    if has_seals(connection):
        return
    for seal in SEALS:
        columns = connection.execute(f"SELECT name FROM pragma_table_info('{seal.table}')").fetchall()
        if (seal.column,) not in columns:
            connection.execute(f"ALTER TABLE {seal.table} ADD COLUMN {seal.column} INTEGER")
        connection.execute(
            f"CREATE INDEX IF NOT EXISTS {seal.table}_without_{seal.column} ON {seal.table} ({seal.column}) "
            f"WHERE {seal.column} IS NULL"
        )
    connection.execute(f"PRAGMA user_version = {VERSION}")


def seal_new(connection: sqlite3.Connection) -> None:
    """Seals what has no seal; inside a transaction that writes."""
    for table, column, over in SEALS:
        values = f"sealing({', '.join(over)})"
        connection.execute(f"UPDATE {table} SET {column} = {values} WHERE {column} IS NULL")


def broken(connection: sqlite3.Connection, seals: Iterable[Seal]) -> Sequence[str]:
    """Tables with rows that do not say what was written, as many as there are seals that are broken."""
    if not has_seals(connection):
        return []
    queries = (
        (table, f"SELECT 1 FROM {table} WHERE {column} IS NOT sealing({', '.join(over)}) LIMIT 1")
        for table, column, over in seals
    )
    return [table for table, query in queries if connection.execute(query).fetchone()]
