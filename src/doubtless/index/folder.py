"""`FolderIndex`: a gallery of embeddings in a folder, searched by cosine or expected distance.

A SQLite database in WAL mode is the truth; beside it lie vectors that can be mapped into memory, a cache
that is patched or made again from the database. What a call changed is durable when it returns. One process
writes, any number read; a reader sees what was there at one moment, and newer changes at its next search.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.index import search as searching
from doubtless.index.base import Index
from doubtless.index.building import Builder
from doubtless.index.construction import Construction, building_folder, create_folder, is_taken
from doubtless.index.database.columns import Columns
from doubtless.index.database.lock import Gate, WriterLock
from doubtless.index.database.store import Store, rows_where
from doubtless.index.filters import Filter, Where, text_condition
from doubtless.index.forms import fitting, new_items, packed, packed_attachment, read_attachment, unpacked
from doubtless.index.items import (
    Fields,
    Incoming,
    Rows,
    checked_ids,
    refuse_missing,
    refuse_unknown,
    whole_numbers,
)
from doubtless.index.moments import Moments
from doubtless.index.salvage import Salvage, open_damaged, salvage
from doubtless.index.search import statistics
from doubtless.index.settings import DATABASE, IndexScore, Settings
from doubtless.index.vector_cache import VectorCache
from doubtless.search.hits import Hits


class FolderIndex(Index):
    """A folder of embeddings with their doubt.

    >>> animals = Embedding.gaussian(torch.eye(3), torch.full((3, 1), 0.1))
    >>> with FolderIndex.create("animals", family="gaussian", dim=3, variances=1) as index:
    ...     index.add(animals, ["a", "b", "c"], labels=["cat", "dog", "cat"])
    ...     hits = index.search(animals[:1], 2)
    ...     index.items(hits.row[0])
    [Item(id='a', label='cat', path=None, metadata={}), Item(id='b', label='dog', path=None, metadata={})]

    An index may be used from several threads: searches run beside each other, a change waits for those that
    run. Embeddings are kept as float32. Samples (`empirical`) are kept as the von Mises-Fisher distribution
    behind them, in an index of family `vmf`.
    """

    def __init__(self, path: str | Path, *, writable: bool = False) -> None:
        self.path: Path = Path(path)
        self._mutex = threading.RLock()  # the database's connection, and who may change the cache
        self._gate = Gate()
        self._lock = None
        with contextlib.ExitStack() as undo:  # what was opened is closed again if the rest fails
            if writable and (self.path / DATABASE).is_file():
                self._lock = WriterLock(self.path / "writer.lock")
                undo.callback(self._lock.release)
            self._store = Store(self.path, writable=writable)
            undo.callback(self._store.close)
            self._columns = Columns(self.path)
            self._cache = VectorCache(self.path, self._store.settings, writable=writable)
            self._refresh()
            undo.pop_all()
        self._builder = Builder(self._cache, self._mutex, self._gate)
        if writable:
            self._builder.consider()

    @classmethod
    def open(cls, name: str | Path, *, writable: bool = False) -> Self:
        """Opens an index to search it or, with `writable`, to change it as well."""
        return cls(name, writable=writable)

    @classmethod
    def create_as(cls, name: str | Path, settings: Settings) -> Self:
        """A new, empty index, open for writing; a folder that has anything in it is left alone and refused."""
        create_folder(Path(name), settings)
        return cls(name, writable=True)

    @classmethod
    def drop(cls, name: str | Path) -> None:
        """Nothing unfinished ever lies in an index's place."""
        raise InputError(f"{name} is finished, or no index; it is not dropped.")

    @classmethod
    def exists(cls, name: str | Path) -> bool:
        """Whether there is anything but an empty folder."""
        return is_taken(Path(name))

    @classmethod
    def place(cls, name: str | Path) -> str:
        """The absolute path."""
        return str(Path(name).resolve())

    @classmethod
    def beside(cls, name: str | Path, ending: str) -> Path:
        """`.NAME.ENDING`, in the same folder."""
        return Path(name).with_name(f".{Path(name).name}.{ending}")

    @classmethod
    def lists(cls, name: str | Path) -> Path:
        """In the index's own folder."""
        return Path(name)

    @classmethod
    @contextlib.contextmanager
    def under_construction(cls, name: str | Path, settings: Settings, work: Construction) -> Iterator[Self]:
        """An index to be filled, which is built beside its place and moved there when the block ends well."""
        path = Path(name)
        with (
            building_folder(path, cls.beside(path, work.name), work) as built,
            cls.open(built, writable=True) if built.exists() else cls.create_as(built, settings) as index,
        ):
            yield index

    @classmethod
    def discard(cls, name: str | Path, work: Construction) -> None:
        """Throws away what a stopped construction of this kind has left beside an index's place."""
        shutil.rmtree(cls.beside(name, work.name), ignore_errors=True)

    @property
    def unfinished(self) -> str | None:
        """Never anything: what is unfinished lies elsewhere."""
        return None

    @classmethod
    def salvage(cls, path: str | Path, to: str | Path) -> Salvage:
        """Saves what can still be read of an index with a damaged database into a new index, and counts it."""
        connection, old = open_damaged(Path(path))
        with contextlib.closing(connection):
            create_folder(Path(to), old.copied())
            with cls(to, writable=True) as index:
                return salvage(index, connection)

    # -- what it is ----------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """What was decided when it was created."""
        return self._store.settings

    def __len__(self) -> int:
        with self._reading():
            return self._store.state().items

    @property
    def label_names(self) -> list[str]:
        """Code → name, in the order in which they came."""
        with self._reading():
            return self._store.label_names()

    @property
    def rows(self) -> Tensor:
        """(N,) rows of all items, rising."""
        return torch.from_numpy(self._live()["row"].astype(np.int64))

    @property
    def labels(self) -> Tensor:
        """(N,) label codes of all items in the order of `rows`, −1 without a label."""
        return torch.from_numpy(self._live()["label"].astype(np.int64))

    def described(self, rows: Sequence[int]) -> tuple[list[str], dict[int, Fields]]:
        """Names of labels, and what is stored beside the numbers at those of the rows that are there."""
        with self._reading():
            return self._store.label_names(), self._store.fields(rows)

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Id → row, of those that are there."""
        with self._reading():
            return self._store.rows_of(ids)

    def embedding(self, rows: Rows | None = None) -> Embedding:
        """The stored distributions at rows, in their order, or of all items in the order of `rows`."""
        with self._reading():
            if rows is None:
                return unpacked(self._store.block(-1, -1).numbers, self.settings)
            wanted = whole_numbers(rows)
            block = self._store.chosen(set(wanted))
        refuse_missing(wanted, block.rows.tolist())
        return unpacked(block.numbers[np.searchsorted(block.rows, wanted)], self.settings)

    def directions(self, rows: Tensor) -> Tensor:
        """Unit vectors (m, D) of the items at rows (m,), which may repeat; 0 of one that was removed meanwhile."""
        self._refresh()
        with self._gate.shared():
            return torch.from_numpy(self._cache.directions(rows.numpy()))

    @property
    def version(self) -> tuple[int, ...]:
        """Another one after every change of items; what is attached changes none."""
        with self._reading():
            state = self._store.state()
        return state.items, state.next_row  # a compaction changes neither

    def rows_where(self, where: Where) -> Tensor:
        """Rows (m,) of the items for which a filter holds, rising; of all items where it is empty."""
        chosen = self._filter(where)
        with self._gate.shared():
            rows = self._cache.items["row"][chosen.positions(self._cache)]
        return torch.from_numpy(rows.astype(np.int64))

    def rows_with(self, text: str) -> Tensor:
        """Rows (m,), rising, of the items whose id, label or values of metadata have a text in them.

        The database looks through all of its items by a connection of its own: nobody who searches waits for that.
        """
        condition = text_condition(text, self.label_names)
        return torch.from_numpy(rows_where(self.path, *condition))

    @property
    def keeps_moments(self) -> bool:
        """It does: sums lie in the cache, and what changed since they were asked for last is added or taken off."""
        return True

    def moments(self) -> Moments:
        """Σ x xᵀ over the directions of all items."""
        with self._reading(), self._gate.alone():
            return self._cache.moments()

    # -- changing ------------------------------------------------------------------------------------

    def write(self, embedding: Embedding, incoming: Incoming, *, model: str | None, replacing: bool) -> None:
        """Stores a batch in new rows: of ids that must not be there or, `replacing`, must be.

        The rows that its ids had go in the same transaction.
        """
        with self._changing():
            known = self._store.rows_of(incoming.ids)
            incoming.refuse_misplaced(known, replacing=replacing)
            fitted = fitting(embedding, self.settings, model=model)
            new = new_items(fitted, self.settings, incoming.ids)
            replaced = list(known.values())
            with self._store.writing():
                fields = incoming.fields(known, self._store)
                if replaced:
                    self._store.remove(replaced)
                rows = self._store.insert(fields, packed(fitted, self.settings))
                state = self._store.state()
            new.items["row"] = rows
            new.items["label"] = [-1 if field.label is None else field.label for field in fields]
            with self._gate.alone():
                self._cache.append(new)
                self._cache.erase(np.array(replaced, dtype=np.int64))
                self._cache.version = state.version
                self._cache.save_if_long(state.version)
            self._builder.consider()

    def remove(self, ids: Sequence[str]) -> None:
        """Takes items out, all or none; durable when it returns."""
        wanted = checked_ids(ids)
        with self._changing():
            known = self._store.rows_of(wanted)
            refuse_unknown(wanted, known)
            rows = list(known.values())
            state = self._store.take_out(rows)
            with self._gate.alone():
                self._cache.erase(np.array(rows, dtype=np.int64))
                self._cache.version = state.version

    def make_room(self) -> bool:
        """Gives a full disk what was kept of it, for who must write something else to remove an item."""
        with self._changing():
            return self._store.make_room()

    def compact(self) -> None:
        """Gives the space of removed items back, in memory and on disk. Rows stay valid."""
        with self._changing():
            with self._store.writing(frees=True):
                self._store.new_generation()
                state = self._store.state()
            with self._gate.alone():
                self._cache.compacted(state)
            self._columns.forget()
            self._store.vacuum()

    def attach(self, name: str, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Keeps tensors and JSON under a name in the index, in place of what was there; durable like an add."""
        self.attach_all({name: (tensors, record)})

    def attach_all(self, parts: Mapping[str, tuple[Mapping[str, Tensor], Mapping[str, Any]]]) -> None:
        """Attaches several, all or none."""
        forms = {name: packed_attachment(name, *part) for name, part in parts.items()}
        with self._changing(), self._store.writing():
            for name, form in forms.items():
                self._store.attach(name, *form)

    def attached(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What `attach` kept under a name; None where there is nothing."""
        return self.attached_all([name]).get(name)

    def attached_all(self, names: Sequence[str]) -> dict[str, tuple[dict[str, Tensor], dict[str, Any]]]:
        """What is attached under each of several names, all of one moment; others are left out."""
        with self._reading():
            found = {name: self._store.attachment(name) for name in names}
        return {name: read_attachment(*part) for name, part in found.items() if part is not None}

    def attachments(self) -> list[str]:
        """Names under which something is attached, sorted."""
        with self._reading():
            return self._store.attachments()

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
        """The k best items for every query, best first; row −1 where there are fewer (up to 1,000 of these).

        where: {"label": [...], name of metadata: value or list of values}; items for which all hold are searched.
        score: "direction" (cosine) or "expected-distance"; the index's own by default.
        """
        score, queries = searching.prepared(embedding, k, self.settings, score=score, model=model)
        chosen = self._filter(where) if where else None
        if chosen is None:
            self._refresh()
        with self._gate.shared():
            positions = None if chosen is None else chosen.positions(self._cache)
            return searching.search(self._cache, queries, k, score=score, positions=positions)

    def stats(self) -> dict[str, Any]:
        """Counts, sizes, how it is searched and, measured now, the recall of that against looking at everything."""
        with self._reading():
            return statistics(self._store, self._cache)

    # -- closing -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Lets go of the files; a writer leaves a cache that opens quickly. Closing twice is allowed.

        What is being built in the background is given up.
        """
        self._builder.stop()
        with self._mutex:
            if not self._is_open:
                return
            self._is_open = False
            if self._lock is not None:
                with self._gate.alone():
                    self._cache.save(self._cache.version)
                self._lock.release()
            self._store.close()

    # -- inside --------------------------------------------------------------------------------------

    def _filter(self, where: Where) -> Filter:
        """What a filter asks for now; its columns are read while others search and change."""
        with self._reading():
            names, last = self._store.label_names(), self._cache.last_row
        return Filter.of(where, self._columns, label_names=names, last=last)

    def _live(self) -> Any:
        """(N,) of ITEM: all items that are there."""
        self._refresh()
        with self._gate.shared():
            return self._cache.items[self._cache.alive]

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """One moment of the database, with the cache brought to it."""
        with self._mutex:
            self._refuse_closed()
            with self._store.reading():
                state = self._store.state()
                if not self._cache.is_current(state):
                    with self._gate.alone():
                        self._cache.refresh(self._store, state)
                yield

    def _refresh(self) -> None:
        with self._reading():
            pass

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        with self._mutex:
            self._refuse_closed()
            self._refuse_reader(writable=self._lock is not None)
            self._refresh()  # it may have been cut off between the database and the cache
            yield
