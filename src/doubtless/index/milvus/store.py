"""`MilvusStore`: the items of an index in Milvus, and the order in which a change is written.

A change of many rows cannot be one transaction, so it is made to count in one moment instead: new rows are
inserted where nobody looks yet (from `State.next_row` on), then one row, the state, says that they count and which
old ones do not; then those are deleted. `recover` undoes what was cut off before that moment and completes what
was cut off after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from doubtless.errors import InputError
from doubtless.index.forms import Block, Floats, Integers
from doubtless.index.items import Fields
from doubtless.index.milvus.catalog import Catalog, State, groups, refuse_long
from doubtless.index.milvus.conditions import filter_keys_of, key_of
from doubtless.index.milvus.connection import Connection
from doubtless.index.milvus.tables import FIELD_OF, FILTER_KEYS, MOST_KEYS, query_parameters
from doubtless.index.settings import IndexScore, Settings

LOOKED_UP = 8_192  # rows or ids asked for with one call
SCANNED = 65_536  # row numbers looked through with one call
SENT = 8_000_000  # bytes of numbers sent or received with one call, about
DEEPEST = 16_384  # the longest list of neighbours, and the most queries, of Milvus
FLUSHED = 20_000  # new rows after which Milvus Lite puts them into segments; it searches those faster


class Proposals(NamedTuple):
    """What a search proposed: rows (n, c), −1 where there is nothing, and everything about each row once."""

    rows: Integers
    block: Block


class MilvusStore:
    """The collection of the items; `catalog` has the rest."""

    def __init__(self, connection: Connection, settings: Settings) -> None:
        self._connection, self.settings = connection, settings
        self._name = connection.address.collection
        self.catalog = Catalog(connection)
        self._labels: list[str] = []
        self._unflushed = 0
        self.is_clean = True
        """Whether no change of this store was cut off by an error; otherwise `recover` comes first."""

    # -- what there is -------------------------------------------------------------------------------

    def state(self) -> State:
        """Where the index stands now."""
        state = self.catalog.read_state()
        assert state is not None  # it was there when the index was opened, and nothing deletes it
        return state

    def label_names(self, state: State | None = None) -> list[str]:
        """Code → name; names are only ever added, so those that are known are not read again."""
        count = (state or self.state()).labels
        if len(self._labels) < count:
            self._labels += self.catalog.label_names(range(len(self._labels), count))
        return self._labels[:count]

    def rows_of(self, ids: Sequence[str], state: State | None = None) -> dict[str, int]:
        """Id → row of those that are stored."""
        end, row_of = (state or self.state()).next_row, dict[str, int]()
        for some in groups(list(ids), LOOKED_UP):
            wanted = set(some)
            for row in self._query(f"key in {[key_of(name) for name in some]}", ["row", "id"]):
                if row["id"] in wanted and row["row"] < end:
                    row_of[row["id"]] = max(row["row"], row_of.get(row["id"], -1))
        return row_of

    def live(self, state: State) -> tuple[Integers, Integers]:
        """Rows of all items, rising, and their label codes."""
        records = []
        for start in range(0, state.next_row, SCANNED):
            stop = min(start + SCANNED, state.next_row)
            records += self._query(f"row >= {start} and row < {stop}", ["row", "label"])
        table = np.array([(row["row"], row["label"]) for row in records], dtype=np.int64).reshape(-1, 2)
        table = table[table[:, 0].argsort()]
        return table[:, 0], table[:, 1]

    def fields(self, rows: Iterable[int]) -> dict[int, Fields]:
        """What is stored beside the numbers, by row; rows that are not stored are left out."""
        records = self._at(list(rows), ["id", "label", "path", "metadata"], LOOKED_UP)
        return {row["row"]: _fields(row) for row in records}

    def chosen(self, rows: Iterable[int]) -> Block:
        """These rows in rising order; those that are not stored are left out."""
        records = self._at(sorted(rows), ["label", "numbers"], self._together)
        return self._block({row["row"]: row for row in records})

    # -- searching -----------------------------------------------------------------------------------

    def propose(
        self, vectors: Floats, count: int, *, score: IndexScore, condition: str, state: State
    ) -> Proposals:
        """The best `count` of what fulfils a condition, for queries of an exact search (n, D) or (n, D + 1)."""
        if count > DEEPEST:
            raise InputError(f"Milvus finds at most {DEEPEST:,} items per query, got k that needs {count:,}.")
        hits_of = self._search(vectors, count, score, condition)
        if any(hit["row"] >= state.next_row for hits in hits_of for hit in hits):
            # An addition is under way: once more without its rows, which took the places of others.
            seen = f"row < {state.next_row}"
            hits_of = self._search(vectors, count, score, f"({condition}) and {seen}" if condition else seen)
        rows = np.full((len(vectors), max([count, *map(len, hits_of)])), -1, np.int64)
        for query, hits in enumerate(hits_of):
            rows[query, : len(hits)] = [hit["row"] for hit in hits]
        return Proposals(rows, self._block({hit["row"]: hit["entity"] for hits in hits_of for hit in hits}))

    def _search(
        self, vectors: Floats, count: int, score: IndexScore, condition: str
    ) -> list[list[dict[str, Any]]]:
        vectors, parameters = query_parameters(vectors, self.settings, score, limit=count)
        hits_of: list[list[dict[str, Any]]] = []
        for some in groups(list(_wide(vectors)), min(DEEPEST, max(1, self._together // count))):
            hits_of += self._connection.call(
                "search",
                self._name,
                data=some,
                anns_field=FIELD_OF[score],
                filter=condition,
                limit=count,
                output_fields=["label", "numbers"],
                search_params=parameters,
            )
        return hits_of

    # -- changes -------------------------------------------------------------------------------------

    def codes(self, names: Sequence[str | None]) -> list[int | None]:
        """Codes of labels; new ones are written, and count with the next change."""
        known = {name: code for code, name in enumerate(self.label_names())}
        new = [name for name in dict.fromkeys(names) if name is not None and name not in known]
        self.catalog.add_labels(new, first=len(known))
        known |= {name: len(known) + place for place, name in enumerate(new)}
        return [None if name is None else known[name] for name in names]

    def change(
        self, state: State, fields: Sequence[Fields], vectors: dict[str, Floats], *, removed: Sequence[int]
    ) -> State:
        """Stores new items and takes rows out, all or none."""
        self.is_clean = False
        self._insert(state.next_row, fields, vectors)
        labels = [field.label + 1 for field in fields if field.label is not None]
        rows = np.array(removed, dtype="<i8").tobytes()
        state = replace(
            state,
            next_row=state.next_row + len(fields),
            items=state.items + len(fields) - len(removed),
            labels=max([state.labels, *labels]),
            removing=self.catalog.write_pieces(rows) if removed else None,
        )
        self.catalog.write_state(state)  # from here on it counts
        state = self._complete(state)
        self.is_clean = True
        return state

    def recover(self, state: State) -> State:
        """Brings an index that a writer left in the middle of a change to before or after it."""
        state = self._complete(state)
        self._connection.call("delete", self._name, filter=f"row >= {state.next_row}")
        self.catalog.clean(state)
        self.is_clean = True
        return state

    def flush(self) -> None:
        """Has Milvus put new rows into segments."""
        self._connection.call("flush", self._name)
        self._unflushed = 0

    def compact(self) -> None:
        """Milvus gives the space of deleted rows back in its own time; this asks it to begin."""
        self.flush()
        self._connection.call("compact", self._name)

    # -- inside --------------------------------------------------------------------------------------

    @property
    def _together(self) -> int:
        """Items with their numbers that are read or written with one call."""
        return max(1, SENT // (12 * self.settings.width))  # numbers, and two vectors hardly longer

    def _complete(self, state: State) -> State:
        if state.removing is None:
            return state
        rows = np.frombuffer(self.catalog.read_pieces(state.removing), dtype="<i8").tolist()
        for some in groups(rows, LOOKED_UP):
            self._connection.call("delete", self._name, ids=list(some))
        done = replace(state, removing=None)
        self.catalog.write_state(done)
        self.catalog.drop_pieces(state.removing)
        return done

    def _insert(self, first: int, fields: Sequence[Fields], vectors: dict[str, Floats]) -> None:
        wide = {name: _wide(matrix) for name, matrix in vectors.items()}
        plain = [_checked(field) for field in fields]
        for places in groups(range(len(fields)), self._together):
            rows = [
                {"row": first + place, **plain[place], **{name: rows[place] for name, rows in wide.items()}}
                for place in places
            ]
            self._connection.call("insert", self._name, rows)
        self._unflushed += len(fields)
        if self._unflushed >= FLUSHED and self._connection.address.file is not None:
            self.flush()

    def _at(self, rows: Sequence[int], fields: list[str], together: int) -> list[dict[str, Any]]:
        some = (list(group) for group in groups(rows, together))
        return [row for group in some for row in self._query(f"row in {group}", ["row", *fields])]

    def _query(self, condition: str, fields: list[str]) -> list[dict[str, Any]]:
        records: list[dict[str, Any]] = self._connection.call(
            "query", self._name, filter=condition, output_fields=fields
        )
        return records

    def _block(self, records: dict[int, dict[str, Any]]) -> Block:
        rows = np.array(sorted(records), dtype=np.int64)
        numbers = np.zeros((len(rows), self.settings.width), np.float32)
        for place, row in enumerate(rows.tolist()):
            numbers[place] = records[row]["numbers"][: self.settings.width]
        labels = np.array([records[row]["label"] for row in rows.tolist()], dtype=np.int64)
        return Block(rows, labels, numbers)


def _wide(vectors: Floats) -> Floats:
    """Milvus takes no vectors of one number: a zero more changes no product and no distance."""
    if vectors.shape[1] >= 2:
        return vectors
    return np.column_stack([vectors, np.zeros((len(vectors), 2 - vectors.shape[1]), np.float32)])


def _checked(field: Fields) -> dict[str, Any]:
    """An item as Milvus keeps it; what is not there is an empty text, or −1."""
    keys = filter_keys_of(field.metadata)
    if len(keys) > MOST_KEYS:
        raise InputError(
            f"The metadata of item {field.id!r} have too many names; Milvus takes about {MOST_KEYS // 2:,}."
        )
    # A path may be empty, too: a given one is written behind a mark.
    texts = {
        "id": field.id,
        "path": "" if field.path is None else f"={field.path}",
        "metadata": field.metadata or "",
    }
    for name, text in texts.items():
        refuse_long(f"The {name} of item {field.id[:40]!r}", text)
    label = -1 if field.label is None else field.label
    return {"key": key_of(field.id), "label": label, FILTER_KEYS: keys, **texts}


def _fields(row: dict[str, Any]) -> Fields:
    return Fields(
        row["id"],
        None if row["label"] < 0 else row["label"],
        row["path"][1:] if row["path"] else None,
        row["metadata"] or None,
    )
