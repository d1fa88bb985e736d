"""Metadata and ids as numbers a database can look for: 63 bits of a hash for an id and for every "name = value".

Comparisons of JSON differ between databases (true and 1, 2 and 2.0, quoting); whether a number is in a list does
not. Two values share a number with a chance of 1e-19; ids that are found are compared again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from doubtless.index.filters import Where, accepted_filter, label_codes


def key_of(*words: str) -> int:
    """63 bits of a hash of some words: not every database reads a minus in front of one."""
    digest = hashlib.blake2b(digest_size=8)
    for word in words:
        encoded = word.encode()
        digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return int.from_bytes(digest.digest(), "little") >> 1


def filter_keys_of(metadata: str | None) -> list[int]:
    """What can be asked of metadata (JSON): each name that is given, and its value where it is a plain one."""
    keys = []
    for name, value in json.loads(metadata or "{}").items():
        if value is not None:
            keys.append(_name_key(name))
        if isinstance(value, str | bool | int | float):
            keys.append(_value_key(name, value))
    return keys


class Clause(NamedTuple):
    """One must hold: the label is one of the codes, the item has one of the facts, or lacks a fact."""

    codes: list[int] | None
    facts: list[int]
    lacking: int | None

    @property
    def is_empty(self) -> bool:
        """Whether nothing can fulfil it."""
        return not self.codes and not self.facts and self.lacking is None


def clauses(where: Where, label_names: Sequence[str]) -> Iterator[Clause]:
    """What `Index.search` takes as `where`, all of which must hold.

    >>> list(clauses({"label": ["cat", None]}, ["dog", "cat"]))
    [Clause(codes=[-1, 1], facts=[], lacking=None)]
    """
    for name, values in accepted_filter(where).items():
        if name == "label":
            yield Clause(sorted(label_codes(values, list(label_names))), [], None)
        else:
            yield _holds(name, values)


def _holds(name: str, values: list[Any]) -> Clause:
    keys = sorted({_value_key(name, value) for value in values if value is not None})
    return Clause(None, keys, _name_key(name) if None in values else None)


def _name_key(name: str) -> int:
    return key_of("given", name)


def _value_key(name: str, value: str | bool | int | float) -> int:
    """2 and 2.0 are one value; true, 1 and "1" are three."""
    if isinstance(value, str):
        return key_of("text", name, value)
    if isinstance(value, bool):
        return key_of("truth", name, str(value))
    whole = isinstance(value, int) or value.is_integer()
    return key_of("number", name, str(int(value)) if whole else repr(value))
