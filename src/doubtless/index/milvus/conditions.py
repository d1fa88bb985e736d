"""A filter as Milvus reads it, by the facts of items."""

from __future__ import annotations

from collections.abc import Sequence

from doubtless.index.filters import Where
from doubtless.index.milvus.tables import FILTER_KEYS
from doubtless.index.remote.facts import Clause, clauses

NOTHING = "row < 0"
"""An expression no item fulfils."""


def expression(where: Where, label_names: Sequence[str]) -> str:
    """What `Index.search` takes as `where`, for Milvus.

    >>> expression({"label": ["cat", None]}, ["dog", "cat"])
    '(label in [-1, 1])'
    """
    return " and ".join(f"({_said(clause)})" for clause in clauses(where, label_names))


def _said(clause: Clause) -> str:
    said = []
    if clause.codes:
        said.append(f"label in {clause.codes}")
    if clause.facts:
        said.append(f"array_contains_any({FILTER_KEYS}, {clause.facts})")
    if clause.lacking is not None:
        said.append(f"not array_contains({FILTER_KEYS}, {clause.lacking})")
    return " or ".join(said) or NOTHING
