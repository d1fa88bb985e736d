"""`RemoteIndex`: an index in somebody else's database that does what `Index` does in a folder.

The database proposes, what it proposes is measured again in float64 by the same code as in a folder: scores,
distances and the order of hits agree. docs/stores.md and docs/milvus.md say what each does not promise.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError, StoreError
from doubtless.index import search as searching
from doubtless.index.base import Index
from doubtless.index.construction import Standing, exists_already
from doubtless.index.filters import Where
from doubtless.index.forms import (
    Integers,
    fitting,
    new_items,
    packed,
    packed_attachment,
    read_attachment,
    unpacked,
)
from doubtless.index.items import (
    Fields,
    Incoming,
    Rows,
    checked_ids,
    refuse_missing,
    refuse_unknown,
    whole_numbers,
)
from doubtless.index.remote.catalog import Catalog, State
from doubtless.index.remote.driver import ITEMS, PARTS, Driver, NothingThere
from doubtless.index.remote.store import RemoteStore
from doubtless.index.remote.vectors import searched_vectors
from doubtless.index.settings import IndexScore, Settings
from doubtless.search.hits import Hits


class RemoteIndex(Index):
    """An index in a database, by its driver. Calls, rows and sentences are those of `Index`."""

    driver: ClassVar[type[Driver]]

    def __init__(self, driver: Driver, state: State, *, writable: bool) -> None:
        self.path: str = driver.name
        self._driver, self._settings = driver, state.settings
        self._store = RemoteStore(driver, state.settings)
        self._mutex = threading.RLock()  # one change at a time
        self._writer = ""
        if writable:
            self._writer = secrets.token_hex(8)
            with driver.changing():
                state = replace(self._store.state(), writer=self._writer)
                self._store.catalog.write_state(state)
                self._store.recover(state)

    @classmethod
    def open(cls, name: str | Path, *, writable: bool = False) -> Self:
        """Opens an index to search it or, with `writable`, to change it as well."""
        return cls._opened(name, writable=writable, unfinished=False)

    @classmethod
    def create_as(cls, name: str | Path, settings: Settings) -> Self:
        """A new, empty index, open for writing; a collection of the name that is there is refused."""
        return cls._begin(name, settings, None)

    @classmethod
    def drop(cls, name: str | Path) -> None:
        """Drops what a creation or migration left behind; a finished index is refused."""
        with contextlib.closing(cls.driver.connect(name)) as driver:
            state = state_at(driver)
            if state is None or state.unfinished is None:
                raise InputError(f"{name} is finished, or nothing; it is not dropped.")
            driver.drop()

    @classmethod
    def look_at(cls, name: str | Path) -> Standing:
        """What there is at an address."""
        try:
            driver = cls.driver.connect(name)
        except NothingThere:
            return Standing(False, None)
        with contextlib.closing(driver):
            state = state_at(driver)
            return Standing(state is not None, None if state is None else state.unfinished)

    @property
    def unfinished(self) -> str | None:
        """Never anything of one that `open` gave: it opens what is whole."""
        return None

    @classmethod
    def _begin(cls, name: str | Path, settings: Settings, unfinished: str | None) -> Self:
        cls.driver.check(settings)
        driver = cls.driver.connect(name, may_create=True)
        with closed_on_failure(driver):
            with driver.changing():
                refuse_existing(driver)
                driver.create(settings)
                state = State(settings, unfinished=unfinished)
                Catalog(driver).write_state(state)
            return cls(driver, state, writable=True)

    @classmethod
    def _continue(cls, name: str | Path) -> Self:
        return cls._opened(name, writable=True, unfinished=True)

    @classmethod
    def _opened(cls, name: str | Path, *, writable: bool, unfinished: bool) -> Self:
        driver = cls.driver.connect(name)
        with closed_on_failure(driver):
            state = state_at(driver)
            if state is None:
                raise NothingThere(f"{name} is no index: there is no index of doubtless in it.")
            if state.unfinished is not None and not unfinished:
                raise StoreError(f"{name} is not finished: {state.unfinished}")
            driver.load()
            return cls(driver, state, writable=writable)

    def _mark(self, unfinished: str | None) -> None:
        with self._changing() as state:
            self._store.catalog.write_state(replace(state, unfinished=unfinished))

    # -- what it is ----------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """What was decided when it was created."""
        return self._settings

    def __len__(self) -> int:
        return self._state().items

    @property
    def version(self) -> tuple[int, ...]:
        """Another one after every change of items, from the state alone: every question asks for it."""
        state = self._state()
        return state.items, state.next_row

    @property
    def label_names(self) -> list[str]:
        """Code → name, in the order in which they came."""
        return self._store.label_names(self._state())

    @property
    def rows(self) -> Tensor:
        """(N,) rows of all items, rising."""
        return torch.from_numpy(self._live()[0].copy())

    @property
    def labels(self) -> Tensor:
        """(N,) label codes of all items in the order of `rows`, −1 without a label."""
        return torch.from_numpy(self._live()[1].copy())

    def described(self, rows: Sequence[int]) -> tuple[list[str], dict[int, Fields]]:
        """Names of labels, and what is stored beside the numbers at those of the rows that are there."""
        with self._driver.reading():
            return self._store.label_names(self._state()), self._store.fields(set(rows))

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Id → row, of those that are there."""
        return self._store.rows_of(ids, self._state())

    def embedding(self, rows: Rows | None = None) -> Embedding:
        """The stored distributions at rows, in their order, or of all items in the order of `rows`."""
        with self._driver.reading():
            wanted = whole_numbers(self.rows if rows is None else rows)
            block = self._store.chosen(set(wanted))
        refuse_missing(wanted, block.rows.tolist())
        return unpacked(block.numbers[np.searchsorted(block.rows, wanted)], self.settings)

    def directions(self, rows: Tensor) -> Tensor:
        """Unit vectors (m, D) of the items at rows (m,), which may repeat; 0 of one that was removed meanwhile."""
        some, place = rows.unique(return_inverse=True)
        block = self._store.chosen(some.tolist())
        found = torch.zeros(len(some), self.dim)
        there = torch.from_numpy(np.searchsorted(some.numpy(), block.rows))
        found[there] = unpacked(block.numbers, self.settings).direction.float()
        return found[place]

    # -- changing ------------------------------------------------------------------------------------

    def write(self, embedding: Embedding, incoming: Incoming, *, model: str | None, replacing: bool) -> None:
        """Stores a batch in new rows: of ids that must not be there or, `replacing`, must be."""
        with self._changing() as state:
            known = self._store.rows_of(incoming.ids, state)
            incoming.refuse_misplaced(known, replacing=replacing)
            self._replace(state, embedding, incoming, known, model)

    def remove(self, ids: Sequence[str]) -> None:
        """Takes items out, all or none."""
        wanted = checked_ids(ids)
        with self._changing() as state:
            known = self._store.rows_of(wanted, state)
            refuse_unknown(wanted, known)
            if known:
                self._store.change(state, [], {}, removed=list(known.values()))

    def compact(self) -> None:
        """Has the database give the space of removed items back, at once or in its own time."""
        with self._changing():
            self._driver.compact()

    def attach(self, name: str, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Keeps tensors and JSON under a name in the index, in place of what was there."""
        packed_form = packed_attachment(name, tensors, record)
        with self._changing():
            self._store.catalog.attach(name, *packed_form)

    def attached(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What `attach` kept under a name; None where there is nothing."""
        self._refuse_closed()
        attachment = self._store.catalog.attachment(name)
        return None if attachment is None else read_attachment(*attachment)

    def attachments(self) -> list[str]:
        """Names under which something is attached, sorted."""
        self._refuse_closed()
        return self._store.catalog.attachments()

    # -- searching -----------------------------------------------------------------------------------

    def search(
        self,
        embedding: Embedding,
        k: int,
        *,
        where: Where | None = None,
        score: IndexScore | None = None,
        model: str | None = None,
    ) -> Hits:
        """The k best items for every query, best first; row −1 where there are fewer. As `Index.search`."""
        score, queries = searching.prepared(embedding, k, self.settings, score=score, model=model)
        with self._driver.reading():
            state = self._state()
            k = searching.clamped(k, state.items)
            proposed = self._store.propose(
                queries.vectors, k + searching.SPARE, score=score, where=where, state=state
            )
        block = proposed.block
        candidates = searching.Candidates.of(
            unpacked(block.numbers, self.settings),
            block.rows,
            block.labels,
            self.settings,
            has_labels=state.labels > 0,
        )
        positions = np.searchsorted(block.rows, proposed.rows)
        positions[proposed.rows < 0] = -1
        return searching.measured(candidates, queries, positions, k, score=score)

    def stats(self) -> dict[str, Any]:
        """Counts, sizes and how it is searched; None for what the database does not say."""
        state, kind = self._state(), self._driver.searched_by(self.settings)
        return {
            **self.settings.public_record(),
            "items": state.items,
            "labels": self.label_count,
            "removed": None,
            "attachments": self._store.catalog.attachments(),
            "bytes": self._driver.size(),
            "searched_by": kind,
            "recall@10": 1.0 if kind == "flat" else None,
        }

    def close(self) -> None:
        """Lets go of the database. Closing twice is allowed."""
        with self._mutex:
            if self._is_open:
                self._is_open = False
                self._driver.close()

    # -- inside --------------------------------------------------------------------------------------

    def _replace(
        self,
        state: State,
        embedding: Embedding,
        incoming: Incoming,
        known: Mapping[str, int],
        model: str | None,
    ) -> None:
        """Stores a batch in new rows and takes the rows that its ids had out."""
        fitted = fitting(embedding, self.settings, model=model)
        new = new_items(fitted, self.settings, incoming.ids)
        vectors = {**searched_vectors(new, self.settings), "numbers": packed(fitted, self.settings)}
        if len(incoming):
            fields = incoming.fields(known, self._store)
            self._store.change(state, fields, vectors, removed=list(known.values()))

    def _live(self) -> tuple[Integers, Integers]:
        with self._driver.reading():
            return self._store.live(self._state())

    def _state(self) -> State:
        self._refuse_closed()
        return self._store.state()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[State]:
        with self._mutex, self._driver.changing():
            state = self._state()
            self._refuse_reader(writable=bool(self._writer))
            if state.writer != self._writer:
                raise StoreError(
                    f"The index {self.path} was opened for writing by another since; one writes at a time, the "
                    "one that came last. Nothing of this call was stored."
                )
            if not self._store.is_clean:  # a call before this one was cut off by an error
                state = self._store.recover(state)
            yield state


def state_at(driver: Driver) -> State | None:
    """Of the index at an address; None where there is none, or one whose creation was cut off at its start."""
    return Catalog(driver).read_state() if driver.has(PARTS) else None


def refuse_existing(driver: Driver) -> None:
    """Refuses an address with an index, or something else; what a cut-off creation began is dropped."""
    if state_at(driver) is not None:
        raise exists_already(driver.name)
    there = [driver.has(table) for table in (ITEMS, PARTS)]  # both are looked at: one may be somebody else's
    if any(there):
        driver.drop()  # of a creation that was cut off before it was anything


@contextlib.contextmanager
def closed_on_failure(driver: Driver) -> Iterator[None]:
    """Closes the connection where the block fails."""
    try:
        yield
    except BaseException:
        driver.close()
        raise
