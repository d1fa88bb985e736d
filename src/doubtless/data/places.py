"""Where images were taken: for sources in which two images belong together because they are near each other."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.errors import InputError

RADIUS = 25.0
REGION_WIDTH = 1e7
"""Metres between two regions' origins: a UTM zone's coordinates span less, so regions never touch."""


@dataclass(frozen=True)
class Places:
    """Positions of n images. "Within 25 m" is not transitive, so no label can say which images belong together.

    Images that ask and images that answer are kept apart: `query` says which is which.

    >>> near = Places(torch.tensor([[0.0, 0.0], [20.0, 0.0]]), torch.tensor([0, 0]), torch.tensor([True, False]))
    >>> near[torch.tensor([1])].position
    tensor([[20.,  0.]])
    """

    position: Tensor  # (n, 2) metres; those of different regions lie far apart
    region: Tensor  # (n,) long, such as a city: what a split keeps whole
    query: Tensor  # (n,) bool: asks; the others are the database that is searched
    radius: float = RADIUS

    def __post_init__(self) -> None:
        count = len(self.region)
        if tuple(self.position.shape) != (count, 2) or tuple(self.query.shape) != (count,):
            raise InputError(
                f"Places need positions ({count}, 2), regions and roles ({count},), got "
                f"{tuple(self.position.shape)} and {tuple(self.query.shape)}."
            )
        bad = ~torch.isfinite(self.position).all(1)
        if bool(bad.any()):
            raise InputError(
                f"{int(bad.sum())} positions are NaN or infinite, the first is number {int(bad.nonzero()[0])}."
            )

    @classmethod
    def of_regions(cls, position: Tensor, region: Tensor, *, query: Tensor) -> Places:
        """From each region's own coordinates (n, 2), such as UTM: regions are moved far apart."""
        moved = position.double().clone()
        moved[:, 0] += REGION_WIDTH * region
        return cls(moved, region, query)

    def __len__(self) -> int:
        return len(self.region)

    def __getitem__(self, rows: Tensor) -> Places:
        return Places(self.position[rows], self.region[rows], self.query[rows], self.radius)

    def cells(self) -> Tensor:
        """A label (n,) for who can only take labels: squares whose diagonal is the radius.

        Two images of one square are always near each other; two of neighbouring squares may be, too, so what is
        measured goes by positions.
        """
        corner = (self.position / (self.radius / 2**0.5)).floor().long()
        return corner.unique(dim=0, return_inverse=True)[1]
