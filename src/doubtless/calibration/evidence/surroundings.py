"""What lies around two pictures in a gallery: whether neighbours carry the same labels, and how near they are.

The nearest item of another label is often nearer than a second photo of the same, so no similarity tells the two
apart by itself. Neighbours do, where the things are in the gallery: two photos of one thing are surrounded by the
same labels. Where they are not, it still counts whether the two are nearer to each other than to anything else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.calibration.features import NEIGHBORHOOD
from doubtless.embedding import Embedding
from doubtless.search.hits import Hits
from doubtless.search.scores import Search

SHARPNESS = 20.0
"""Neighbours vote with exp(SHARPNESS · cosine)."""
FAINT = 0.01
"""Agreement that is as good as none, so that it has a logarithm."""
ITSELF = 1 - 1e-5
"""Cosine from which on an item is the picture itself."""
SURROUNDINGS = (
    *("agreement", "log_agreement", "even_agreement", "log_even_agreement", "first_agree"),
    *("beyond_crowd_least", "beyond_crowd_most", "beyond_first_least", "beyond_first_most"),
)
"""Features of two pictures that a gallery has to be searched for."""


@dataclass(frozen=True, eq=False)
class Surroundings:
    """The nearest items of n pictures, nearest first: row and label code (n, k), −1 for none, and cosine (n, k)."""

    row: Tensor
    label: Tensor
    score: Tensor

    @classmethod
    def of(cls, hits: Hits) -> Surroundings:
        """What a search has found."""
        label = torch.full_like(hits.row, -1) if hits.label is None else hits.label
        return cls(hits.row, label, hits.score.double())

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, rows: Tensor) -> Surroundings:
        return Surroundings(self.row[rows], self.label[rows], self.score[rows])

    @property
    def itself(self) -> Tensor:
        """Rows (n, k) that are the picture itself, −2 at the others."""
        return torch.where(self.score >= ITSELF, self.row, -2)

    def without(
        self, rows: Tensor, labels: Tensor | None = None, *, first: int = NEIGHBORHOOD
    ) -> Surroundings:
        """The first so many that are at none of `rows` (n, r) and carry none of `labels` (n, l)."""
        dropped = (self.row.unsqueeze(2) == rows.unsqueeze(1)).any(2) | (self.row < 0)
        if labels is not None:
            dropped |= (self.label.unsqueeze(2) == labels.unsqueeze(1)).any(2)
        order = dropped.to(torch.uint8).argsort(dim=1, stable=True)[:, :first]

        def kept(value: Tensor, nothing: float) -> Tensor:
            return value.masked_fill(dropped, nothing).gather(1, order)

        return Surroundings(kept(self.row, -1), kept(self.label, -1), kept(self.score, -torch.inf))

    def nearest_other(self, label: Tensor) -> tuple[Tensor, Tensor]:
        """Row and label (n,) of the nearest item with another label than these (n,); −1 where none was found."""
        other = (self.label >= 0) & (self.label != label.unsqueeze(1)) & (self.row >= 0)
        place = other.to(torch.uint8).argmax(1, keepdim=True)
        missing = ~other.any(1)
        row, found = (value.gather(1, place).squeeze(1) for value in (self.row, self.label))
        return row.masked_fill(missing, -1), found.masked_fill(missing, -1)


Both = tuple[Surroundings, Surroundings]
"""What is around each of two pictures, or of the items of n pairs."""
SearchAround = Callable[[Embedding, int], Surroundings]
"""Pictures and k → the k nearest items of each."""


def search_among(gallery: Embedding, labels: Tensor) -> SearchAround:
    """Searches of items that are in memory; their places are their rows.

    >>> points = Embedding.point(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]]))
    >>> search_among(points, torch.tensor([5, 5, 7]))(points[:1], 2).row.tolist()
    [[0, 1]]
    """
    search = Search("direction", gallery)

    def around(pictures: Embedding, k: int) -> Surroundings:
        found = search.nearest(pictures, k=min(k, len(gallery)))
        return Surroundings(found.index, labels[found.index], found.score.double())

    return around


def surrounding_features(cosine: Tensor, first: Surroundings, second: Surroundings) -> dict[str, Tensor]:
    """Name → (n,) float64 of pairs of this cosine (n,) and what is around each; the two may be swapped.

    agreement      Σ over labels of the product of both votes; even: every neighbour has the same; and logarithms
    first_agree    1 where the nearest items carry the same label
    beyond_crowd   cosine less the mean of a picture's neighbours, the smaller and the larger of both
    beyond_first   cosine less that of its nearest

    >>> one = Surroundings(torch.tensor([[0, 1]]), torch.tensor([[7, 8]]), torch.tensor([[0.5, 0.5]]))
    >>> surrounding_features(torch.tensor([0.75]), one, one)["agreement"].tolist()
    [0.5]
    """
    cosine = cosine.double()
    equal = (first.label.unsqueeze(2) == second.label.unsqueeze(1)) & (first.label >= 0).unsqueeze(2)
    agreement, even = (
        (_votes(first, sharp).unsqueeze(1) @ equal.double() @ _votes(second, sharp).unsqueeze(2)).flatten()
        for sharp in (SHARPNESS, 0.0)
    )
    crowd, nearest = zip(*(_nearness(one, cosine) for one in (first, second)), strict=True)
    return {
        "agreement": agreement,
        "log_agreement": (agreement + FAINT).log(),
        "even_agreement": even,
        "log_even_agreement": (even + FAINT).log(),
        "first_agree": equal[:, 0, 0].double() if equal.shape[1] and equal.shape[2] else agreement,
        "beyond_crowd_least": cosine - torch.maximum(*crowd),
        "beyond_crowd_most": cosine - torch.minimum(*crowd),
        "beyond_first_least": cosine - torch.maximum(*nearest),
        "beyond_first_most": cosine - torch.minimum(*nearest),
    }


def _votes(around: Surroundings, sharpness: float) -> Tensor:
    """(n, k) ∝ exp(sharpness · cosine), of sum 1 or all 0 where nothing was found."""
    there = around.row >= 0
    score = sharpness * around.score.double().masked_fill(~there, -1.0)  # the least that a cosine can be
    votes = (score - sharpness).exp().masked_fill(~there, 0.0)
    return votes / votes.sum(1, keepdim=True).clamp_min(1e-300)


def _nearness(around: Surroundings, nothing: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and largest cosine (n,) of the neighbours; `nothing` (n,) where there are none."""
    there = around.row >= 0
    if not there.shape[1]:
        return nothing, nothing
    score = around.score.double().masked_fill(~there, 0.0)
    mean = score.sum(1) / there.sum(1).clamp_min(1)
    some = there.any(1)
    largest = around.score.double().masked_fill(~there, -torch.inf).amax(1)
    return torch.where(some, mean, nothing), torch.where(some, largest, nothing)
