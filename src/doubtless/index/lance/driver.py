"""`LanceDriver`: the two tables of an index in LanceDB, which runs inside of this process over a folder.

items   one row per item: row, id, key (of the id), label, path, metadata (JSON as text), facts (numbers that
        filters look for), numbers (the stored distributions as bytes), and the vectors that are searched
parts   all else, as text: the state, names of labels, attachments in pieces
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import numpy as np

from doubtless.errors import InputError, StoreError
from doubtless.index.forms import Floats
from doubtless.index.items import Fields
from doubtless.index.remote.driver import ITEMS, PARTS, Driver, NothingThere, Part, Record, Wanted
from doubtless.index.remote.facts import Clause, clauses, filter_keys_of, key_of
from doubtless.index.remote.vectors import FIELD_OF, widths
from doubtless.index.settings import Settings

PREFIX = "lancedb:"
KEPT = timedelta(minutes=10)  # versions that somebody may still read
ITEM_COLUMNS = frozenset({"row", "id", "key", "label", "path", "metadata", "facts", "numbers", "direction"})
PART_COLUMNS = frozenset({"key", "kind", "number", "text"})
COLUMNS = {ITEMS: ITEM_COLUMNS, PARTS: PART_COLUMNS}


def folder_of(name: str | Path) -> Path:
    """The folder that an address names.

    >>> folder_of("lancedb:gallery")
    PosixPath('gallery')
    """
    rest = str(name).removeprefix(PREFIX)
    if not rest or "://" in rest:
        raise InputError(f"{str(name)!r} is no address of an index in LanceDB; accepted: lancedb:FOLDER.")
    return Path(rest)


class LanceDriver(Driver):
    """The tables items and parts of one folder."""

    product = "LanceDB"
    text_bytes = 1_000_000
    deepest = 1_000_000

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self._folder = name, folder
        self._tables: dict[str, Any] = {}
        self._last: tuple[tuple[Any, ...], dict[str, str]] = ((), {})
        with self._translated():
            # No interval: what another process has written is seen by the next call.
            self._database = _lancedb().connect(str(folder), read_consistency_interval=timedelta(0))

    @classmethod
    def connect(cls, name: str | Path, *, may_create: bool = False) -> Self:
        """Of a folder that is there or, with `may_create`, will be."""
        folder = folder_of(name)
        _refuse_other_things(folder, may_create=may_create)
        return cls(str(name), folder)

    # -- the tables ----------------------------------------------------------------------------------

    def has(self, table: str) -> bool:
        """Known by its columns."""
        with self._translated():
            if table not in self._database.list_tables().tables:
                return False
            columns = set(self._table(table).schema.names)
        if not columns >= COLUMNS[table]:
            raise InputError(f"{self.name} has a table {table!r} that is none of doubtless's; name another.")
        return True

    @classmethod
    def check(cls, settings: Settings) -> None:
        """Approximate kinds, which LanceDB must make of items that are there already."""
        if settings.kind not in ("auto", "flat"):
            raise InputError(f"An index in LanceDB is 'auto' or 'flat', got kind {settings.kind!r}.")

    def create(self, settings: Settings) -> None:
        """Makes both, empty."""
        import pyarrow as pa

        items = [(name, pa.int64()) for name in ("row", "key", "label")]
        items += [(name, pa.string()) for name in ("id", "path", "metadata")]
        items += [("facts", pa.list_(pa.int64())), ("numbers", pa.binary())]
        items += [(name, pa.list_(pa.float32(), width)) for name, width in widths(settings).items()]
        parts = [("key", pa.string()), ("kind", pa.string()), ("number", pa.int64()), ("text", pa.string())]
        with self._translated():
            for table, columns in ((ITEMS, items), (PARTS, parts)):
                self._tables[table] = self._database.create_table(table, schema=pa.schema(columns))

    def drop(self) -> None:
        """Both."""
        self._tables.clear()
        self._last = (), {}
        with self._translated():
            for table in (PARTS, ITEMS):
                self._database.drop_table(table, ignore_missing=True)

    def close(self) -> None:
        """There is nothing to let go of but memory."""
        self._tables.clear()

    def compact(self) -> None:
        """Joins what changes have left in many files; those of old versions go when no reader can be at them."""
        with self._translated():
            for table in (ITEMS, PARTS):
                self._table(table).optimize(cleanup_older_than=KEPT)

    def size(self) -> int | None:
        """Of the folder."""
        return sum(one.stat().st_size for one in self._folder.rglob("*") if one.is_file())

    # -- parts ---------------------------------------------------------------------------------------

    def read_parts(self, keys: Sequence[str]) -> dict[str, str]:
        """Key → text, of those that are there; what was read last is not read again while nothing has changed."""
        with self._translated():
            moment = (self._table(PARTS).version, *keys)
        seen, texts = self._last  # read once: other threads put theirs in its place
        if seen != moment:
            found = self._query(PARTS, f"key IN ({_texts(keys)})", ["key", "text"])
            texts = dict(zip(*found, strict=True))
            self._last = moment, texts
        return dict(texts)

    def parts_of(self, kind: str) -> dict[str, str]:
        """Key → text, of a kind."""
        return dict(zip(*self._query(PARTS, f"kind = {_texts([kind])}", ["key", "text"]), strict=True))

    def write_parts(self, parts: Sequence[Part]) -> None:
        """In place of what has their keys."""
        import pyarrow as pa

        with self._translated():
            table = self._table(PARTS)
            rows = pa.Table.from_pylist([part._asdict() for part in parts], schema=table.schema)
            table.merge_insert("key").when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def delete_parts(self, keys: Sequence[str]) -> None:
        """Those that are there."""
        if keys:
            self._delete(PARTS, f"key IN ({_texts(keys)})")

    # -- items ---------------------------------------------------------------------------------------

    def insert(self, first: int, fields: Sequence[Fields], vectors: Mapping[str, Floats]) -> None:
        """By Arrow."""
        import pyarrow as pa

        columns: dict[str, Any] = {
            "row": np.arange(first, first + len(fields)),
            "key": [key_of(field.id) for field in fields],
            "label": [-1 if field.label is None else field.label for field in fields],
            "id": [field.id for field in fields],
            "path": [field.path for field in fields],
            "metadata": [field.metadata for field in fields],
            "facts": [filter_keys_of(field.metadata) for field in fields],
            "numbers": [one.astype("<f4").tobytes() for one in vectors["numbers"]],
        }
        for name, matrix in vectors.items():
            if name != "numbers":
                flat = np.ascontiguousarray(matrix, dtype=np.float32).ravel()
                columns[name] = pa.FixedSizeListArray.from_arrays(flat, matrix.shape[1])
        with self._translated():
            table = self._table(ITEMS)
            table.add(pa.table(columns, schema=table.schema))

    def delete_rows(self, rows: Sequence[int]) -> None:
        """Those that are there."""
        if rows:
            self._delete(ITEMS, f"row IN ({_numbers(rows)})")

    def delete_from(self, row: int) -> None:
        """All rows from this one on; where there are none, nothing is written."""
        if self._query(ITEMS, f"row >= {row}", ["row"])[0]:
            self._delete(ITEMS, f"row >= {row}")

    def rows_named(self, ids: Sequence[str]) -> Iterable[tuple[str, int]]:
        """Found by the keys of the ids, so perhaps a few others."""
        keys = _numbers([key_of(name) for name in ids])
        return list(zip(*self._query(ITEMS, f"key IN ({keys})", ["id", "row"]), strict=True))

    def labels(self, start: int, stop: int) -> Iterable[tuple[int, int]]:
        """Row and label code of all rows in a range."""
        found = self._query(ITEMS, f"row >= {start} AND row < {stop}", ["row", "label"])
        return list(zip(*found, strict=True))

    def fields(self, rows: Sequence[int]) -> dict[int, Fields]:
        """What is stored beside the numbers, of those that are there."""
        names = ["row", "id", "label", "path", "metadata"]
        found = zip(*self._query(ITEMS, f"row IN ({_numbers(rows)})", names), strict=True)
        return {
            row: Fields(name, None if label < 0 else label, path, metadata)
            for row, name, label, path, metadata in found
        }

    def records(self, rows: Sequence[int], settings: Settings) -> Iterable[Record]:
        """Labels and numbers, of those that are there."""
        found = self._query(ITEMS, f"row IN ({_numbers(rows)})", ["row", "label", "numbers"])
        return [_record(*one) for one in zip(*found, strict=True)]

    def search(self, vectors: Floats, wanted: Wanted) -> list[list[Record]]:
        """One call for all queries, which looks at every item."""
        if not len(vectors):
            return []
        conditions = [f"({_said(clause)})" for clause in clauses(wanted.where or {}, wanted.label_names)]
        conditions += [] if wanted.before is None else [f"row < {wanted.before}"]
        hits_of: list[list[Record]] = [[] for _ in vectors]
        with self._translated():
            asked = self._table(ITEMS).search(list(vectors), vector_column_name=FIELD_OF[wanted.score])
            asked = (
                asked.distance_type("dot").limit(wanted.most).select(["row", "label", "numbers", "_distance"])
            )
            if conditions:
                asked = asked.where(" AND ".join(conditions), prefilter=True)
            found = asked.to_arrow()
        query = found.column("query_index").to_pylist() if len(vectors) > 1 else [0] * len(found)
        names = ("row", "label", "numbers")
        columns = [found.column(name).to_pylist() for name in names]
        for place, row, label, numbers in zip(query, *columns, strict=True):
            hits_of[place].append(_record(row, label, numbers))
        return hits_of

    # -- inside --------------------------------------------------------------------------------------

    def _table(self, table: str) -> Any:
        if table not in self._tables:
            self._tables[table] = self._database.open_table(table)
        return self._tables[table]

    def _query(self, table: str, condition: str, columns: list[str]) -> list[list[Any]]:
        """Columns as lists."""
        with self._translated():
            found = self._table(table).search().where(condition).select(columns).to_arrow()
        return [found.column(name).to_pylist() for name in columns]

    def _delete(self, table: str, condition: str) -> None:
        with self._translated():
            self._table(table).delete(condition)

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        # Its Rust raises RuntimeError, ValueError and OSError alike.
        except (RuntimeError, ValueError, OSError) as error:
            raise StoreError(
                f"LanceDB at {self.name} did not do what was asked ({str(error).strip()}); nothing that was stored "
                "before is lost. Has the disk space?"
            ) from error


def _lancedb() -> Any:
    try:
        import lancedb
    except ImportError:
        raise InputError(
            "An index in LanceDB needs lancedb; install the extra: pip install 'doubtless[lancedb]'."
        ) from None
    return lancedb


def _refuse_other_things(folder: Path, *, may_create: bool) -> None:
    others = [one for one in folder.iterdir() if one.suffix != ".lance"] if folder.is_dir() else []
    if others or (folder.exists() and not folder.is_dir()):
        raise InputError(f"{folder} exists and is nothing of LanceDB's.")
    if not folder.exists() and not may_create:
        raise NothingThere(f"lancedb:{folder} is no index: there is nothing.")


def _record(row: int, label: int, numbers: bytes) -> Record:
    return Record(row, label, np.frombuffer(numbers, "<f4"))


def _texts(values: Sequence[str]) -> str:
    """Inside of a condition: keys are made by us, of letters, digits and slashes."""
    return ", ".join(f"'{value}'" for value in values)


def _numbers(values: Sequence[int]) -> str:
    return ", ".join(map(str, values)) or "NULL"


def _said(clause: Clause) -> str:
    """One must hold; where nothing can, a row below 0."""
    ways = []
    if clause.codes:
        ways.append(f"label IN ({_numbers(clause.codes)})")
    if clause.facts:
        ways.append(f"array_has_any(facts, make_array({_numbers(clause.facts)}))")
    if clause.lacking is not None:
        ways.append(f"NOT array_has_any(facts, make_array({clause.lacking}))")
    return " OR ".join(ways) or "row < 0"
