"""Columns of metadata in memory, one for every key that a filter has asked for: what makes a filter quick.

A row number names one version of one item, whose metadata never change, so a column only grows: rows above the
last one it has seen are read from the database, by a connection of its own, while searches and changes go on. Of a
value 63 bits of a hash are kept (two values share them with a chance of 1e-19), by an item's position in the cache.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doubtless.index.database.connection import connect, reading
from doubtless.index.forms import Integers
from doubtless.index.growing import Growing
from doubtless.index.items import UNQUOTABLE

MOST_COLUMNS = 32
"""Keys whose columns are kept; the one that was not asked for longest goes."""
SOME = 16_384  # rows read at a time
REMEMBERED = 65_536  # values whose hashes are remembered while a column is read
MISSING, OTHER = 0, 1
"""Instead of a hash: no such key, or null; and a list or an object, which no filter asks for."""

Scalar = str | bool | int | float | None


def hash_of(value: Scalar) -> int:
    """Of one value: 2 and 2.0 are one, true, 1 and "1" are three.

    >>> hash_of(2) == hash_of(2.0), hash_of(True) == hash_of(1), hash_of(None)
    (True, False, 0)
    """
    if value is None:
        return MISSING
    if isinstance(value, bool):
        word = f"truth {value}"
    elif isinstance(value, str):
        word = f"text {value}"
    else:
        whole = isinstance(value, int) and -(2**63) <= value < 2**63  # SQLite reads larger ones as floats
        number = value if whole else float(value)
        word = f"number {int(number) if whole or float(number).is_integer() else number!r}"
    digest = hashlib.blake2b(word.encode(), digest_size=8).digest()
    return max(2, int.from_bytes(digest, "little") >> 1)


class Column:
    """One key's values of all rows, and of the positions of a cache."""

    def __init__(self, folder: Path, key: str) -> None:
        self._folder, self._key = folder, key
        self._lock = threading.Lock()
        self._rows = Growing(np.zeros(0, np.int64))
        self._hashes = Growing(np.zeros(0, np.int64))
        self._reach = -1  # the last row that was looked at, whether it is still there or not
        self._generation = -1
        self._placed = Growing(np.zeros(0, np.int64))  # hashes by position in the cache, as far as it has got

    def follow(self, last: int) -> None:
        """Reads what came since, where that is needed to know every row up to `last`."""
        with self._lock:
            if self._reach < last:
                self._read()

    def placed(self, rows: Integers, generation: int) -> Integers:
        """Hashes of the items at the first positions of a cache, as far as their rows (n,) are known here."""
        with self._lock:
            if generation != self._generation:
                self._generation, self._placed = generation, Growing(np.zeros(0, np.int64))
            have, known = len(self._placed), int(np.searchsorted(rows, self._reach, side="right"))
            if have < known:
                self._placed.append(self._hashes_of(rows[have:known]))
            return self._placed.array

    def _hashes_of(self, rows: Integers) -> Integers:
        """Of rows that were looked at; those that had been removed by then are nothing that is asked for."""
        own = self._rows.array
        if not len(own):
            return np.full(len(rows), OTHER, np.int64)
        places = np.searchsorted(own, rows).clip(max=len(own) - 1)
        return np.where(own[places] == rows, self._hashes.array[places], OTHER)

    def _read(self) -> None:
        connection = connect(self._folder, writable=False)
        try:
            with reading(connection, self._folder):
                (next_row,) = connection.execute("SELECT next_row FROM state").fetchone()
                if UNQUOTABLE & set(self._key):  # no item can have such a key
                    query, values = "SELECT row, NULL, NULL FROM item WHERE row > ? ORDER BY row", []
                else:
                    path = f"$.{json.dumps(self._key, ensure_ascii=False)}"
                    query = (
                        "SELECT row, json_type(metadata, ?), json_extract(metadata, ?) FROM item "
                        "WHERE row > ? ORDER BY row"
                    )
                    values = [path, path]
                found = connection.execute(query, (*values, self._reach))
                remembered: dict[tuple[str | None, Any], int] = {}
                while some := found.fetchmany(SOME):
                    self._rows.append(np.array([row for row, *_ in some], np.int64))
                    self._hashes.append(np.array([_hash(remembered, *rest) for _, *rest in some], np.int64))
            self._reach = next_row - 1
        finally:
            connection.close()


def _hash(remembered: dict[tuple[str | None, Any], int], kind: str | None, value: Any) -> int:
    """Of a value as SQLite gives it back."""
    if kind is None or kind == "null":
        return MISSING
    found = remembered.get((kind, value))
    if found is None:
        if kind in ("array", "object"):
            return OTHER
        found = hash_of(bool(value) if kind in ("true", "false") else value)
        if len(remembered) < REMEMBERED:
            remembered[kind, value] = found
    return found


class Columns:
    """The columns of an index; for any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._known: OrderedDict[str, Column] = OrderedDict()

    def of(self, key: str) -> Column:
        """The column of a key, which may have to follow."""
        with self._lock:
            column = self._known.setdefault(key, Column(self._folder, key))
            self._known.move_to_end(key)
            while len(self._known) > MOST_COLUMNS:
                self._known.popitem(last=False)
        return column

    def forget(self) -> None:
        """Lets go of all: after a compaction half of what they know may be of rows that are gone."""
        with self._lock:
            self._known.clear()


def one_of(hashes: Integers, wanted: list[Scalar]) -> NDArray[np.bool_]:
    """(n,): whether each is the hash of one of some values."""
    sought = np.unique(np.array([hash_of(value) for value in wanted], np.int64))
    if len(sought) <= 4:
        held = np.zeros(len(hashes), bool)
        for one in sought:
            held |= hashes == one
        return held
    return sought[np.searchsorted(sought, hashes).clip(max=len(sought) - 1)] == hashes
