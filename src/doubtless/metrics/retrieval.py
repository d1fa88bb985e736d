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
from doubtless.metrics.metric import RETRIEVAL, Metric, register, values_of
from doubtless.metrics.views import Ranked, RankedToR


def recall_at(relevant: Tensor, k: int) -> Tensor:
    """1 where a positive is among the first k, else 0, (q,).

    >>> recall_at(torch.tensor([[False, True], [False, False]]), 2)
    tensor([1., 0.], dtype=torch.float64)
    """
    _check(relevant, k)
    return relevant[:, :k].any(1).double()


def _recalls(ranked: Ranked) -> dict[str, Tensor]:
    return {f"recall@{k}": recall_at(ranked.relevant, k) for k in ranked.ks}


register(
    Metric(
        "recall@1",
        "Recall@1",
        "Share of queries whose first hit is right.",
        of=Ranked,
        measure=_recalls,
        group=RETRIEVAL,
    )
)
register(
    Metric(
        "recall@",
        "Recall@{k}",
        "Share of queries with a right image among the first {k}.",
        of=Ranked,
        measure=_recalls,
        group=RETRIEVAL,
    )
)


def average_precision_at(relevant: Tensor, positives: Tensor, *, k: int) -> Tensor:
    """1/min(R, k) Σ_{i ≤ k} rel_i · precision@i, (q,).

    >>> average_precision_at(torch.tensor([[True, False, True]]), torch.tensor([2]), k=3)
    tensor([0.8333], dtype=torch.float64)
    """
    _check(relevant, k, positives)
    return _summed_precision(relevant[:, :k]) / positives.clamp_max(k)


def _average_precisions(ranked: Ranked) -> dict[str, Tensor]:
    return {f"map@{k}": average_precision_at(ranked.relevant, ranked.positives, k=k) for k in ranked.ks}


register(
    Metric(
        "map@1",
        "MAP@1",
        "The same as recall@1.",
        of=Ranked,
        measure=_average_precisions,
        group=RETRIEVAL,
    )
)
register(
    Metric(
        "map@",
        "MAP@{k}",
        "Mean average precision of the first {k} hits: right images early in the list count more.",
        of=Ranked,
        measure=_average_precisions,
        group=RETRIEVAL,
    )
)


def map_at_r(relevant: Tensor, positives: Tensor) -> Tensor:
    """1/R Σ_{i ≤ R} rel_i · precision@i, (q,); `relevant` must reach down to the largest R.

    >>> map_at_r(torch.tensor([[True, False, True]]), torch.tensor([2]))
    tensor([0.5000], dtype=torch.float64)
    """
    return _summed_precision(_first_r(relevant, positives)) / positives


register(
    Metric(
        "map@r",
        "MAP@R",
        "Average precision of the first R hits, R being the number of right images in the gallery.",
        of=RankedToR,
        measure=lambda ranked: map_at_r(ranked.relevant, ranked.positives),
        group=RETRIEVAL,
    )
)


def r_precision(relevant: Tensor, positives: Tensor) -> Tensor:
    """The share of positives among the first R, (q,); `relevant` must reach down to the largest R.

    >>> r_precision(torch.tensor([[True, False, True]]), torch.tensor([2]))
    tensor([0.5000], dtype=torch.float64)
    """
    return _first_r(relevant, positives).sum(1).double() / positives


register(
    Metric(
        "r_precision",
        "R-precision",
        "Share of right images among the first R, R being their number in the gallery.",
        of=RankedToR,
        measure=lambda ranked: r_precision(ranked.relevant, ranked.positives),
        group=RETRIEVAL,
    )
)


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
        raise InputError(f"A k must lie between 1 and the {relevant.shape[1]} neighbours given, got {k}.")
    if positives is not None and len(positives) and int(positives.min()) < 1:
        raise InputError("A query without a positive in the gallery has no average precision; leave it out.")


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
        """The means so far, by metric."""
        if not self.queries:
            raise InputError("There is no query with a positive in the gallery, so nothing to average.")
        return {name: total / self.queries for name, total in self._sums.items()}


def per_query(
    relevant: Tensor, positives: Tensor, *, ks: Sequence[int], at_r: bool = True
) -> dict[str, Tensor]:
    """Every registered retrieval metric of every query: name → (q,). `at_r`: those that look at R hits, too.

    >>> sorted(per_query(torch.tensor([[True, False]]), torch.tensor([1]), ks=(1,)))
    ['map@1', 'map@r', 'r_precision', 'recall@1']
    """
    values = values_of(Ranked(relevant, positives, ks))
    return values | values_of(RankedToR(relevant, positives)) if at_r else values
