"""Connections to the database of an index: opened, told apart from other databases, used in transactions.

Errors of SQLite become sentences that say what to do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from doubtless.errors import DiskFullError, StoreError
from doubtless.files import NO_ROOM
from doubtless.index.settings import DATABASE, SCHEMA

APPLICATION = 0x646F7562  # "doub", in the header of the database
PAGE = 16384  # several items per page also where an item has a thousand numbers
LOGGED = 256  # pages in the log after which they are moved into the database, which has to have room for them
SHARED = 64 << 10  # bytes of the file by which SQLite shares its log, and more
PATIENCE = 30.0  # seconds to wait for a lock another process holds for a moment


def connect(folder: Path, *, writable: bool) -> sqlite3.Connection:
    """Opens the database of an index and looks whether it is one that this version can read."""
    path = folder / DATABASE
    if not path.is_file():
        raise StoreError(f"{folder} is no index: there is no {DATABASE} in it.")
    with translated(folder):
        connection = open_as(path, "mode=rw" if writable else reading_mode(path))
        if writable:
            # An acknowledged change survives a power cut: the log reaches the disk with every transaction.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute(f"PRAGMA wal_autocheckpoint = {LOGGED}")
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


def reading_mode(path: Path) -> str:
    """Where nothing can be written, SQLite cannot share its log with a writer: then there must be none."""
    if os.access(path.parent, os.W_OK) and shutil.disk_usage(path.parent).free >= SHARED:
        return "mode=ro"
    with contextlib.suppress(OSError):  # there is none
        if path.with_name(f"{path.name}-wal").stat().st_size:
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
        if lacks_room(error):
            raise full(folder, str(error)) from error
        raise StoreError(_sentence(folder, error)) from error


def lacks_room(error: Exception) -> bool:
    """Whether a disk is full or failing: SQLite tells one from the other in part."""
    name = getattr(error, "sqlite_errorname", "")
    return name == "SQLITE_FULL" or name.startswith("SQLITE_IOERR") or getattr(error, "errno", 0) in NO_ROOM


def full(folder: Path, reason: str) -> DiskFullError:
    """The error of whoever finds no room."""
    return DiskFullError(
        f"The disk of the index {folder} is full or failing ({reason}); nothing of this call was stored, "
        "everything stored before is. Free some space, or remove items, and try again."
    )


def _sentence(folder: Path, error: sqlite3.Error) -> str:
    name = getattr(error, "sqlite_errorname", "")
    reason = f"({error})"
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")) or "no such table" in str(error):
        return (
            f"The database of the index {folder} is damaged {reason}. Restore it from a copy (doubtless restore), "
            f"or save what can still be read into a new index: doubtless salvage {folder} NEW."
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
