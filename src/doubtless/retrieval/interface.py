"""`AnyIndex`: what every index can do, wherever it keeps its items: in a folder (`Index`) or in Milvus.

Programs take an `AnyIndex`; `opening.open_index` finds the right one for a name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.retrieval.filters import Where
from doubtless.retrieval.hits import Hits
from doubtless.retrieval.incoming import Incoming, item_of
from doubtless.retrieval.rows import Rows, refuse_missing, whole_numbers
from doubtless.retrieval.schema import IndexScore, Settings
from doubtless.retrieval.store import Fields, Item


class AnyIndex(ABC):
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
    def save_part(self, name: str, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None: ...

    @abstractmethod
    def load_part(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None: ...

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
