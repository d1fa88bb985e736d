"""Novelty: how far a query's features lie from the nearest feature that is known, by cosine.

Features are what the network has before its head: the head is trained to forget what does not tell the training
classes apart, and with it what tells an out-of-distribution image (Sun et al., "Out-of-distribution detection with
deep nearest neighbors", 2022). A compact reference stands for all known features: at most 10,000
rows, at most 512 wide, in half precision.

Wide features are narrowed by a fixed random projection: it keeps every distance nearly as it is, also that of
images unlike any known one (Johnson and Lindenstrauss 1984), where principal components keep only what the known
images vary in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.errors import InputError

SIZE = 10_000  # rows kept
WIDTH = 512  # numbers per row; wider features are projected
ROUNDS = 4  # of the farthest rows, after a random half
PAIRS = 2**24  # cosines in memory at a time


def projection(features: int, width: int = WIDTH, *, generator: torch.Generator) -> Tensor | None:
    """A random (features, width) matrix that keeps lengths on average; None where nothing is to be narrowed."""
    if features <= width:
        return None
    return (torch.randn(features, width, generator=generator) / width**0.5).half()


class Novelty:
    """A reference of known features (m, W), unit rows in half precision, and the way to it from features (n, F).

    >>> generator = torch.Generator().manual_seed(0)
    >>> known = Novelty.fit(torch.eye(4)[:3], generator=generator)
    >>> known.distance(torch.eye(4))
    tensor([0., 0., 0., 1.])
    """

    def __init__(self, reference: Tensor, *, rows: Tensor, narrow: Tensor | None = None) -> None:
        self.reference = reference.half()  # (m, W)
        self.rows = rows  # (m,) which of the features each was
        self.narrow = narrow  # (F, W)
        self._wide: tuple[Tensor, Tensor | None] | None = (
            None  # both in float32: half precision is for storage
        )

    @classmethod
    def fit(
        cls,
        features: Tensor,
        *,
        generator: torch.Generator,
        size: int = SIZE,
        width: int = WIDTH,
        narrow: Tensor | None = None,
    ) -> Self:
        """Keeps at most `size` of the features (n, F), a coreset; `narrow` where they were narrowed before."""
        if features.dim() != 2 or not len(features):
            raise InputError(f"Novelty needs features of shape (n, F), n ≥ 1, got {tuple(features.shape)}.")
        if narrow is None:
            narrow = projection(features.shape[1], width, generator=generator)
        known = _unit(features, narrow)
        rows = coreset(known, size, generator=generator)
        return cls(known[rows.to(known.device)].cpu(), rows=rows, narrow=narrow)

    def distance(self, features: Tensor, *, exclude: Tensor | None = None) -> Tensor:
        """1 − cosine to the nearest known feature, (n,) float32, on the features' device.

        exclude (n,): the row among the features fitted on that a query must not find: itself.
        """
        reference, narrow = self._float32(features.device)
        queries = _unit(features, narrow)
        if queries.shape[1] != self.reference.shape[1]:
            raise InputError(
                f"Features have {features.shape[1]} numbers, the reference of known features "
                f"{self.reference.shape[1] if self.narrow is None else self.narrow.shape[0]}."
            )
        return nearest_cosine_distance(queries, reference, exclude=exclude, rows=self.rows)

    def _float32(self, device: torch.device) -> tuple[Tensor, Tensor | None]:
        """Reference and projection as they are computed with, made once: larger than most queries."""
        if self._wide is None or self._wide[0].device != device:
            narrow = None if self.narrow is None else self.narrow.to(device).float()
            self._wide = self.reference.to(device).float(), narrow
        return self._wide

    def tensors(self) -> dict[str, Tensor]:
        """What `from_tensors` takes."""
        kept = {"reference": self.reference, "rows": self.rows}
        return kept if self.narrow is None else {**kept, "narrow": self.narrow}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> Self:
        """The reference whose `tensors` these are."""
        return cls(tensors["reference"], rows=tensors["rows"], narrow=tensors.get("narrow"))


def nearest_cosine_distance(
    queries: Tensor, reference: Tensor, *, exclude: Tensor | None = None, rows: Tensor | None = None
) -> Tensor:
    """1 − the largest inner product of each unit query (n, W) with the unit reference (m, W), (n,)."""
    best = queries.new_empty(len(queries))
    place = None if rows is None else rows.to(queries.device)
    for chunk in torch.arange(len(queries), device=queries.device).split(max(1, PAIRS // len(reference))):
        cosine = queries[chunk] @ reference.T  # (c, m)
        if exclude is not None and place is not None:
            cosine.masked_fill_(exclude.to(place)[chunk, None] == place, -1.0)
        best[chunk] = cosine.amax(1)
    return (1 - best).clamp(0, 2)


def coreset(features: Tensor, size: int, *, generator: torch.Generator) -> Tensor:
    """Rows (≤ size,), sorted, of unit features (n, W) that stand for all: a random half, then the farthest.

    The random half keeps what is common as common as it is; then, in a few rounds, the rows that lie farthest
    from all kept so far are added, so that what is known but rare does not look new.

    >>> features = torch.tensor([[1.0, 0.0]] * 99 + [[0.0, 1.0]])
    >>> rows = coreset(features, 8, generator=torch.Generator().manual_seed(0))
    >>> len(rows), 99 in rows
    (8, True)
    """
    if size < 1:
        raise InputError(f"A coreset needs a size of at least 1, got {size}.")
    order = torch.randperm(len(features), generator=generator)
    if len(features) <= size:
        return order.sort().values
    kept = order[: size - size // 2]
    away = nearest_cosine_distance(features, features[kept.to(features.device)])
    for round_number in range(ROUNDS):
        wanted = (size - len(kept)) // (ROUNDS - round_number)
        away[kept.to(features.device)] = -1  # what is kept is not taken again, duplicates of it may be
        if wanted:
            added = away.topk(wanted).indices
            away = torch.minimum(away, nearest_cosine_distance(features, features[added]))
            kept = torch.cat([kept, added.cpu()])
    return kept.sort().values


def _unit(features: Tensor, narrow: Tensor | None) -> Tensor:
    """Unit rows in float32, narrowed where they are as wide as the projection takes them."""
    rows = features.detach().float()
    if narrow is not None and rows.shape[1] == narrow.shape[0]:
        rows = rows @ narrow.to(rows.device).float()
    return normalize(rows, dim=1)
