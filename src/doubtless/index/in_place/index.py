"""`StoreIndex`: somebody's own store as an index that is read and never written.

What was calibrated, and which items were met, lies in a folder beside it. Items are known when a search or
`get_to_know` has met them: a store need not be able to say what it holds. Calibration looks around with its queries
first, so what it is fitted on are the items near these.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError, StoreError
from doubtless.index import search as searching
from doubtless.index.base import Index
from doubtless.index.filters import Where
from doubtless.index.folder import FolderIndex
from doubtless.index.in_place.store import (
    Metric,
    Store,
    check_metric,
    fetched,
    found_by,
    has_fetch,
)
from doubtless.index.items import Fields, Incoming, Rows, refuse_missing, whole_numbers
from doubtless.index.settings import IndexScore, Settings
from doubtless.search.hits import Hits

KNOWN = "known items"
"""The attachment with the items that were met."""
AROUND = 200
"""Items that are met around every query of a calibration."""
TOGETHER = 1_000
"""Queries, or ids, given to a store with one call."""
FRESH = 60.0
"""Seconds for which a fetched vector is not fetched again: a calibration looks at each many times."""
WITHOUT_FETCH = (
    "The store has no fetch: how items of one label vary, and how new a query is, were not looked at; "
    "probabilities and promise come from scores alone."
)


class StoreIndex(Index):
    """An index over a store; what there is nobody can change here."""

    def __init__(self, store: Store, beside: FolderIndex, *, metric: Metric = "cosine") -> None:
        check_metric(metric)
        if not isinstance(store, Store):
            raise InputError(f"A store has a method search(vectors, k, where), got a {type(store).__name__}.")
        self.path: Path = beside.path
        self._store, self._beside, self._metric = store, beside, metric
        self._mutex = threading.RLock()
        self._rows: dict[tuple[str, str | None], int] = {}  # an item with another label is another row
        self._met: list[tuple[str, int]] = []  # row → id, code
        self._codes: dict[str, int] = {}
        self._known: list[int] = []
        self._vectors: dict[int, np.ndarray[Any, Any]] = {}
        self._vectors_from = 0.0
        self._remember()

    @classmethod
    def over(
        cls,
        store: Store,
        folder: str | Path,
        *,
        dim: int | None = None,
        metric: Metric = "cosine",
        writable: bool = True,
    ) -> Self:
        """An index over a store whose calibration lies in a folder, which is made where there is none."""
        if not FolderIndex.exists(folder):
            if dim is None or not writable:
                raise InputError(
                    f"There is nothing in {folder} yet; say how long the store's vectors are (dim), and open it "
                    "writable."
                )
            FolderIndex.create(folder, family="point", dim=dim).close()
        beside = FolderIndex.open(folder, writable=writable)
        try:
            if len(beside):
                raise InputError(f"{folder} holds items of its own; give the store another folder.")
            if dim not in (None, beside.dim):
                raise InputError(f"{folder} belongs to a store of dimension {beside.dim}, got {dim}.")
            return cls(store, beside, metric=metric)
        except BaseException:
            beside.close()
            raise

    @classmethod
    def open(cls, name: str | Path, *, writable: bool = False) -> Self:
        """No name says where somebody's object is."""
        raise InputError(f"{name} is a store's; open it with Gallery.over(store, {str(name)!r}).")

    @classmethod
    def create_as(cls, name: str | Path, settings: Settings) -> Self:
        """As `open`."""
        return cls.open(name)

    @classmethod
    def drop(cls, name: str | Path) -> None:
        """Nothing of a store is dropped."""
        raise InputError(f"{name} is a store's; it is not dropped.")

    # -- what it is ----------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """Points, ranked by cosine."""
        return self._beside.settings

    @property
    def has_vectors(self) -> bool:
        """Whether the store gives vectors back."""
        return has_fetch(self._store)

    @property
    def knows_all(self) -> bool:
        """It knows what it has met."""
        return False

    @property
    def label_names(self) -> list[str]:
        """Code → name, in the order in which they were met."""
        self._refuse_closed()
        return list(self._codes)

    @property
    def rows(self) -> Tensor:
        """(N,) rows of the known items, rising."""
        self._refuse_closed()
        return torch.tensor(self._known, dtype=torch.long)

    @property
    def labels(self) -> Tensor:
        """(N,) label codes of the known items."""
        return torch.tensor([self._met[row][1] for row in self._known], dtype=torch.long)

    def described(self, rows: Sequence[int]) -> tuple[list[str], dict[int, Fields]]:
        """Ids and labels of all rows that a search has given."""
        names = self.label_names
        there = {row: self._met[row] for row in rows if 0 <= row < len(self._met)}
        return names, {
            row: Fields(name, None if code < 0 else code, None, None) for row, (name, code) in there.items()
        }

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Id → row, of those that were met; of one that was met with several labels the last."""
        last = {name: row for row, (name, _) in enumerate(self._met)}
        return {name: last[name] for name in ids if name in last}

    def embedding(self, rows: Rows | None = None) -> Embedding:
        """Vectors of the store at rows."""
        wanted = whole_numbers(self.rows if rows is None else rows)
        refuse_missing(wanted, range(len(self._met)))
        vectors = self._fetched(wanted)
        if missing := [
            row for row, vector in zip(wanted, vectors, strict=True) if not np.isfinite(vector).all()
        ]:
            raise StoreError(f"The store has no vector of {self._met[missing[0]][0]!r} any more.")
        return Embedding.point(torch.from_numpy(vectors))

    def directions(self, rows: Tensor) -> Tensor:
        """Unit vectors (m, D) of the items at rows (m,); 0 of one that is gone."""
        vectors = torch.from_numpy(np.nan_to_num(self._fetched(rows.tolist())))
        return torch.nn.functional.normalize(vectors, dim=1)

    def holds(self) -> dict[str, Any]:
        """What there is, what is known of it, and what cannot be looked at."""
        try:
            items: int | None = len(self._store)  # type: ignore[arg-type]
        except TypeError:
            items = None
        in_place = {
            "known": len(self),
            "metric": self._metric,
            "fetch": self.has_vectors,
            "without": None if self.has_vectors else WITHOUT_FETCH,
        }
        return {**super().holds(), "items": items, "in_place": in_place}

    # -- meeting items -------------------------------------------------------------------------------

    def look_around(self, queries: Embedding | None) -> None:
        """Meets the items near some queries; without any, those that are known must do."""
        if queries is None:
            if not self._known or not self.has_vectors:
                raise InputError(
                    "A store is calibrated with labelled queries, or on items of its own that it can fetch: give "
                    "queries and labels, or tell it ids with get_to_know."
                )
            return
        with self._mutex:
            known = set(self._known)
            for some in torch.arange(len(queries)).split(TOGETHER):
                hits = self.search(queries[some], AROUND)
                known |= set(hits.row[hits.found].tolist())
            self._keep(known)

    def get_to_know(self, ids: Sequence[str]) -> None:
        """Makes items known by their ids, some or all of a store that has `fetch`."""
        if not self.has_vectors:
            raise InputError("The store has no fetch, so it cannot be asked for items by their ids.")
        names = [str(name) for name in ids]
        with self._mutex:
            known = set(self._known)
            for start in range(0, len(names), TOGETHER):
                some = names[start : start + TOGETHER]
                vectors, labels = fetched(self._store, some, dim=self.dim)
                there = np.isfinite(vectors).all(axis=1)
                if not there.all():
                    raise InputError(f"The store has no vector of {some[int((~there).argmax())]!r}.")
                known |= {self._row(name, label) for name, label in zip(some, labels, strict=True)}
            self._keep(known)

    # -- changing ------------------------------------------------------------------------------------

    def write(self, embedding: Embedding, incoming: Incoming, *, model: str | None, replacing: bool) -> None:
        """Refused."""
        self._refuse_change()

    def remove(self, ids: Sequence[str]) -> None:
        """Refused."""
        self._refuse_change()

    def _refuse_change(self) -> NoReturn:
        raise InputError(
            f"The items of {self.path} are in a store of your own, which is only read here; change them there."
        )

    def attach(self, name: str, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Keeps tensors and JSON under a name in the folder beside the store."""
        self._beside.attach(name, tensors, record)

    def attach_all(self, parts: Mapping[str, tuple[Mapping[str, Tensor], Mapping[str, Any]]]) -> None:
        """Several, all or none."""
        self._beside.attach_all(parts)

    def attached(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What `attach` kept under a name."""
        return self._beside.attached(name)

    def attached_all(self, names: Sequence[str]) -> dict[str, tuple[dict[str, Tensor], dict[str, Any]]]:
        """Several, of one moment."""
        return self._beside.attached_all(names)

    def attachments(self) -> list[str]:
        """Names under which something is attached, sorted."""
        return self._beside.attachments()

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
        """The k best items of the store for every query, by the store's own search. As `Index.search`."""
        self._refuse_closed()
        _, queries = searching.prepared(embedding, k, self.settings, score=score, model=model)
        found = found_by(self._store, queries.vectors, k, where, metric=self._metric)
        row = torch.full((len(embedding), k), -1, dtype=torch.long)
        label = torch.full((len(embedding), k), -1, dtype=torch.long)
        with self._mutex:
            for place, (ids, labels) in enumerate(zip(found.ids, found.labels, strict=True)):
                rows = [self._row(name, shown) for name, shown in zip(ids, labels, strict=True)]
                row[place, : len(rows)] = torch.tensor(rows, dtype=torch.long)
                label[place, : len(rows)] = torch.tensor(
                    [self._met[one][1] for one in rows], dtype=torch.long
                )
        cosine = torch.from_numpy(found.cosine)
        return Hits(row, cosine, 2 - 2 * cosine, label=label if self._codes else None)

    def stats(self) -> dict[str, Any]:
        """Of what is known; how the store searches nobody says."""
        return {**super().stats(), **self.holds(), "searched_by": "the store", "recall@10": None}

    def close(self) -> None:
        """Lets go of the folder; the store stays open."""
        super().close()
        self._beside.close()

    # -- inside --------------------------------------------------------------------------------------

    def _row(self, name: str, label: str | None) -> int:
        row = self._rows.get((name, label))
        if row is None:
            row = self._rows[name, label] = len(self._met)
            code = -1 if label is None else self._codes.setdefault(label, len(self._codes))
            self._met.append((name, code))
        return row

    def _keep(self, known: set[int]) -> None:
        """Known from now on, here and for whoever opens the folder."""
        rows = sorted(known)
        if rows == self._known:
            return
        record = {
            "ids": [self._met[row][0] for row in rows],
            "codes": [self._met[row][1] for row in rows],
            "labels": list(self._codes),
        }
        self._beside.attach(KNOWN, {"row": torch.tensor(rows)}, record)
        self._known = rows

    def _remember(self) -> None:
        kept = self._beside.attached(KNOWN)
        if kept is None:
            return
        tensors, record = kept
        self._codes = {name: code for code, name in enumerate(record["labels"])}
        self._known = tensors["row"].tolist()
        # Rows between, of items that were met by chance, stay empty: no row is used again for another item.
        self._met = [("", -1)] * (self._known[-1] + 1 if self._known else 0)
        for row, name, code in zip(self._known, record["ids"], record["codes"], strict=True):
            self._met[row] = (name, code)
            self._rows[name, None if code < 0 else record["labels"][code]] = row

    def _fetched(self, rows: Sequence[int]) -> np.ndarray[Any, Any]:
        """Vectors (m, D), NaN where there is nothing."""
        if not self.has_vectors:
            raise InputError("The store has no fetch, so vectors of its items cannot be looked at.")
        with self._mutex:
            if time.monotonic() - self._vectors_from > FRESH:
                self._vectors, self._vectors_from = {}, time.monotonic()
            new = [
                row for row in dict.fromkeys(rows) if row not in self._vectors and 0 <= row < len(self._met)
            ]
            for start in range(0, len(new), TOGETHER):
                some = new[start : start + TOGETHER]
                vectors, _ = fetched(self._store, [self._met[row][0] for row in some], dim=self.dim)
                self._vectors |= dict(zip(some, vectors, strict=True))
            nothing = np.full(self.dim, np.nan, np.float32)
            found = [self._vectors.get(row, nothing) for row in rows]
        return np.stack(found) if found else np.zeros((0, self.dim), np.float32)
