"""Sums of products that are symmetric: half of each is computed, few large products instead of many small ones.

On a CPU float32 rows are multiplied in float32, at most `ROWS` at a time, and added up in float64: twice as fast as
products in float64, and their rounding, of 1e-7 of an entry, is no larger than that of the rows themselves. A GPU
multiplies in float64: it is fast there, and float32 products might be of the ten bits of TF32.
"""

from __future__ import annotations

import torch
from torch import Tensor

ROWS = 2048  # that are multiplied at a time
BLOCK = 256  # columns of a product that are computed at a time: what lies above them is known


class SymmetricSum:
    """Σ leftᵀ right over batches of rows, each such product, or their sum, being symmetric.

    >>> total = SymmetricSum(3)
    >>> for rows in torch.eye(3).split(2):
    ...     total.add(rows, 2 * rows)
    >>> total.value()
    tensor([[2., 0., 0.],
            [0., 2., 0.],
            [0., 0., 2.]], dtype=torch.float64)
    """

    def __init__(self, width: int, *, device: torch.device | str = "cpu") -> None:
        self._lower = torch.zeros(width, width, dtype=torch.float64, device=device)
        self._waiting: list[tuple[Tensor, Tensor]] = []
        self._rows = 0

    def add(self, left: Tensor, right: Tensor) -> None:
        """Two times (n, width); multiplied when there are enough of them."""
        self._waiting.append((left, right))
        self._rows += len(left)
        if self._rows >= ROWS:
            self._multiply()

    def value(self) -> Tensor:
        """(width, width), float64."""
        self._multiply()
        lower = self._lower.tril()
        return lower + lower.tril(-1).T

    def _multiply(self) -> None:
        if not self._waiting:
            return
        left, right = (torch.cat(rows) for rows in zip(*self._waiting, strict=True))
        self._waiting, self._rows = [], 0
        if left.device.type != "cpu":
            left, right = left.double(), right.double()
        for start in range(0, left.shape[1], BLOCK):
            below, block = slice(start, None), slice(start, start + BLOCK)
            for rows in range(0, len(left), ROWS):
                part = slice(rows, rows + ROWS)
                self._lower[below, block] += left[part, below].T @ right[part, block]
