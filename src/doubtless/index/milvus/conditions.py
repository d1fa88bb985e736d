"""Metadata and ids as numbers Milvus can look for: 63 bits of a hash for an id and for every "name = value".

Milvus's own comparisons of JSON differ between Lite and servers (true and 1, 2 and 2.0, quoting); whether a number
is in a list does not. Two values share a number with a chance of 1e-19; ids that are found are compared again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from doubtless.index.filters import Where, accepted_filter, label_codes
from doubtless.index.milvus.tables import FILTER_KEYS

NOTHING = "row < 0"
"""An expression no item fulfils."""


def key_of(*words: str) -> int:
    """63 bits of a hash of some words: Milvus Lite reads no minus in front of a number."""
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


def expression(where: Where, label_names: Sequence[str]) -> str:
    """What `Index.search` takes as `where`, for Milvus.

    >>> expression({"label": ["cat", None]}, ["dog", "cat"])
    '(label in [-1, 1])'
    """
    clauses = []
    for name, values in accepted_filter(where).items():
        if name == "label":
            codes = sorted(label_codes(values, list(label_names)))
            clauses.append(f"label in {codes}" if codes else NOTHING)
        else:
            clauses.append(_holds(name, values))
    return " and ".join(f"({clause})" for clause in clauses)


def _holds(name: str, values: list[Any]) -> str:
    keys = sorted({_value_key(name, value) for value in values if value is not None})
    clauses = [f"array_contains_any({FILTER_KEYS}, {keys})"] if keys else []
    if None in values:
        clauses.append(f"not array_contains({FILTER_KEYS}, {_name_key(name)})")
    return " or ".join(clauses) or NOTHING


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
