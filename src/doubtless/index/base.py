"""`Index`: what every index can do, wherever it keeps its items. A backend is one subclass of it.

Opening, creating and dropping an index (`NamedIndex`), its rows, labels and descriptions, writing and attaching are
a backend's own; all else has a default that is built of these, `search` an exact one. What a backend can do faster
or more safely it overrides.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.index import search as searching
from doubtless.index.construction import UNFINISHED
from doubtless.index.filters import Where, accepted_filter, admits, label_codes, mentions
from doubtless.index.items import Fields, Incoming, Item, Rows, item_of, refuse_missing, whole_numbers
from doubtless.index.moments import CHUNK, Moments
from doubtless.index.named import NamedIndex
from doubtless.index.settings import IndexScore, Settings
from doubtless.search.hits import Hits


class Index(NamedIndex):
    """A gallery of embeddings that keeps their doubt.

    Rows, as in `Hits.row` and `rows`, name one version of one item: they stay what they are while others are
    added, removed or compacted, and are never used again. An update gives an item a new row. They are positions
    in nothing: `labels`, `embedding()` and `rows` run over the items in the same order, one entry per item.
    """

    # -- what it is ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def settings(self) -> Settings:
        """What was decided when it was created."""

    @property
    def family(self) -> str:
        """Of its embeddings."""
        return self.settings.family

    @property
    def dim(self) -> int:
        """Of its embeddings."""
        return self.settings.dim

    @property
    def model(self) -> str | None:
        """Fingerprint of the model whose embeddings these are."""
        return self.settings.model

    def __len__(self) -> int:
        return len(self.rows)

    @property
    @abstractmethod
    def label_names(self) -> list[str]:
        """Code → name, in the order in which they came."""

    @property
    @abstractmethod
    def rows(self) -> Tensor:
        """(N,) rows of all items, rising."""

    @property
    @abstractmethod
    def labels(self) -> Tensor:
        """(N,) label codes of all items in the order of `rows`, −1 without a label."""

    @property
    def label_count(self) -> int:
        """How many labels items carry now; names of labels that no item carries any more stay known."""
        codes = self.labels.unique()
        return int((codes >= 0).sum())

    @abstractmethod
    def described(self, rows: Sequence[int]) -> tuple[list[str], dict[int, Fields]]:
        """Names of labels, and what is stored beside the numbers at those of the rows that are there."""

    def items(self, rows: Rows) -> list[Item]:
        """Id, label, path and metadata at rows, in their order."""
        wanted = whole_numbers(rows)
        names, fields = self.described(wanted)
        refuse_missing(wanted, fields)
        return [item_of(fields[row], names) for row in wanted]

    def ids(self, rows: Rows | None = None) -> list[str]:
        """Ids at rows, or of all items in the order of `rows`."""
        return [item.id for item in self.items(self.rows if rows is None else rows)]

    def rows_of(self, ids: Sequence[str]) -> dict[str, int]:
        """Id → row, of those that are there."""
        _, fields = self.described(self.rows.tolist())
        wanted = set(ids)
        return {field.id: row for row, field in fields.items() if field.id in wanted}

    def rows_where(self, where: Where) -> Tensor:
        """Rows (m,) of the items for which a filter holds, rising; of all items where it is empty."""
        rows, accepted = self.rows, accepted_filter(where)
        if "label" in where:
            codes = label_codes(accepted["label"], self.label_names)
            rows = rows[torch.isin(self.labels, torch.tensor(sorted(codes), dtype=self.labels.dtype))]
        if not set(where) - {"label"}:
            return rows
        parts = [some for some in rows.split(CHUNK) if len(some)]
        held = [admits(where, item) for some in parts for item in self.items(some)]
        return rows[torch.tensor(held, dtype=torch.bool)]

    def rows_with(self, text: str) -> Tensor:
        """Rows (m,), rising, of the items whose id, label or values of metadata have a text in them."""
        parts = [some for some in self.rows.split(CHUNK) if len(some)]
        found = [
            int(row)
            for some in parts
            for row, item in zip(some, self.items(some), strict=True)
            if mentions(text, item)
        ]
        return torch.tensor(found, dtype=torch.long)

    @abstractmethod
    def embedding(self, rows: Rows | None = None) -> Embedding:
        """The stored distributions at rows, in their order, or of all items in the order of `rows`."""

    def holds(self) -> dict[str, Any]:
        """What there is and in which form, in plain values; nothing is measured."""
        return {
            "items": len(self),
            "labels": self.label_count,
            "family": self.settings.family,
            "dim": self.settings.dim,
            "score": self.settings.score,
            "model": self.settings.model,
        }

    def directions(self, rows: Tensor) -> Tensor:
        """Unit vectors (m, D) of the items at rows (m,), which may repeat; 0 of one that was removed meanwhile."""
        some, place = rows.unique(return_inverse=True)
        there = torch.isin(some, self.rows)
        found = torch.zeros(len(some), self.dim)
        if bool(there.any()):
            found[there] = self.embedding(some[there]).direction.float()
        return found[place]

    @property
    def keeps_moments(self) -> bool:
        """Whether `moments` follows every change at the cost of that change; else it looks at every item."""
        return False

    def moments(self) -> Moments:
        """Σ x xᵀ over the directions of all items."""
        pieces = (self.embedding(rows).direction for rows in self.rows.split(CHUNK) if len(rows))
        return Moments.none(self.dim).more(pieces)

    @property
    def version(self) -> tuple[int, ...]:
        """Another one after every change of items; what is attached changes none."""
        rows = self.rows  # they are never used again, so number and last one tell all states apart
        return len(rows), int(rows[-1]) if len(rows) else -1

    @property
    def has_vectors(self) -> bool:
        """Whether the vectors of items can be looked at; where not, `embedding` and `directions` say so."""
        return True

    @property
    def knows_all(self) -> bool:
        """Whether `rows` and `labels` are those of all items, and not of the ones that were met."""
        return True

    def look_around(self, queries: Embedding | None) -> None:  # most know all of their items
        """Before a calibration with queries, or None for its own items: meets what lies around them."""

    # -- changing ------------------------------------------------------------------------------------

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

        metadata are JSON objects, one per item. model: the fingerprint of what made the embeddings.
        """
        incoming = Incoming.of(len(embedding), ids, labels, paths, metadata)
        self.write(embedding, incoming, model=model, replacing=False)

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
        self.write(embedding, incoming, model=model, replacing=True)

    @abstractmethod
    def write(self, embedding: Embedding, incoming: Incoming, *, model: str | None, replacing: bool) -> None:
        """Stores a batch in new rows: of ids that must not be there or, `replacing`, must be.

        `Incoming.refuse_misplaced`, `forms.fitting`, `forms.new_items` and `Incoming.fields` are its steps.
        """

    @abstractmethod
    def remove(self, ids: Sequence[str]) -> None:
        """Takes items out, all or none; durable when it returns."""

    def make_room(self) -> bool:
        """Gives a full disk what was kept of it for removals; whether anything was. Removals do so themselves."""
        return False

    def compact(self) -> None:  # most backends have nothing to do
        """Gives the space of removed items back. Rows stay valid."""

    def attach_all(self, parts: Mapping[str, tuple[Mapping[str, Tensor], Mapping[str, Any]]]) -> None:
        """Attaches several, the last one last; all or none where a backend can."""
        for name, (tensors, record) in parts.items():
            self.attach(name, tensors, record)

    def attached_all(self, names: Sequence[str]) -> dict[str, tuple[dict[str, Tensor], dict[str, Any]]]:
        """What is attached under each of several names, of one moment where a backend can; others are left out."""
        found = {name: self.attached(name) for name in names}
        return {name: part for name, part in found.items() if part is not None}

    @abstractmethod
    def attachments(self) -> list[str]:
        """Names under which something is attached, sorted."""

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

        >>> from doubtless.index.folder import FolderIndex
        >>> with FolderIndex.create("animals", family="point", dim=2) as index:
        ...     animals = Embedding.point(torch.eye(2))
        ...     index.add(animals, ["a", "b"], labels=["cat", "dog"], metadata=[{"year": 2023}, {"year": 2024}])
        ...     hits = index.search(animals[:1], 1, where={"label": ["cat", "dog"], "year": 2024})
        ...     index.items(hits.row[0])[0].id
        'b'
        """
        score, queries = searching.prepared(embedding, k, self.settings, score=score, model=model)
        rows, labels = self.rows, self.labels
        if where:
            chosen = torch.isin(rows, self.rows_where(where))
            rows, labels = rows[chosen], labels[chosen]
        candidates = searching.Candidates.of(
            self.embedding(rows), rows, labels, self.settings, has_labels=bool(self.label_names)
        )
        return searching.search_all(candidates, queries, k, score=score)

    def stats(self) -> dict[str, Any]:
        """Counts, sizes and how it is searched; None for what a backend does not know."""
        return {
            **self.settings.public_record(),
            "items": len(self),
            "labels": self.label_count,
            "removed": None,
            "attachments": [name for name in self.attachments() if name != UNFINISHED],
            "bytes": None,
            "searched_by": "flat",
            "recall@10": 1.0,
        }

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.path)!r}, {self.family}, dim={self.dim})"
