"""`Moments`: the sum of x xᵀ over what an index holds, x its unit directions. All that a posterior needs of them.

It is a sum, so an item that is added adds to it and one that is removed is taken off again, in float64. Directions
wider than `WIDEST` are narrowed first, by a random projection that is the same for all: a sum over them alone would
be a matrix of gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.errors import InputError

WIDEST = 2048  # numbers of a direction that are summed as they are
CHUNK = 8_192  # rows in float64 at a time
SEED = 25  # of the projection of wider ones: sums of one index must stay sums of the same


@dataclass(frozen=True, eq=False)
class Moments:
    """Σ x xᵀ of `count` directions of a given dimension.

    >>> moments = Moments.of(torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 1.0]]))
    >>> moments.total, moments.count
    (tensor([[1., 0.],
            [0., 2.]], dtype=torch.float64), 3)
    >>> moments.less(torch.tensor([[0.0, 5.0]])).total.diagonal()
    tensor([1., 1.], dtype=torch.float64)
    """

    total: Tensor
    """(W, W) float64, W the dimension or, of wider ones, `WIDEST`."""
    count: int
    dim: int

    @classmethod
    def none(cls, dim: int) -> Moments:
        """Of nothing."""
        width = min(dim, WIDEST)
        return cls(torch.zeros(width, width, dtype=torch.double), 0, dim)

    @classmethod
    def of(cls, directions: Tensor) -> Moments:
        """Of the rows (n, dim)."""
        return cls.none(directions.shape[1]).more([directions])

    def more(self, pieces: Iterable[Tensor]) -> Moments:
        """With further rows (n, dim) in it."""
        total, count = self.total.clone(), self.count
        for piece in pieces:
            for rows in piece.split(CHUNK):
                units = self.units(rows)
                total += (units.T @ units).to(total.device)
            count += len(piece)
        return Moments(total, count, self.dim)

    def less(self, directions: Tensor) -> Moments:
        """Without rows (n, dim) that are in it. Where nothing is left nothing stays, not even rounding."""
        gone = Moments.none(self.dim).more([directions])
        if gone.count == self.count:
            return Moments.none(self.dim)
        return Moments(self.total - gone.total, self.count - gone.count, self.dim)

    def units(self, directions: Tensor) -> Tensor:
        """What is summed of rows (n, dim): unit rows (n, W) in float64, narrowed where they are wide."""
        if directions.dim() != 2 or directions.shape[1] != self.dim:
            raise InputError(
                f"Moments of dimension {self.dim} take rows (n, {self.dim}), got {tuple(directions.shape)}."
            )
        rows = directions.detach()
        if self.dim > WIDEST:
            rows = rows.float() @ _projection(self.dim, WIDEST).to(rows.device)
        return normalize(rows.double(), dim=1)


@lru_cache(maxsize=1)
def _projection(dim: int, width: int) -> Tensor:
    """(dim, width), the same in every process."""
    return torch.randn(dim, width, generator=torch.Generator().manual_seed(SEED)) / width**0.5
