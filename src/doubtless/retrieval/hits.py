"""`Hits`: what a search of a gallery found, for a batch of queries. Calibrator, doubt and answers read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

from torch import Tensor

from doubtless.errors import InputError


@dataclass(frozen=True, eq=False)
class Hits:
    """The k best items of n queries, best first; tensors on the CPU.

    >>> import torch
    >>> hits = Hits(row=torch.tensor([[4, 2]]), score=torch.tensor([[0.9, 0.7]]),
    ...             expected_squared_distance=torch.tensor([[0.2, 0.6]]))
    >>> len(hits), hits.depth
    (1, 2)
    """

    row: Tensor
    """(n, k) int64: the item's row in the gallery; −1 where the gallery had fewer than k."""
    score: Tensor
    """(n, k) cosine of the directions, whatever the gallery was ranked by; −inf where there is no item."""
    expected_squared_distance: Tensor
    """(n, k) E‖z − w‖² of the family; inf where there is no item."""
    label: Tensor | None = None
    """(n, k) int64 codes of the items' labels, −1 for an item without; None: the gallery has no labels."""
    uncertainty: Tensor | None = None
    """(n, k) of the items; None: the gallery holds points."""
    query_uncertainty: Tensor | None = None
    """(n,) of the queries; None: the queries are points."""

    def __post_init__(self) -> None:
        if self.row.dim() != 2:
            raise InputError(f"the rows of hits must have shape (queries, k), got {tuple(self.row.shape)}.")
        for field in fields(self):
            value = getattr(self, field.name)
            wanted = self.row.shape[:1] if field.name == "query_uncertainty" else self.row.shape
            if value is not None and value.shape != wanted:
                raise InputError(
                    f"{field.name} of hits must have shape {tuple(wanted)}, got {tuple(value.shape)}."
                )

    def __len__(self) -> int:
        return self.row.shape[0]

    @property
    def depth(self) -> int:
        """k: how many items a query was given."""
        return self.row.shape[1]

    @property
    def found(self) -> Tensor:
        """(n, k) bool: whether there is an item at all."""
        return self.row >= 0

    def first(self, k: int) -> Hits:
        """The first k of every query."""
        return self.chosen(lambda value: value[:, :k])

    def chosen(self, choose: Callable[[Tensor], Tensor]) -> Hits:
        """Some of the hits of every query: `choose` takes (n, k) to (n, c), the same ones of all."""
        return Hits(
            choose(self.row),
            choose(self.score),
            choose(self.expected_squared_distance),
            label=None if self.label is None else choose(self.label),
            uncertainty=None if self.uncertainty is None else choose(self.uncertainty),
            query_uncertainty=self.query_uncertainty,
        )

    def __getitem__(self, queries: slice | Tensor) -> Hits:
        """The hits of some queries."""
        return Hits(
            self.row[queries],
            self.score[queries],
            self.expected_squared_distance[queries],
            label=None if self.label is None else self.label[queries],
            uncertainty=None if self.uncertainty is None else self.uncertainty[queries],
            query_uncertainty=None if self.query_uncertainty is None else self.query_uncertainty[queries],
        )
