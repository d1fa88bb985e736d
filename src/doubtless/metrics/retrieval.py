"""How good the neighbours are: recall@k, map@k, map@r, r_precision, a value for each query.

Everything here looks at `relevant` (q, k), true where the i-th neighbour of a query is right, and at
`positives` (q,), the number R of right items in the gallery. Queries with R = 0 have no value: leave them out
(`evaluate` counts them). MAP@R and R-precision: Musgrave, Belongie, Lim, "A Metric Learning Reality Check",
2020.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from doubtless.errors import InputError


def recall_at(relevant: Tensor, k: int) -> Tensor:
    """1 where a positive is among the first k, else 0, (q,)."""
    _check(relevant, k)
    return relevant[:, :k].any(1).double()


def average_precision_at(relevant: Tensor, positives: Tensor, *, k: int) -> Tensor:
    """1/min(R, k) Σ_{i ≤ k} rel_i · precision@i, (q,).

    >>> average_precision_at(torch.tensor([[True, False, True]]), torch.tensor([2]), k=3)
    tensor([0.8333], dtype=torch.float64)
    """
    _check(relevant, k, positives)
    return _summed_precision(relevant[:, :k]) / positives.clamp_max(k)


def map_at_r(relevant: Tensor, positives: Tensor) -> Tensor:
    """1/R Σ_{i ≤ R} rel_i · precision@i, (q,); `relevant` must reach down to the largest R."""
    return _summed_precision(_first_r(relevant, positives)) / positives


def r_precision(relevant: Tensor, positives: Tensor) -> Tensor:
    """The share of positives among the first R, (q,); `relevant` must reach down to the largest R."""
    return _first_r(relevant, positives).sum(1).double() / positives


def _summed_precision(relevant: Tensor) -> Tensor:
    ranks = torch.arange(1, relevant.shape[1] + 1, device=relevant.device, dtype=torch.double)
    return (relevant * relevant.cumsum(1) / ranks).sum(1)


def _first_r(relevant: Tensor, positives: Tensor) -> Tensor:
    """`relevant` with everything after rank R false."""
    if len(positives):
        _check(relevant, int(positives.max()), positives)
    ranks = torch.arange(1, relevant.shape[1] + 1, device=relevant.device)
    return relevant & (ranks <= positives.unsqueeze(1))


def _check(relevant: Tensor, k: int, positives: Tensor | None = None) -> None:
    if k < 1 or k > relevant.shape[1]:
        raise InputError(f"k must lie between 1 and the {relevant.shape[1]} neighbours given, got {k}.")
    if positives is not None and len(positives) and int(positives.min()) < 1:
        raise InputError("a query without a positive in the gallery has no average precision; leave it out.")


class RetrievalMetrics:
    """Means over queries that come in chunks; holds sums only.

    >>> metrics = RetrievalMetrics(ks=(1, 2))
    >>> metrics.update(torch.tensor([[True, False], [False, True]]), torch.tensor([1, 2]))
    >>> metrics.compute()["recall@1"], metrics.compute()["map@2"]
    (0.5, 0.625)
    """

    def __init__(self, *, ks: Sequence[int] = (1, 5, 10), at_r: bool = True) -> None:
        self.ks, self.at_r = tuple(ks), at_r
        self.queries = 0
        self.without_positive = 0
        self._sums: dict[str, float] = {}

    def update(self, relevant: Tensor, positives: Tensor) -> None:
        """Adds a chunk: relevant (q, k), positives (q,). Queries with R = 0 are counted and left out."""
        counted = positives > 0
        self.without_positive += int((~counted).sum())
        self.queries += int(counted.sum())
        values = per_query(relevant[counted], positives[counted], ks=self.ks, at_r=self.at_r)
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + float(value.sum())

    def compute(self) -> dict[str, float]:
        if not self.queries:
            raise InputError("there is no query with a positive in the gallery, so nothing to average.")
        return {name: total / self.queries for name, total in self._sums.items()}


def per_query(
    relevant: Tensor, positives: Tensor, *, ks: Sequence[int], at_r: bool = True
) -> dict[str, Tensor]:
    """Every retrieval metric of every query: name → (q,)."""
    values = {f"recall@{k}": recall_at(relevant, k) for k in ks}
    values |= {f"map@{k}": average_precision_at(relevant, positives, k=k) for k in ks}
    if at_r:
        values |= {"map@r": map_at_r(relevant, positives), "r_precision": r_precision(relevant, positives)}
    return values
