"""`Index`: what every index can do, wherever it keeps its items, and the one function that opens any of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.index.filters import Where
from doubtless.index.items import Incoming, item_of
from doubtless.index.milvus.connection import Address, is_milvus
from doubtless.index.settings import IndexScore, Kind, Settings
from doubtless.index.sqlite import Fields, Item
from doubtless.search.hits import Hits


class Index(ABC):
    """A gallery of embeddings that keeps their doubt; see `Index` for what the other calls take and give."""

    path: Path | str
    """Folder, or address in Milvus."""

    @property
    @abstractmethod
    def settings(self) -> Settings: ...

    @property
    def family(self) -> str:
        return self.settings.family

    @property
    def dim(self) -> int:
        return self.settings.dim

    @property
    def model(self) -> str | None:
        """Fingerprint of the model whose embeddings these are."""
        return self.settings.model

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def label_names(self) -> list[str]: ...

    @property
    @abstractmethod
    def rows(self) -> Tensor: ...

    @property
    @abstractmethod
    def labels(self) -> Tensor: ...

    def items(self, rows: Rows) -> list[Item]:
        """Id, label, path and metadata at rows, in their order."""
        wanted = whole_numbers(rows)
        names, found = self._beside(wanted)
        refuse_missing(wanted, found)
        return [
            item_of(field.id, None if field.label is None else names[field.label], field.path, field.metadata)
            for field in (found[row] for row in wanted)
        ]

    @abstractmethod
    def _beside(self, rows: Sequence[int]) -> tuple[list[str], dict[int, Fields]]:
        """Names of labels, and what is stored beside the numbers at those of the rows that are there."""

    def ids(self, rows: Rows | None = None) -> list[str]:
        """Ids at rows, or of all items in the order of `rows`."""
        return [item.id for item in self.items(self.rows if rows is None else rows)]

    @abstractmethod
    def rows_of(self, ids: Sequence[str]) -> dict[str, int]: ...

    @abstractmethod
    def embedding(self, rows: Rows | None = None) -> Embedding: ...

    def add(
        self,
        embedding: Embedding,
        ids: Sequence[str],
        *,
        labels: Sequence[str | None] | None = None,
        paths: Sequence[str | Path | None] | None = None,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
        model: str | None = None,
    ) -> None:
        """Stores new items, all or none; durable when it returns.

        metadata are JSON objects an item. model: the fingerprint of what made the embeddings.
        """
        incoming = Incoming.of(len(embedding), ids, labels, paths, metadata)
        self._write(embedding, incoming, model=model, replacing=False)

    def update(
        self,
        embedding: Embedding,
        ids: Sequence[str],
        *,
        labels: Sequence[str | None] | None = None,
        paths: Sequence[str | Path | None] | None = None,
        metadata: Sequence[Mapping[str, Any] | None] | None = None,
        model: str | None = None,
    ) -> None:
        """Gives stored items new embeddings and, where given, labels, paths and metadata; the rest stays."""
        incoming = Incoming.of(len(embedding), ids, labels, paths, metadata)
        self._write(embedding, incoming, model=model, replacing=True)

    @abstractmethod
    def _write(self, embedding: Embedding, incoming: Incoming, *, model: str | None, replacing: bool) -> None:
        """Stores a batch in new rows: of ids that must not be there or, `replacing`, must be."""

    @abstractmethod
    def remove(self, ids: Sequence[str]) -> None: ...

    @abstractmethod
    def compact(self) -> None: ...

    @abstractmethod
    def attach(self, name: str, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def attached(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None: ...

    @abstractmethod
    def search(
        self,
        embedding: Embedding,
        k: int,
        *,
        where: Where | None = None,
        score: IndexScore | None = None,
        model: str | None = None,
    ) -> Hits: ...

    @abstractmethod
    def stats(self) -> dict[str, Any]: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {self.family}, dim={self.dim})"


def open_index(name: str | Path, *, writable: bool = False) -> Index:
    """Opens an index to search it or, with `writable`, to change it as well.

    >>> open_index("gallery")                                                   # doctest: +SKIP
    >>> open_index("milvus:gallery.db", writable=True)                          # doctest: +SKIP
    >>> open_index("milvus:http://localhost:19530")                             # doctest: +SKIP
    """
    if is_milvus(name):
        from doubtless.index.milvus.index import MilvusIndex

        return MilvusIndex.open(str(name), writable=writable)
    from doubtless.index.folder import FolderIndex

    return FolderIndex.open(name, writable=writable)


def folder_beside(name: str | Path) -> Path:
    """Where lists that belong to an index lie: in its folder; for Milvus in NAME.lists, here or beside its file."""
    if not is_milvus(name):
        return Path(name)
    folder = Address.parse(str(name)).beside("lists")
    return folder.with_name(folder.name.removeprefix("."))


def create_index_at(
    name: str | Path,
    *,
    family: str,
    dim: int,
    variances: int | None = None,
    kind: Kind = "auto",
    model: str | None = None,
    score: IndexScore = "direction",
) -> Index:
    """A new, empty index, open for writing, where there is nothing; arguments as of `FolderIndex.create`."""
    from doubtless.index.folder import FolderIndex

    make = FolderIndex.create
    if is_milvus(name):
        from doubtless.index.milvus.index import MilvusIndex

        make = MilvusIndex.create  # type: ignore[assignment]
    return make(name, family=family, dim=dim, variances=variances, kind=kind, model=model, score=score)


Rows = Tensor | Sequence[int]


def whole_numbers(rows: Rows) -> list[int]:
    values = rows.flatten().tolist() if torch.is_tensor(rows) else list(rows)
    if not all(isinstance(row, int | np.integer) for row in values):
        raise InputError(f"rows are whole numbers, as in Hits.row, got {values[:3]}.")
    return [int(row) for row in values]


def refuse_missing(wanted: Sequence[int], found: Iterable[int]) -> None:
    there = set(found)
    gone = [row for row in wanted if row not in there]
    if gone:
        raise InputError(
            f"row {gone[0]} is not in the index (any more): it was removed or updated after the search that found "
            "it, or it stands for no item (−1)."
        )
