"""Rows as callers give them: a tensor of `Hits.row`, or whole numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from doubtless.errors import InputError

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
