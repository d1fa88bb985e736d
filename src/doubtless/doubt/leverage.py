"""Leverage: how far a query lies outside the space that a gallery's directions fill.

With S = Σ x xᵀ over the n unit directions of a gallery and μ their mean eigenvalue tr(S)/W, the leverage of a
query's unit direction q is

    n · qᵀ (S + ridge · μ I)⁻¹ q = ‖L⁻¹ q‖² · n,     L Lᵀ = S + ridge · μ I:

the predictive variance of a linear head whose posterior has seen the gallery, up to its scale. It is large where no
item has anything in common with the query, however near the nearest one is: the *nearest* item is what the distance
of the first hit tells already. Nothing but S is needed, which an index keeps (`Index.moments`).

For an item of the gallery itself its own part is left out, exactly: with h = qᵀ (S + ridge · μ I)⁻¹ q the sum
without q qᵀ gives h / (1 − h) (Sherman and Morrison 1950), the ridge staying what it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor

from doubtless.index.moments import Moments

RIDGE = 0.1  # of the mean eigenvalue; what is found hardly depends on it over four decades


class Leverage:
    """The leverage of queries in a gallery of which only the moments are known.

    >>> moments = Moments.of(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 1.0, 0.0]]))
    >>> inside, outside = Leverage(moments).of(torch.tensor([[1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])).tolist()
    >>> outside > 10 * inside
    True
    """

    def __init__(self, moments: Moments, *, ridge: float = RIDGE) -> None:
        self.moments, self.ridge = moments, ridge
        total = moments.total
        mean = float(total.diagonal().mean())
        self._factor = (
            torch.linalg.cholesky(total + ridge * mean * torch.eye(len(total), dtype=total.dtype))
            if mean > 0
            else None
        )

    def of(self, directions: Tensor, *, own: bool = False) -> Tensor:
        """(n,) float64 for rows (n, dim), on their device; own: they are items of the gallery, each left out.

        A gallery without directions knows nothing: every query that points anywhere is infinitely far out of it.
        """
        units = self.moments.units(directions)
        if self._factor is None:
            return torch.where(units.any(1), torch.inf, 0.0).double()
        solved = torch.linalg.solve_triangular(self._factor.to(units.device), units.T, upper=False)
        within = solved.square().sum(0)
        if own:
            within = within / (1 - within).clamp_min(torch.finfo(within.dtype).eps)
        return within * self.moments.count

    def tensors(self) -> dict[str, Tensor]:
        """What `from_tensors` takes; sums in single precision, which a ridge forgives."""
        plain = torch.tensor([self.ridge, self.moments.count, self.moments.dim], dtype=torch.double)
        return {"total": self.moments.total.float(), "plain": plain}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The leverage whose `tensors` these are."""
        ridge, count, dim = tensors["plain"].tolist()
        return cls(Moments(tensors["total"].double(), int(count), int(dim)), ridge=ridge)
