"""A backend as another package would write one: `memory:NAME`, gone with the process."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import StoreError
from doubtless.index.base import Index
from doubtless.index.construction import exists_already
from doubtless.index.forms import (
    Floats,
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
from doubtless.index.settings import Settings
from doubtless.search.hits import Hits


@dataclass
class Store:
    """What outlives an open index."""

    settings: Settings
    stored: dict[int, tuple[Fields, Floats]] = field(default_factory=dict)  # rising rows
    next_row: int = 0
    label_names: list[str] = field(default_factory=list)
    attachments: dict[str, tuple[bytes, str]] = field(default_factory=dict)

    def fields(self, rows: Iterable[int]) -> dict[int, Fields]:
        return {row: self.stored[row][0] for row in rows if row in self.stored}

    def codes(self, names: Sequence[str | None]) -> list[int | None]:
        new = [name for name in dict.fromkeys(names) if name is not None and name not in self.label_names]
        self.label_names += new
        return [None if name is None else self.label_names.index(name) for name in names]


class MemoryIndex(Index):
    """A dictionary."""

    stores: ClassVar[dict[str, Store]] = {}
    _mutex: ClassVar = threading.RLock()

    def __init__(self, name: str, *, writable: bool) -> None:
        self.path, self._store, self._writable = name, self.stores[name], writable

    @classmethod
    def open(cls, name: str | Path, *, writable: bool = False) -> Self:
        if name not in cls.stores:
            raise StoreError(f"{name} is no index: there is no such name in memory.")
        return cls(str(name), writable=writable)

    @classmethod
    def create_as(cls, name: str | Path, settings: Settings) -> Self:
        if name in cls.stores:
            raise exists_already(name)
        cls.stores[str(name)] = Store(settings)
        return cls(str(name), writable=True)

    @classmethod
    def drop(cls, name: str | Path) -> None:
        del cls.stores[str(name)]

    @property
    def settings(self) -> Settings:
        return self._store.settings

    @property
    def label_names(self) -> list[str]:
        return list(self._store.label_names)

    @property
    def rows(self) -> Tensor:
        self._refuse_closed()
        return torch.tensor(list(self._store.stored), dtype=torch.long)

    @property
    def labels(self) -> Tensor:
        codes = [fields.label for fields, _ in self._store.stored.values()]
        return torch.tensor([-1 if code is None else code for code in codes], dtype=torch.long)

    def described(self, rows: Sequence[int]) -> tuple[list[str], dict[int, Fields]]:
        return self.label_names, self._store.fields(rows)

    def embedding(self, rows: Rows | None = None) -> Embedding:
        wanted = whole_numbers(self.rows if rows is None else rows)
        refuse_missing(wanted, self._store.stored)
        empty = np.zeros((0, self.settings.width), np.float32)
        return unpacked(np.vstack([empty, *(self._store.stored[row][1] for row in wanted)]), self.settings)

    def write(self, embedding: Embedding, incoming: Incoming, *, model: str | None, replacing: bool) -> None:
        with self._mutex:
            known = self._known(incoming.ids)
            incoming.refuse_misplaced(known, replacing=replacing)
            fitted = fitting(embedding, self.settings, model=model)
            new_items(fitted, self.settings, incoming.ids)  # refuses what could not be found
            fields = incoming.fields(known, self._store)
            new = zip(fields, packed(fitted, self.settings), strict=True)
            kept = {row: item for row, item in self._store.stored.items() if row not in known.values()}
            self._store.stored = kept | dict(enumerate(new, self._store.next_row))
            self._store.next_row += len(fields)

    def remove(self, ids: Sequence[str]) -> None:
        wanted = checked_ids(ids)
        with self._mutex:
            known = self._known(wanted)
            refuse_unknown(wanted, known)
            gone = set(known.values())
            self._store.stored = {row: item for row, item in self._store.stored.items() if row not in gone}

    def compact(self) -> None:
        self._refuse_reader(writable=self._writable)

    def attach(self, name: str, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        self._refuse_reader(writable=self._writable)
        self._store.attachments[name] = packed_attachment(name, tensors, record)

    def attached(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        self._refuse_closed()
        attachment = self._store.attachments.get(name)
        return None if attachment is None else read_attachment(*attachment)

    def attachments(self) -> list[str]:
        return sorted(self._store.attachments)

    def search(self, embedding: Embedding, k: int, **options: Any) -> Hits:
        self._refuse_closed()
        with self._mutex:  # of one moment
            return super().search(embedding, k, **options)

    def _known(self, ids: Sequence[str]) -> dict[str, int]:
        self._refuse_reader(writable=self._writable)
        return self.rows_of(ids)
