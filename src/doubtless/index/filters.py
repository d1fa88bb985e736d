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
from doubtless.index.forms import Integers
from doubtless.index.items import Item
from doubtless.index.sqlite import Store
from doubtless.index.vector_cache import VectorCache

Where = Mapping[str, Any]


@dataclass(frozen=True)
class Filter:
    """A condition, looked up in the database once; then it picks positions of a cache."""

    labels: frozenset[int] | None  # codes, −1 for items without; None: any
    rows: Integers | None  # rows whose metadata fit; None: any

    @classmethod
    def of(cls, where: Where, store: Store) -> Filter:
        """Inside a reading transaction."""
        labels, clauses, values = None, ["1"], []
        for key, wanted in where.items():
            accepted = accepted_values(key, wanted)
            if key == "label":
                labels = label_codes(accepted, store.label_names())
                continue
            clause, given = _clause(key, accepted)
            clauses.append(clause)
            values.extend(given)
        rows = store.matching(" AND ".join(clauses), values) if len(clauses) > 1 else None
        return cls(labels, rows)

    def positions(self, cache: VectorCache) -> Integers:
        """Positions of the items that fulfil it."""
        chosen = np.flatnonzero(cache.alive) if self.rows is None else cache.positions_of(self.rows)
        if self.labels is None:
            return chosen
        return chosen[np.isin(cache.items["label"][chosen], list(self.labels))]


def admits(where: Where, item: Item) -> bool:
    """Whether an item fulfils a condition; for indexes without a better way to find out.

    >>> item = Item("a", "cat", None, {"year": 2024, "sold": True})
    >>> admits({"label": ["cat", "dog"], "year": 2024.0}, item), admits({"sold": 1}, item)
    (True, False)
    """
    for key, wanted in where.items():
        accepted = accepted_values(key, wanted)
        value = item.label if key == "label" else item.metadata.get(key)
        if not any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in accepted):
            return False
    return True


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
    several = isinstance(wanted, Sequence | set | frozenset) and not isinstance(wanted, str | bytes)
    values = list(wanted) if several else [wanted]  # type: ignore[call-overload]
    for value in values:
        if value is not None and not isinstance(value, str | bool | int | float):
            raise InputError(
                f"The filter on {key!r} takes strings, numbers, truth values, None or lists of them, got {value!r}."
            )
    return values


def label_codes(names: list[Any], known: list[str]) -> frozenset[int]:
    """Codes of labels that are known, −1 for None."""
    codes = {name: code for code, name in enumerate(known)}
    return frozenset(-1 if name is None else codes[name] for name in names if name is None or name in codes)


def _clause(key: str, values: list[Any]) -> tuple[str, list[Any]]:
    """SQL that holds where one of the values is the metadata's; JSON's true is not its 1."""
    path = f"$.{json.dumps(key, ensure_ascii=False)}"
    clauses, given = ["0"], []
    for value in values:
        if value is None:
            clauses.append("ifnull(json_type(metadata, ?), 'null') = 'null'")
            given.append(path)
        elif isinstance(value, bool):
            clauses.append("json_type(metadata, ?) = ?")
            given += [path, "true" if value else "false"]
        else:
            kinds = "('text')" if isinstance(value, str) else "('integer', 'real')"
            clauses.append(f"(json_type(metadata, ?) IN {kinds} AND json_extract(metadata, ?) = ?)")
            given += [path, path, value]
    return f"({' OR '.join(clauses)})", given
