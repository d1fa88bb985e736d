"""`RemoteStore`: the items of an index in a database, and the order in which a change is written.

A change of many rows need not be one transaction: it is made to count in one moment instead. New rows are
inserted where nobody looks yet (from `State.next_row` on), then one row, the state, says that they count and which
old ones do not; then those are deleted. `recover` undoes what was cut off before that moment and completes what
was cut off after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from doubtless.errors import InputError, StoreError
from doubtless.index.filters import Where
from doubtless.index.forms import Block, Floats, Integers
from doubtless.index.items import Fields
from doubtless.index.remote.catalog import Catalog, State
from doubtless.index.remote.driver import Driver, Record, Wanted, groups
from doubtless.index.settings import IndexScore, Settings

SCANNED = 65_536  # row numbers looked through with one call


class Proposals(NamedTuple):
    """What a search proposed: rows (n, c), −1 where there is nothing, and everything about each row once."""

    rows: Integers
    block: Block


class RemoteStore:
    """The items; `catalog` has the rest."""

    def __init__(self, driver: Driver, settings: Settings) -> None:
        self.driver, self.settings = driver, settings
        self.catalog = Catalog(driver)
        self._labels: list[str] = []
        self.is_clean = True
        """Whether no change of this store was cut off by an error; otherwise `recover` comes first."""

    # -- what there is -------------------------------------------------------------------------------

    def state(self) -> State:
        """Where the index stands now."""
        state = self.catalog.read_state()
        if state is None:
            raise StoreError(
                f"The index {self.driver.name} is gone: somebody has deleted it since it was opened."
            )
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
        for some in groups(list(ids), self.driver.looked_up):
            wanted = set(some)
            for name, row in self.driver.rows_named(some):
                if name in wanted and row < end:
                    row_of[name] = max(row, row_of.get(name, -1))
        return row_of

    def live(self, state: State) -> tuple[Integers, Integers]:
        """Rows of all items, rising, and their label codes."""
        pairs: list[tuple[int, int]] = []
        for start in range(0, state.next_row, SCANNED):
            pairs += self.driver.labels(start, min(start + SCANNED, state.next_row))
        table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        table = table[table[:, 0].argsort()]
        return table[:, 0], table[:, 1]

    def fields(self, rows: Iterable[int]) -> dict[int, Fields]:
        """What is stored beside the numbers, by row; rows that are not stored are left out."""
        found = dict[int, Fields]()
        for some in groups(list(rows), self.driver.looked_up):
            found |= self.driver.fields(some)
        return found

    def chosen(self, rows: Iterable[int]) -> Block:
        """These rows in rising order; those that are not stored are left out."""
        lots = groups(sorted(rows), self._together)
        return self._block([record for some in lots for record in self.driver.records(some, self.settings)])

    # -- searching -----------------------------------------------------------------------------------

    def propose(
        self, vectors: Floats, count: int, *, score: IndexScore, where: Where | None, state: State
    ) -> Proposals:
        """The best `count` of what fulfils a filter, for queries of an exact search (n, D) or (n, D + 1)."""
        if count > self.driver.deepest:
            raise InputError(
                f"{self.driver.product} finds at most {self.driver.deepest:,} items per query, got k that needs "
                f"{count:,}."
            )
        names = self.label_names(state) if where else []
        wanted = Wanted(count, self.settings, score, where, names)
        hits_of = self._search(vectors, wanted)
        if any(hit.row >= state.next_row for hits in hits_of for hit in hits):
            # An addition is under way: once more without its rows, which took the places of others.
            hits_of = self._search(vectors, wanted._replace(before=state.next_row))
        rows = np.full((len(vectors), max([count, *map(len, hits_of)])), -1, np.int64)
        for query, hits in enumerate(hits_of):
            rows[query, : len(hits)] = [hit.row for hit in hits]
        return Proposals(rows, self._block([hit for hits in hits_of for hit in hits]))

    def _search(self, vectors: Floats, wanted: Wanted) -> list[list[Record]]:
        size = min(self.driver.deepest, max(1, self._together // wanted.most))
        lots = (vectors[start : start + size] for start in range(0, len(vectors), size))
        return [hits for lot in lots for hits in self.driver.search(lot, wanted)]

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
        self.driver.delete_from(state.next_row)
        self.catalog.clean(state)
        self.is_clean = True
        return state

    # -- inside --------------------------------------------------------------------------------------

    @property
    def _item_bytes(self) -> int:
        """Of the numbers of an item and its two vectors, which are hardly longer."""
        return 12 * self.settings.width

    @property
    def _together(self) -> int:
        """Items with their numbers that are read with one call."""
        return max(1, self.driver.sent_bytes // self._item_bytes)

    def _complete(self, state: State) -> State:
        if state.removing is None:
            return state
        rows = np.frombuffer(self.catalog.read_pieces(state.removing), dtype="<i8").tolist()
        for some in groups(rows, self.driver.looked_up):
            self.driver.delete_rows(some)
        done = replace(state, removing=None)
        self.catalog.write_state(done)
        self.catalog.drop_pieces(state.removing)
        return done

    def _insert(self, first: int, fields: Sequence[Fields], vectors: dict[str, Floats]) -> None:
        for field in fields:
            self.driver.check_fields(field)
        for part in self._lots(fields):
            some = {name: matrix[part] for name, matrix in vectors.items()}
            self.driver.insert(first + part.start, fields[part], some)

    def _lots(self, fields: Sequence[Fields]) -> Iterator[slice]:
        """As many items as fit into one call with their numbers and texts, one at least."""
        start = size = 0
        for place, field in enumerate(fields):
            texts = sum(len((text or "").encode()) for text in (field.id, field.path, field.metadata))
            own = self._item_bytes + texts
            if place > start and size + own > self.driver.sent_bytes:
                yield slice(start, place)
                start, size = place, 0
            size += own
        if fields:
            yield slice(start, len(fields))

    def _block(self, records: Sequence[Record]) -> Block:
        one_of = {record.row: record for record in records}
        rows = np.array(sorted(one_of), dtype=np.int64)
        numbers = np.zeros((len(rows), self.settings.width), np.float32)
        labels = np.full(len(rows), -1, np.int64)
        for place, row in enumerate(rows.tolist()):
            labels[place], numbers[place] = one_of[row].label, one_of[row].numbers
        return Block(rows, labels, numbers)
