"""Copies of an index that are whole, made beside a writer that goes on, and put back where there is nothing.

Databases are copied by SQLite's own online backup: one moment of them, with what lies in their logs. What else
belongs to the index (its model, pictures) is copied as it lies; the cache is left out, it is made again. A copy
is an index: it can be opened, asked and checked where it lies.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from doubtless.errors import InputError, StoreError
from doubtless.index.checking import check
from doubtless.index.construction import Construction, building_folder
from doubtless.index.database.connection import connect, open_as, translated
from doubtless.index.database.reserve import NAME as RESERVE
from doubtless.index.database.store import Store
from doubtless.index.database.witness import NAME, Witness
from doubtless.index.settings import DATABASE

OWN = {DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", "writer.lock", NAME, RESERVE, "cache"}
"""Of the index's files, those that are not copied as they lie."""
COPYING = Construction("copying", "is being copied")
PAGES = 1024  # copied at a time; a writer that comes in between makes SQLite begin again


def backup(path: str | Path, to: str | Path) -> int:
    """Copies an index, as it is at one moment, to where there is nothing; how many items it has."""
    source, target = Path(path), Path(to)
    with _beside(target, source) as temporary, translated(source):
        _copy_database(source, temporary)
        _copy_files(source, temporary)
        _flush(temporary, *temporary.rglob("*"))
        _refuse_damaged(temporary, named=source)
    return int(check(target).items or 0)


def restore(copy: str | Path, to: str | Path) -> int:
    """Puts a copy where there is nothing, looks at all of it and makes its cache; how many items it has."""
    from doubtless.index.folder import FolderIndex

    source, target = Path(copy), Path(to)
    if not (source / DATABASE).is_file():
        raise StoreError(f"{source} is no copy of an index: there is no {DATABASE} in it.")
    with _beside(target, source) as temporary, translated(source):
        _copy_database(source, temporary)
        _copy_files(source, temporary)
        _refuse_damaged(temporary, named=source)
        with FolderIndex.open(temporary, writable=True) as index:
            count = len(index)
        _flush(temporary, *temporary.rglob("*"))
    return count


def _copy_database(source: Path, target: Path) -> None:
    with closing(Store(source, writable=False)) as store:  # refuses one that has lost its log
        settings = store.settings
    with (
        closing(connect(source, writable=False)) as old,
        closing(open_as(target / DATABASE, "mode=rwc")) as new,
    ):
        old.backup(new, pages=PAGES)
    with closing(Store(target, writable=False)) as store:
        Witness(target, settings.identity).note(store.state().version)


def save_files(source: Path, target: Path, *, leave: Collection[str]) -> None:
    """What belongs to an index beside its database, as far as it can be read; but for some names."""
    for entry in sorted(source.iterdir()):
        if entry.name not in leave:
            with suppress(OSError, shutil.Error, sqlite3.Error):
                _copy_files(source, target, only=entry.name)


def _copy_files(source: Path, target: Path, *, only: str | None = None) -> None:
    for entry in [source / only] if only is not None else sorted(source.iterdir()):
        if entry.name in OWN or entry.is_symlink() or entry.name.endswith((".sqlite-wal", ".sqlite-shm")):
            continue
        if entry.suffix == ".sqlite":  # what people said of answers
            with (
                closing(open_as(entry, "mode=ro")) as old,
                closing(sqlite3.connect(target / entry.name)) as new,
            ):
                old.backup(new)
        elif entry.is_dir():
            shutil.copytree(entry, target / entry.name, symlinks=True)
        else:
            shutil.copy2(entry, target / entry.name)


def _refuse_damaged(copy: Path, *, named: Path) -> None:
    """A damaged index is not copied over the last good one, nor put in its place."""
    found = check(copy, thorough=True)
    if found.damage:
        raise StoreError(
            f"{named} is damaged and was not copied: {found.damage[0]} doubtless check --thorough lists all, "
            "doubtless salvage saves what can still be read."
        )


def _flush(*paths: Path) -> None:
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextmanager
def _beside(target: Path, source: Path) -> Iterator[Path]:
    """A folder that is moved to its place when the block ends well; a cut-off copy leaves nothing there.

    What a killed one has left beside it goes when the same is tried again.
    """
    if target.resolve().is_relative_to(source.resolve()):
        raise InputError(f"{target} lies in {source}; a copy is kept elsewhere.")
    try:
        with building_folder(target, target.with_name(f".{target.name}.{COPYING.name}"), COPYING) as made:
            made.mkdir()
            yield made
        _flush(target.parent)
    except (OSError, shutil.Error, sqlite3.Error) as error:
        raise StoreError(f"{target} cannot be written: {error}.") from error
