"""Checksums over what a database holds: a row that says something else than what was written is noticed.

A seal is CRC-32 over everything a row says, its key with it, so that a row in another's place is noticed as well.
Numbers of items have had one from the first version on; the rest is sealed since schema 2, and what older versions
wrote is sealed when it is next opened for writing.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from doubtless.errors import StoreError

TABLES = ("setting", "state", "label", "item", "part")
"""Tables with a column `checksum`, their last."""


def of_item(row: Any, id: Any, label: Any, path: Any, metadata: Any) -> int:
    """Of what is stored beside an item's numbers."""
    return zlib.crc32(f"{row}\0{id}\0{label}\0{path is None}{path}\0{metadata}".encode())


def of_words(*words: Any) -> int:
    """Of a setting, a label or the state: a few short values."""
    return zlib.crc32("\0".join(f"{type(word).__name__} {word}" for word in words).encode())


def of_part(name: Any, tensors: Any, record: Any) -> int:
    """Of an attachment."""
    seal = zlib.crc32(f"{type(tensors).__name__} {name}\0{record}".encode())
    return zlib.crc32(tensors, seal) if isinstance(tensors, bytes) else seal


SEALS: dict[str, Callable[..., int]] = {"item": of_item, "part": of_part}


def damaged(folder: Path, what: str) -> StoreError:
    """The error of who finds something else than was stored."""
    return StoreError(
        f"The database of the index {folder} is damaged: {what}. Restore it from a copy (doubtless restore), or "
        f"save what can still be read into a new index: doubtless salvage {folder} NEW."
    )


def is_sealed(connection: sqlite3.Connection) -> bool:
    """Whether this database has seals."""
    columns = connection.execute("SELECT name FROM pragma_table_info('item')").fetchall()
    return ("checksum",) in columns


def seal_all(connection: sqlite3.Connection, schema: int) -> None:
    """Seals what an older version has written, as it is; inside a transaction that writes."""
    for table in TABLES:
        connection.execute(f"ALTER TABLE {table} ADD COLUMN checksum INTEGER")
        key = connection.execute(f"SELECT name FROM pragma_table_info('{table}')").fetchone()[0]
        seal = SEALS.get(table, of_words)
        first = 1 if table == "state" else 0  # its key is always 1, and no part of it
        for row in connection.execute(f"SELECT * FROM {table}").fetchall():
            query = f"UPDATE {table} SET checksum = ? WHERE {key} = ?"
            connection.execute(query, (seal(*row[first:-1]), row[0]))
    connection.execute(f"PRAGMA user_version = {schema}")
