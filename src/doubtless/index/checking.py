"""Looking for damage: is an index what was written into it?

fast       the database opens, has come as far as was acknowledged, and holds what it counts; settings, labels and
           attachments are what was stored; the cache's stamp is
thorough   every page and every key of the database, every item, every number, every byte of the cache, and every
           picture that the index keeps
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import sqlite3
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from doubtless.errors import DoubtlessError
from doubtless.index.database.connection import translated
from doubtless.index.database.store import Store
from doubtless.index.forms import read_attachment
from doubtless.index.vector_cache import BLOCK, VectorCache

MOST_TOLD = 100
"""Findings that are listed; a ruined database has one for every row."""
KEPT_PICTURE = re.compile(r"[0-9a-f]{64}(\.[a-z0-9]+)?")


@dataclass
class Check:
    """What was looked at, and what was found."""

    path: str
    thorough: bool
    items: int | None = None
    damage: list[str] = field(default_factory=list)
    """Of what cannot be made again: sentences."""
    cache: list[str] = field(default_factory=list)
    """Of what is made again by itself when the index is next opened for writing."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing was found."""
        return not self.damage and not self.cache


def check(path: str | Path, *, thorough: bool = False) -> Check:
    """Looks at the index in a folder and changes nothing; what it finds is in `damage` and `cache`."""
    folder, found = Path(path), Check(str(path), thorough)
    with _noting(found.damage), contextlib.closing(Store(folder, writable=False)) as store:
        with _noting(found.damage):
            _look_at_database(store, found)
        if not found.damage:
            with _noting(found.damage):
                _look_at_cache(folder, store, found)
    if thorough:
        with _noting(found.damage):
            found.damage.extend(_pictures(folder))
    found.damage = list(dict.fromkeys(found.damage))[:MOST_TOLD]
    return found


@contextlib.contextmanager
def _noting(damage: list[str]) -> Iterator[None]:
    """What stops a look is what it has found; whatever it is, somebody wants to know of it."""
    try:
        yield
    except DoubtlessError as error:
        damage.append(str(error))
    except (sqlite3.Error, OSError, ValueError, TypeError, OverflowError) as error:
        damage.append(f"It cannot be read: {error}.")


def _look_at_database(store: Store, found: Check) -> None:
    connection = store.connection
    with store.reading():
        state = store.state()
        found.items = state.items
        names = store.label_names()
        for name in store.attachments():
            with _noting(found.damage):
                attachment = store.attachment(name)
                assert attachment is not None
                read_attachment(*attachment)
        for table in ("item", "vector"):
            (count,) = connection.execute(f"SELECT count(*) FROM {table}").fetchone()
            if count != state.items:
                found.damage.append(
                    f"The table {table} has {count:,} rows, where {state.items:,} items are counted."
                )
        if found.thorough:
            _look_at_everything(store, found, labels=len(names))


def _look_at_everything(store: Store, found: Check, *, labels: int) -> None:
    with translated(store.folder):
        told = store.connection.execute(f"PRAGMA integrity_check({MOST_TOLD})").fetchall()
    found.damage.extend(f"SQLite: {line}." for (line,) in told if line != "ok")
    last, count = -1, 0
    while True:
        block = store.block(last, BLOCK)  # verifies each
        if not len(block.rows):
            break
        last, count = int(block.rows[-1]), count + len(block.rows)
        if block.labels.max() >= labels or block.labels.min() < -1:
            found.damage.append("An item has a label that has no name.")
    if count != found.items:
        found.damage.append(f"{count:,} items can be read, where {found.items:,} are counted.")


def _look_at_cache(folder: Path, store: Store, found: Check) -> None:
    """Takes the cache as a reader would, which says by warnings what it throws away."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        cache = VectorCache(folder, store.settings, writable=False)
        with store.reading():
            cache.refresh(store, store.state())
            if found.thorough:
                _compare(cache, store, found)
    found.cache.extend(str(warning.message) for warning in said)


def _compare(cache: VectorCache, store: Store, found: Check) -> None:
    """Whether the cache says of every item what the database does."""
    rows = [row for (row,) in store.connection.execute("SELECT row FROM item ORDER BY row")]
    if cache.items["row"][cache.alive].tolist() != rows:
        found.damage.append(
            "The cache has other items than the database: some that were removed, or not all."
        )
        return
    last = -1
    while len((block := store.block(last, BLOCK)).rows):
        positions = np.searchsorted(cache.items["row"], block.rows)
        if not np.array_equal(cache.items["label"][positions], block.labels):
            found.cache.append("The cache has other labels than the database; delete the folder cache.")
            return
        last = int(block.rows[-1])


def _pictures(folder: Path) -> Iterator[str]:
    """Pictures that a server keeps are called by a hash of their item's id and of what they hold."""
    from doubtless.index.folder import FolderIndex

    shelf = folder / "images"
    with FolderIndex.open(folder) as index:
        ids = {item.path: item.id for item in index.items(index.rows) if item.path}
    for file in sorted(shelf.glob("??/*")):
        place, digest = f"images/{file.parent.name}/{file.name}", file.name.partition(".")[0]
        if not KEPT_PICTURE.fullmatch(file.name) or place not in ids:
            continue
        id = ids[place].encode()
        if hashlib.sha256(b"%d\0" % len(id) + id + file.read_bytes()).hexdigest() != digest:
            yield f"The picture {place} of item {ids[place]!r} is not what was stored."
    for place in sorted(path for path in ids if path.startswith("images/")):
        if KEPT_PICTURE.fullmatch(Path(place).name) and not (folder / place).is_file():
            yield f"The picture {place} of item {ids[place]!r} is gone."
