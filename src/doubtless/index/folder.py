"""`Index`: a gallery of embeddings on disk that keeps their doubt, and is searched by cosine or expected distance.

A folder. A SQLite database in WAL mode is the truth; beside it lie vectors that can be mapped into memory, a cache
that is patched or made again from the database. What a call changed is durable when it returns. One process
writes, any number read; a reader sees what was there at one moment, and newer changes at its next search.

Making the folder of a new index: all of it or nothing, and never over something that is there.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError, StoreError
from doubtless.index import search as searching
from doubtless.index.base import Index, Rows, refuse_missing, whole_numbers
from doubtless.index.filters import Filter, Where
from doubtless.index.forms import fitting, new_items, packed, packed_attachment, read_attachment, unpacked
from doubtless.index.items import Incoming, checked_ids, refuse_unknown
from doubtless.index.lock import Gate, WriterLock
from doubtless.index.salvage import Salvage, open_damaged, salvage
from doubtless.index.search import statistics
from doubtless.index.settings import DATABASE, IndexScore, Kind, Settings, settings_of
from doubtless.index.sqlite import Fields, Store
from doubtless.index.vector_cache import VectorCache
from doubtless.search.hits import Hits


class FolderIndex(Index):
    """A folder of embeddings with their doubt.

    >>> animals = Embedding.gaussian(torch.eye(3), torch.full((3, 1), 0.1))
    >>> with FolderIndex.create("animals", family="gaussian", dim=3, variances=1) as index:     # doctest: +SKIP
    ...     index.add(animals, ["a", "b", "c"], labels=["cat", "dog", "cat"])
    ...     hits = index.search(animals[:1], 2)
    ...     index.items(hits.row[0])
    [Item(id='a', label='cat', path=None, metadata={}), Item(id='b', label='dog', path=None, metadata={})]

    Rows, as in `Hits.row` and `rows`, name one version of one item: they stay what they are while others are
    added, removed or compacted, and are never used again. An update gives an item a new row. They are positions
    in nothing: `labels`, `embedding()` and `rows` run over the items in the same order, one entry an item.

    An index may be used from several threads: searches run beside each other, a change waits for those that
    run. Embeddings are kept as float32. Samples (`empirical`) are kept as the von Mises-Fisher distribution
    behind them, in an index of family `vmf`.
    """

    def __init__(self, path: str | Path, *, writable: bool = False) -> None:
        self.path: Path = Path(path)
        self._mutex = threading.RLock()  # the database's connection, and who may change the cache
        self._gate = Gate()
        self._open = True
        self._lock = None
        with contextlib.ExitStack() as undo:  # what was opened is closed again if the rest fails
            if writable and (self.path / DATABASE).is_file():
                self._lock = WriterLock(self.path / "writer.lock")
                undo.callback(self._lock.release)
            self._store = Store(self.path, writable=writable)
            undo.callback(self._store.close)
            self._cache = VectorCache(self.path, self._store.settings, writable=writable)
            self._refresh()
            undo.pop_all()

    @classmethod
    def create(
        cls,
        path: str | Path,
        *,
        family: str,
        dim: int,
        variances: int | None = None,
        kind: Kind = "auto",
        model: str | None = None,
        score: IndexScore = "direction",
    ) -> FolderIndex:
        """A new, empty index, open for writing; a folder that has anything in it is left alone.

        variances: how many an item has, 1 or dim (the default) of Gaussians. kind: "flat" looks at every vector,
        "hnsw" and "ivf" are approximate, "auto" goes by size. model: a fingerprint of what makes the embeddings;
        those of another are refused. score: what a search ranks by unless it says otherwise.
        """
        settings = settings_of(
            family=family, dim=dim, variances=variances, kind=kind, model=model, score=score
        )
        create_folder(Path(path), settings)
        return cls(path, writable=True)

    @classmethod
    def open(cls, path: str | Path, *, writable: bool = False) -> FolderIndex:
        """Opens an index to search it or, with `writable`, to change it as well."""
        return cls(path, writable=writable)

    @classmethod
    def salvage(cls, path: str | Path, to: str | Path) -> Salvage:
        """Saves what can still be read of an index with a damaged database into a new index, and counts it."""
        connection, old = open_damaged(Path(path))
        with contextlib.closing(connection):
            create_folder(Path(to), replace(old, identity=secrets.token_hex(16)))
            with cls(to, writable=True) as index:
                return salvage(index, connection)

    # -- what it is ----------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
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

    # -- changing ------------------------------------------------------------------------------------

    def remove(self, ids: Sequence[str]) -> None:
        """Takes items out, all or none; durable when it returns."""
        wanted = checked_ids(ids)
        with self._changing():
            rows = list(self._known(wanted).values())
            with self._store.writing():
                self._store.remove(rows)
                state = self._store.state()
            with self._gate.alone():
                self._cache.erase(np.array(rows, dtype=np.int64))
                self._cache.version = state.version

    def compact(self) -> None:
        """Gives the space of removed items back, in memory and on disk. Rows stay valid."""
        with self._changing():
            with self._store.writing():
                self._store.new_generation()
                state = self._store.state()
            with self._gate.alone():
                self._cache.compacted(state)
            self._store.vacuum()

    def attach(self, name: str, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Keeps tensors and JSON under a name in the index, in place of what was there; durable like an add."""
        written = packed_attachment(name, tensors, record)
        with self._changing(), self._store.writing():
            self._store.attach(name, *written)

    def attached(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What `attach` kept under a name; None where there is nothing."""
        with self._reading():
            found = self._store.part(name)
        return None if found is None else read_attachment(*found)

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
        """The k best items for every query, best first; row −1 where there are fewer.

        where: {"label": [...], name of metadata: value or list of values}; items for which all hold are searched.
        score: "direction" (cosine) or "expected-distance"; the index's own by default.

        >>> index.search(queries, 10, where={"label": ["cat"], "year": 2024})     # doctest: +SKIP
        """
        score, queries = searching.asked(embedding, k, self.settings, score=score, model=model)
        chosen = None
        if where:
            with self._reading():
                chosen = Filter.of(where, self._store)
        else:
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
        """Lets go of the files; a writer leaves a cache that opens quickly. Closing twice is allowed."""
        with self._mutex:
            if not self._open:
                return
            self._open = False
            if self._lock is not None:
                with self._gate.alone():
                    self._cache.save(self._cache.version)
                self._lock.release()
            self._store.close()

    # -- inside --------------------------------------------------------------------------------------

    def _beside(self, rows: Sequence[int]) -> tuple[list[str], dict[int, Fields]]:
        with self._reading():
            return self._store.label_names(), self._store.fields(rows)

    def _write(self, embedding: Embedding, incoming: Incoming, *, model: str | None, replacing: bool) -> None:
        with self._changing():
            known = self._store.rows_of(incoming.ids)
            incoming.refuse_misplaced(known, replacing=replacing)
            self._replace(embedding, incoming, known, model)

    def _replace(
        self, embedding: Embedding, incoming: Incoming, known: Mapping[str, int], model: str | None
    ) -> None:
        """Stores a batch in new rows and takes the rows that its ids had out, in one transaction."""
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

    def _known(self, ids: Sequence[str]) -> dict[str, int]:
        known = self._store.rows_of(ids)
        refuse_unknown(ids, known)
        return known

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
            if self._lock is None:
                raise StoreError(f"The index {self.path} is open for reading; open it with writable=True.")
            self._refresh()  # it may have been cut off between the database and the cache
            yield

    def _refuse_closed(self) -> None:
        if not self._open:
            raise StoreError(f"The index {self.path} is closed; open it again.")


def create_folder(path: Path, settings: Settings) -> None:
    """Makes the index beside its place and moves it there: a cut-off creation leaves nothing at `path`."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} exists already; an index is only created where there is nothing.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    except OSError as error:
        raise StoreError(f"The index {path} cannot be created: {error.strerror or error}.") from error
    try:
        made.chmod(0o777 & ~_umask())  # mkdtemp makes private folders; an index is to be shared
        Store.create(made, settings)
        os.replace(made, path)
    except OSError as error:
        raise StoreError(f"The index {path} cannot be created: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
