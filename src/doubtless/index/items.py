"""What an index knows of its items beside their embeddings: ids, labels, paths and metadata.

What comes in, a batch at a time, is looked at before anything is stored.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from doubtless.errors import InputError, listed

Rows = Tensor | Sequence[int]

UNQUOTABLE = frozenset('"\\\0')
"""Not in names of metadata: SQLite's paths into JSON cannot name them."""


MOST_METADATA = 65_535
"""Bytes of one item's metadata as JSON: as much as every backend can keep."""


@dataclass(frozen=True)
class Item:
    """What an index knows of an item beside its embedding."""

    id: str
    label: str | None
    path: str | None
    metadata: dict[str, Any]


class Fields(NamedTuple):
    """What is written of an item beside its numbers."""

    id: str
    label: int | None
    path: str | None
    metadata: str | None


class FieldStore(Protocol):
    """What an index stores beside its numbers."""

    def fields(self, rows: Iterable[int]) -> dict[int, Fields]:
        """What is written at those of the rows that are there."""

    def codes(self, names: Sequence[str | None]) -> list[int | None]:
        """Codes of labels; new ones are kept."""


@dataclass(frozen=True)
class Incoming:
    """One batch; None for what was not given at all."""

    ids: list[str]
    labels: list[str | None] | None
    paths: list[str | None] | None
    metadata: list[str | None] | None  # JSON

    @classmethod
    def of(
        cls,
        count: int,
        ids: Sequence[str],
        labels: Sequence[str | None] | None,
        paths: Sequence[Any] | None,
        metadata: Sequence[Mapping[str, Any] | None] | None,
    ) -> Incoming:
        """Checks what was given for `count` items."""
        given = {"ids": ids, "labels": labels, "paths": paths, "metadata": metadata}
        for name, values in given.items():
            if values is not None and len(values) != count:
                raise InputError(
                    f"{name.capitalize()} must have one entry per item, got {len(values)} for {count} items."
                )
        names = checked_ids(ids)
        return cls(
            names,
            None if labels is None else [_text("label", value, names[i]) for i, value in enumerate(labels)],
            None if paths is None else [None if path is None else str(path) for path in paths],
            None if metadata is None else [_json(value, names[i]) for i, value in enumerate(metadata)],
        )

    def __len__(self) -> int:
        return len(self.ids)

    def refuse_misplaced(self, known: Mapping[str, int], *, replacing: bool) -> None:
        """Ids that are to be added and are there, or are to be updated and are not; known: those that are."""
        if replacing:
            refuse_unknown(self.ids, known)
        elif known:
            raise InputError(
                f"The index has items {listed(sorted(known))} already; remove or update them, or name the new "
                "ones otherwise."
            )

    def fields(self, known: Mapping[str, int], store: FieldStore) -> list[Fields]:
        """What is written beside the numbers; where nothing was given, what the row that is replaced had."""
        before = store.fields(known.values())
        old = [before.get(known.get(name, -1), Fields(name, None, None, None)) for name in self.ids]
        labels = [field.label for field in old] if self.labels is None else store.codes(self.labels)
        paths = [field.path for field in old] if self.paths is None else self.paths
        metadata = [field.metadata for field in old] if self.metadata is None else self.metadata
        return [Fields(*one) for one in zip(self.ids, labels, paths, metadata, strict=True)]


def checked_ids(ids: Sequence[str]) -> list[str]:
    """Ids as a list; each a string, each once."""
    if isinstance(ids, str):
        raise InputError(f"Ids must be a sequence of strings, got the one string {ids!r}; write [{ids!r}].")
    names = list(ids)
    for name in names:
        if _text("id", name, name) is None or not name:
            raise InputError(f"An id must be a string that is not empty, got {name!r}.")
    twice = [name for name, times in Counter(names).items() if times > 1]
    if twice:
        raise InputError(f"Ids must be unique; given more than once: {listed(twice)}.")
    return names


def refuse_unknown(ids: Sequence[str], known: Container[str]) -> None:
    """Ids that are to be changed and are not there."""
    if unknown := [name for name in ids if name not in known]:
        raise InputError(f"The index has no items {listed(unknown)}; nothing was changed.")


def item_of(fields: Fields, label_names: Sequence[str]) -> Item:
    """An item as it is shown, of what is written of it."""
    label = None if fields.label is None else label_names[fields.label]
    return Item(fields.id, label, fields.path, json.loads(fields.metadata) if fields.metadata else {})


def whole_numbers(rows: Rows) -> list[int]:
    """Rows as a list of numbers."""
    values = rows.flatten().tolist() if torch.is_tensor(rows) else list(rows)
    if not all(isinstance(row, int | np.integer) for row in values):
        raise InputError(f"Rows are whole numbers, as in Hits.row, got {values[:3]}.")
    return [int(row) for row in values]


def refuse_missing(wanted: Sequence[int], stored: Iterable[int]) -> None:
    """Refuses rows that are not stored."""
    there = set(stored)
    gone = [row for row in wanted if row not in there]
    if gone:
        raise InputError(
            f"Row {gone[0]} is not in the index (any more): it was removed or updated after the search that found "
            "it, or it stands for no item (−1)."
        )


def _text(what: str, value: object, item: object) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise InputError(
            f"The {what} of item {item!r} must be a string, got {type(value).__name__} {value!r}."
        )
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"The {what} {value!r} cannot be written as UTF-8; name it otherwise.") from None
    if "\0" in value:
        raise InputError(f"The {what} {value!r} has a zero character, which a database cannot compare.")
    return value


def _json(value: Mapping[str, Any] | None, item: str) -> str | None:
    if not value:
        return None
    if not isinstance(value, Mapping):
        raise InputError(f"The metadata of item {item!r} must be a dictionary, got {type(value).__name__}.")
    for key in value:
        if not isinstance(key, str) or not key or UNQUOTABLE & set(key) or key == "label":
            raise InputError(
                f"The metadata of item {item!r} have a key {key!r}; accepted are names without quotation marks "
                "and backslashes, other than 'label', which has its own place."
            )
    try:
        written = json.dumps(dict(value), ensure_ascii=False, allow_nan=False)
        size = len(written.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(f"The metadata of item {item!r} cannot be written as JSON: {error}.") from error
    if size > MOST_METADATA:
        raise InputError(
            f"The metadata of item {item!r} take {size:,} bytes as JSON; at most {MOST_METADATA:,} are kept."
        )
    return written
