"""Queries that belong to items, one each: captions and their pictures, sketches and their photographs.

Where the items have labels, a query shows its item's label, and the rest is as with labelled queries. Where they
have none, each item is a thing of its own: answers are made item by item, and right is the very item.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from doubtless.calibration.features import DEPTH
from doubtless.calibration.fit import Known
from doubtless.calibration.kept_searches import some_of
from doubtless.embedding import Embedding, holds_vectors
from doubtless.errors import InputError
from doubtless.gallery.content import import_file
from doubtless.index.base import Index
from doubtless.ingest.bulk import embedded
from doubtless.ingest.shards import MANIFEST
from doubtless.search.hits import without_itself

if TYPE_CHECKING:
    from doubtless.data import Progress
    from doubtless.gallery.base import OpenGallery


@dataclass(frozen=True, eq=False)
class Paired(Known):
    """Queries each of which belongs to one item: `label` holds its row, and only that item is right."""

    @property
    def right(self) -> Tensor:
        """Whether each hit is the query's item, (n, k) bool."""
        return self.hits.row == self.label.unsqueeze(1)


def labels_of_items(index: Index, queries: int, items: Sequence[str]) -> list[str] | None:
    """What the items show that queries belong to; None where no item of the index has a label."""
    if len(items) != queries:
        raise InputError(f"Every query belongs to one item: got {queries} queries and {len(items)} items.")
    rows = index.rows_of(list(dict.fromkeys(items)))
    if missing := [item for item in items if item not in rows]:
        raise InputError(f"The index has no item {missing[0]!r}, and {len(missing) - 1} more of those named.")
    if not bool((index.labels >= 0).any()):
        return None
    known = {item.id: item.label for item in index.items(sorted(rows.values()))}
    if bare := [item for item in items if known[item] is None]:
        raise InputError(
            f"Item {bare[0]!r} has no label and others have; label all items that queries belong to, or none."
        )
    return [str(known[item]) for item in items]


def paired_queries(
    index: Index, queries: Embedding, items: Sequence[str], *, most: int, seed: int = 0
) -> tuple[Paired, dict[str, int], Embedding]:
    """What queries found, and what they find without their item, in an index whose items have no labels."""
    chosen = some_of(torch.arange(len(queries)), most, seed)
    queries, rows = queries[chosen], index.rows_of([items[place] for place in chosen.tolist()])
    own = torch.tensor([rows[items[place]] for place in chosen.tolist()])
    if len(index) < 2:
        raise InputError("A gallery of one item cannot be calibrated: there is nothing to mistake it for.")
    hits = index.search(queries, min(DEPTH + 1, len(index)))
    known = Paired(hits.first(DEPTH), own, without_itself(hits, own))
    return known, {"queries": len(own), "without_positive": 0}, queries


def paired_with(
    gallery: OpenGallery,
    queries: Any,
    labels: object,
    items: Sequence[str] | str | Path,
    *,
    progress: Progress | None = None,
) -> tuple[Embedding, list[str] | None, None, list[str] | None]:
    """Queries, and either what they show or, where no item has a label, their items."""
    if queries is None or labels is not None:
        raise InputError("Items go with queries, each of which belongs to one, and take the place of labels.")
    if isinstance(queries, str | Path):
        embedding, ids = _queries_at(Path(queries), gallery)
        items = read_items(items, ids) if isinstance(items, str | Path) else items
    elif isinstance(items, str | Path):
        raise InputError("A CSV of items goes with queries that are read from a place; give a list of ids.")
    else:
        embedding = gallery.read(queries, progress=progress).embedding
    named = [str(item) for item in items]
    shown = labels_of_items(gallery.index, len(embedding), named)
    return embedding, shown, None, named if shown is None else None


def _queries_at(place: Path, gallery: OpenGallery) -> tuple[Embedding, list[str]]:
    """Vectors or pictures from where they are, as the gallery keeps such, and their ids."""
    if holds_vectors(place) or (place / MANIFEST).is_file():
        shards = list(import_file(place).shards)
    else:
        shards = list(embedded(gallery.asking_model, str(place)))
    parts = [shard.embedding for shard in shards if shard.embedding is not None]
    if not parts:
        raise InputError(f"{place} holds no queries.")
    return gallery.fitted(Embedding.cat(parts)), [id for shard in shards for id in shard.ids]


def read_items(path: str | Path, ids: Sequence[str]) -> list[str]:
    """The item that each query belongs to, from a CSV with the columns id and item, in the order of the ids."""
    try:
        with Path(path).open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as CSV: {error}.") from error
    if not lines or not {"id", "item"} <= set(lines[0]):
        raise InputError(
            f"{path} must have the columns id, of queries, and item, of the gallery, and at least one line."
        )
    item_of = {line["id"]: line["item"] for line in lines}
    if missing := [id for id in ids if id not in item_of]:
        raise InputError(f"{path} does not say to which item query {missing[0]!r} belongs.")
    return [item_of[id] for id in ids]
