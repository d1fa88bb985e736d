"""`MilvusDriver`: the two collections of an index in Milvus."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from doubtless.errors import InputError
from doubtless.index.forms import Floats
from doubtless.index.items import Fields
from doubtless.index.milvus.conditions import expression
from doubtless.index.milvus.connection import MILVUS, Connection
from doubtless.index.milvus.tables import (
    CATALOG_FIELDS,
    FILTER_KEYS,
    ITEM_FIELDS,
    MOST_KEYS,
    check_width,
    create_collections,
    drop_collections,
    query_parameters,
)
from doubtless.index.remote.driver import ITEMS, PARTS, Driver, Part, Record, Wanted
from doubtless.index.remote.facts import filter_keys_of, key_of
from doubtless.index.remote.vectors import FIELD_OF
from doubtless.index.settings import Settings

FLUSHED = 20_000  # new rows after which Milvus Lite puts them into segments; it searches those faster


class MilvusDriver(Driver):
    """A client of one address, and its collections NAME and NAME_parts."""

    product = "Milvus"

    def __init__(self, connection: Connection) -> None:
        self._connection, self._unflushed = connection, 0
        self.name = connection.address.name
        self._items, self._parts = connection.address.collection, connection.address.parts

    @classmethod
    def connect(cls, name: str | Path, *, may_create: bool = False) -> Self:
        """A client of a server, or of the one this process runs for a file."""
        return cls(Connection(MILVUS.parse(name), may_create=may_create))

    def has(self, table: str) -> bool:
        """Known by its columns, not by its description, which Milvus Lite forgets."""
        name, fields = {ITEMS: (self._items, ITEM_FIELDS), PARTS: (self._parts, CATALOG_FIELDS)}[table]
        if not self._connection.call("has_collection", name):
            return False
        self._refuse_foreign(name, fields)
        if table == PARTS:
            self._connection.call("load_collection", name)
        return True

    @classmethod
    def check(cls, settings: Settings) -> None:
        """Vectors that are too long."""
        check_width(settings)

    def create(self, settings: Settings) -> None:
        """Makes both, empty."""
        create_collections(self._connection, settings)

    def drop(self) -> None:
        """Both."""
        drop_collections(self._connection)

    def load(self) -> None:
        """Has Milvus take both into memory."""
        for name in (self._items, self._parts):
            self._connection.call("load_collection", name)

    def close(self) -> None:
        """Lets go of Milvus; Lite writes what is in memory."""
        self._connection.close()

    def compact(self) -> None:
        """Milvus gives the space of deleted rows back in its own time; this asks it to begin."""
        self._flush()
        self._connection.call("compact", self._items)

    def size(self) -> int | None:
        """Of a file."""
        file = self._connection.address.local
        return None if file is None else sum(one.stat().st_size for one in file.rglob("*") if one.is_file())

    # -- parts ---------------------------------------------------------------------------------------

    def read_parts(self, keys: Sequence[str]) -> dict[str, str]:
        """Key → text, of those that are there."""
        rows = self._query(self._parts, f"key in {json.dumps(list(keys))}", ["key", "text"])
        return {row["key"]: row["text"] for row in rows}

    def parts_of(self, kind: str) -> dict[str, str]:
        """Key → text, of a kind."""
        return {
            row["key"]: row["text"] for row in self._query(self._parts, f"kind == '{kind}'", ["key", "text"])
        }

    def write_parts(self, parts: Sequence[Part]) -> None:
        """In place of what has their keys."""
        data = [{**part._asdict(), "nothing": [0.0, 0.0]} for part in parts]
        self._connection.call("upsert", self._parts, data)

    def delete_parts(self, keys: Sequence[str]) -> None:
        """Those that are there."""
        self._connection.call("delete", self._parts, ids=list(keys))

    # -- items ---------------------------------------------------------------------------------------

    def check_fields(self, field: Fields) -> None:
        """Texts that are too long, and too many names."""
        if len(filter_keys_of(field.metadata)) > MOST_KEYS:
            raise InputError(
                f"The metadata of item {field.id!r} have too many names; Milvus takes about {MOST_KEYS // 2:,}."
            )
        super().check_fields(field._replace(path=_written(field.path)))

    def insert(self, first: int, fields: Sequence[Fields], vectors: Mapping[str, Floats]) -> None:
        """What is not there is an empty text, or −1."""
        wide = {name: _wide(matrix) for name, matrix in vectors.items()}
        rows = [
            {
                "row": first + place,
                "key": key_of(field.id),
                "label": -1 if field.label is None else field.label,
                "id": field.id,
                "path": _written(field.path),
                "metadata": field.metadata or "",
                FILTER_KEYS: filter_keys_of(field.metadata),
                **{name: matrix[place] for name, matrix in wide.items()},
            }
            for place, field in enumerate(fields)
        ]
        self._connection.call("insert", self._items, rows)
        self._unflushed += len(rows)
        if self._unflushed >= FLUSHED and self._connection.address.local is not None:
            self._flush()

    def delete_rows(self, rows: Sequence[int]) -> None:
        """Those that are there."""
        self._connection.call("delete", self._items, ids=list(rows))

    def delete_from(self, row: int) -> None:
        """All rows from this one on."""
        self._connection.call("delete", self._items, filter=f"row >= {row}")

    def rows_named(self, ids: Sequence[str]) -> Iterable[tuple[str, int]]:
        """Found by the keys of the ids, so perhaps a few others."""
        found = self._query(self._items, f"key in {[key_of(name) for name in ids]}", ["row", "id"])
        return [(row["id"], row["row"]) for row in found]

    def labels(self, start: int, stop: int) -> Iterable[tuple[int, int]]:
        """Row and label code of all rows in a range."""
        found = self._query(self._items, f"row >= {start} and row < {stop}", ["row", "label"])
        return [(row["row"], row["label"]) for row in found]

    def fields(self, rows: Sequence[int]) -> dict[int, Fields]:
        """What is stored beside the numbers, of those that are there."""
        found = self._query(self._items, f"row in {list(rows)}", ["row", "id", "label", "path", "metadata"])
        return {row["row"]: _fields(row) for row in found}

    def records(self, rows: Sequence[int], settings: Settings) -> Iterable[Record]:
        """Labels and numbers, of those that are there."""
        found = self._query(self._items, f"row in {list(rows)}", ["row", "label", "numbers"])
        return [_record(row["row"], row, settings) for row in found]

    def search(self, vectors: Floats, wanted: Wanted) -> list[list[Record]]:
        """One call for all queries."""
        conditions = [expression(wanted.where, wanted.label_names)] if wanted.where else []
        conditions += [] if wanted.before is None else [f"(row < {wanted.before})"]
        vectors, parameters = query_parameters(vectors, wanted)
        hits_of = self._connection.call(
            "search",
            self._items,
            data=list(_wide(vectors)),
            anns_field=FIELD_OF[wanted.score],
            filter=" and ".join(conditions),
            limit=wanted.most,
            output_fields=["label", "numbers"],
            search_params=parameters,
        )
        return [[_record(hit["row"], hit["entity"], wanted.settings) for hit in hits] for hits in hits_of]

    # -- inside --------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Has Milvus put new rows into segments."""
        self._connection.call("flush", self._items)
        self._unflushed = 0

    def _query(self, table: str, condition: str, fields: list[str]) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self._connection.call(
            "query", table, filter=condition, output_fields=fields
        )
        return rows

    def _refuse_foreign(self, name: str, fields: frozenset[str]) -> None:
        columns = {field["name"] for field in self._connection.call("describe_collection", name)["fields"]}
        if not columns >= fields:
            raise InputError(
                f"{self.name} has a collection {name!r} that is none of doubtless's; name another."
            )


def _wide(vectors: Floats) -> Floats:
    """Milvus takes no vectors of one number: a zero more changes no product and no distance."""
    if vectors.shape[1] >= 2:
        return vectors
    return np.column_stack([vectors, np.zeros((len(vectors), 2 - vectors.shape[1]), np.float32)])


def _written(path: str | None) -> str:
    """A path may be empty, too: a given one is written behind a mark."""
    return "" if path is None else f"={path}"


def _record(row: int, entity: Mapping[str, Any], settings: Settings) -> Record:
    return Record(row, entity["label"], np.asarray(entity["numbers"][: settings.width], np.float32))


def _fields(row: dict[str, Any]) -> Fields:
    return Fields(
        row["id"],
        None if row["label"] < 0 else row["label"],
        row["path"][1:] if row["path"] else None,
        row["metadata"] or None,
    )
