"""Which items a search may find: `where={"label": ["cat", "dog"], "shelf": 3}`.

Every key must hold. A value is a string, a number, a truth value or None (not given); of a list of values one must
hold. "label" is the item's label, every other key one of its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from doubtless.errors import InputError
from doubtless.index.database.columns import Column, Columns, one_of
from doubtless.index.forms import Integers
from doubtless.index.items import Item
from doubtless.index.vector_cache import VectorCache

Where = Mapping[str, Any]


MOST_KEYS, MOST_VALUES, LONGEST = 32, 10_000, 4096
"""Of one filter: keys, values in all lists together, and characters of a value or key."""
LARGEST = 1e308


@dataclass(frozen=True)
class Filter:
    """A condition whose columns know every row up to one; then it picks positions of a cache."""

    labels: frozenset[int] | None  # codes, −1 for items without; None: any
    columns: tuple[tuple[Column, list[Any]], ...]  # of metadata, and the values that are let through

    @classmethod
    def of(cls, where: Where, columns: Columns, *, label_names: list[str], last: int) -> Filter:
        """Nothing is locked meanwhile but the columns that have to be read."""
        accepted = accepted_filter(where)
        names = accepted.pop("label", None)
        chosen = tuple((columns.of(key), values) for key, values in accepted.items())
        for column, _ in chosen:
            column.follow(last)
        return cls(None if names is None else label_codes(names, label_names), chosen)

    def positions(self, cache: VectorCache) -> Integers:
        """Positions of the items that fulfil it."""
        held = np.array(cache.alive)
        if self.labels is not None:
            codes = cache.items["label"]
            wanted = np.zeros(int(max(codes.max(initial=-1), *self.labels, -1)) + 2, bool)
            wanted[[code + 1 for code in self.labels]] = True
            held &= wanted[codes + 1]
        for column, values in self.columns:
            hashes = column.placed(cache.items["row"], cache.generation)
            held[: len(hashes)] &= one_of(hashes[: len(held)], values)
            held[len(hashes) :] = False  # came while the column was read: the next search finds it
        return np.flatnonzero(held)


def admits(where: Where, item: Item) -> bool:
    """Whether an item fulfils a condition; for indexes without a better way to find out.

    >>> item = Item("a", "cat", None, {"year": 2024, "sold": True})
    >>> admits({"label": ["cat", "dog"], "year": 2024.0}, item), admits({"sold": 1}, item)
    (True, False)
    """
    for key, accepted in accepted_filter(where).items():
        value = item.label if key == "label" else item.metadata.get(key)
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in accepted):
            return False
    return True


def accepted_filter(where: Where) -> dict[str, list[Any]]:
    """What each key lets through; refuses what can be no filter, and more than one may reasonably name."""
    if not isinstance(where, Mapping):
        raise InputError(f"A filter is a dictionary of keys and values, got a {type(where).__name__}.")
    if len(where) > MOST_KEYS:
        raise InputError(f"A filter may have {MOST_KEYS} keys, got {len(where):,}.")
    accepted = {key: accepted_values(key, wanted) for key, wanted in where.items()}
    count = sum(map(len, accepted.values()))
    if count > MOST_VALUES:
        raise InputError(
            f"A filter may name {MOST_VALUES:,} values, got {count:,}; give the items a label or a key of "
            "their own that says the same."
        )
    return accepted


def mentions(text: str, item: Item) -> bool:
    """Whether an item's id, label or one of its metadata's values has a text in it, in capitals or not.

    >>> mentions("OAT", Item("a-7", "Goat", None, {})), mentions("year", Item("a", None, None, {"year": 2024}))
    (True, False)
    """
    wanted = text.lower()
    words = [item.id, item.label or "", *_atoms(item.metadata)]
    return any(wanted in word.lower() for word in words)


def _atoms(value: Any) -> Iterator[str]:
    """Strings and numbers inside of JSON values."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        for one in value:
            yield from _atoms(one)
    elif isinstance(value, str | int | float) and not isinstance(value, bool):
        yield str(value)


def text_condition(text: str, label_names: Sequence[str]) -> tuple[str, list[Any]]:
    """SQL of `mentions`; `folded` is a function that its connection must know where the text is not ASCII."""
    wanted = text.lower()
    codes = [code for code, name in enumerate(label_names) if wanted in name.lower()]
    if text.isascii():  # SQLite's own comparison ignores the case of these letters, and is much faster
        pattern = "".join(f"\\{one}" if one in "%_\\" else one for one in text)
        holds, given = "{} LIKE ? ESCAPE '\\'", f"%{pattern}%"
    else:
        holds, given = "instr(folded({}), ?)", wanted
    values: list[Any] = [given, json.dumps(codes)]
    primitive = "type IN ('text', 'integer', 'real')"
    inside = f"EXISTS (SELECT 1 FROM json_tree(metadata) WHERE {primitive} AND {holds.format('atom')})"
    if text.isascii() and not any(
        one in '"\\' or one < " " for one in text
    ):  # nothing that JSON writes otherwise
        inside = f"({holds.format('metadata')} AND {inside})"
        values.append(given)
    label = "label IN (SELECT value FROM json_each(?))"
    return f"({holds.format('id')} OR {label} OR {inside})", [*values, given]


def accepted_values(key: object, wanted: object) -> list[Any]:
    """The values one key of a filter lets through; refuses what can be none."""
    if not isinstance(key, str):
        raise InputError(f"A filter's keys are 'label' or names of metadata, got {key!r}.")
    _refuse_unwritable(key)
    several = isinstance(wanted, Sequence | set | frozenset) and not isinstance(wanted, str | bytes)
    values = list(wanted) if several else [wanted]  # type: ignore[call-overload]
    for value in values:
        if value is not None and not isinstance(value, str | bool | int | float):
            raise InputError(
                f"The filter on {key!r} takes strings, numbers, truth values, None or lists of them, got a "
                f"{type(value).__name__}."
            )
        if isinstance(value, str):
            _refuse_unwritable(value)
        elif isinstance(value, int | float) and not -LARGEST <= value <= LARGEST:
            raise InputError(f"The filter on {key!r} takes finite numbers up to 1e308 in size.")
    return values


def _refuse_unwritable(text: str) -> None:
    if len(text) > LONGEST:
        raise InputError(f"A key or value of a filter may have {LONGEST:,} characters, got {len(text):,}.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"A filter names {text!r}, which cannot be written as UTF-8.") from None


def label_codes(names: list[Any], known: list[str]) -> frozenset[int]:
    """Codes of labels that are known, −1 for None."""
    codes = {name: code for code, name in enumerate(known)}
    return frozenset(-1 if name is None else codes[name] for name in names if name is None or name in codes)
