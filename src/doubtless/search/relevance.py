"""What a right answer is: an item of the query's label, or one taken within so many metres of the query.

"Within 25 m" is not transitive, so places cannot be given labels: positions take the labels' place, wherever
something asks which items are right, or how many there are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.errors import InputError

RADIUS = 25.0
CHUNK = 512


@dataclass(frozen=True)
class Positions:
    """Where n items were taken, in metres of one plane; items up to `radius` apart are right for each other.

    >>> taken = Positions(torch.tensor([[0.0, 0.0], [20.0, 0.0], [40.0, 0.0]]))
    >>> count_right(taken, taken, leave_one_out=True).tolist()
    [1, 2, 1]
    """

    metres: Tensor  # (n, 2)
    radius: float = RADIUS

    def __post_init__(self) -> None:
        shape = tuple(self.metres.shape)
        if len(shape) != 2 or shape[1] != 2 or not bool(torch.isfinite(self.metres).all()):
            raise InputError(f"Positions must be finite metres of shape (n, 2), got shape {shape}.")
        if not self.radius > 0:
            raise InputError(f"The radius within which items are right must be above 0 m, got {self.radius}.")

    def __len__(self) -> int:
        return len(self.metres)

    @property
    def device(self) -> torch.device:
        """Where the positions lie."""
        return self.metres.device

    def to(self, device: torch.device | str) -> Positions:
        """The same positions on another device."""
        return Positions(self.metres.to(device), self.radius)


Truth = Tensor | Positions
"""What says which items are right: labels (n,), or positions."""


def within(first: Tensor, second: Tensor, *, radius: float) -> Tensor:
    """Whether positions (…, 2) lie within the radius of each other, the radius itself included."""
    return (first.double() - second.double()).norm(dim=-1) <= radius


def is_right(truth: Truth, gallery: Truth, *, rows: Tensor, found: Tensor) -> Tensor:
    """Whether gallery items `found` (c, …) are right for the queries `rows` (c,)."""
    shape = (-1, *[1] * (found.dim() - 1))
    if isinstance(truth, Positions):
        assert isinstance(gallery, Positions)
        queries = truth.metres[rows].view(*shape, 2)
        return within(gallery.metres[found], queries, radius=truth.radius)
    assert isinstance(gallery, Tensor)
    return gallery[found] == truth[rows].view(shape)


def count_right(truth: Truth, gallery: Truth, *, leave_one_out: bool) -> Tensor:
    """R of each query (n,): gallery items that are right for it, itself not counted in leave-one-out."""
    if isinstance(truth, Positions):
        assert isinstance(gallery, Positions)
        return _count_within(truth.metres, gallery.metres, truth.radius) - int(leave_one_out)
    assert isinstance(gallery, Tensor)
    return count_positives(truth, gallery, leave_one_out=leave_one_out)


def count_positives(labels: Tensor, gallery_labels: Tensor, *, leave_one_out: bool) -> Tensor:
    """R of each query (n,): gallery items of its label, itself not counted in leave-one-out.

    >>> count_positives(torch.tensor([7, 7, 9]), torch.tensor([7, 7, 9]), leave_one_out=True).tolist()
    [1, 1, 0]
    """
    known, counts = gallery_labels.unique(return_counts=True)
    place = torch.searchsorted(known, labels.contiguous()).clamp_max(len(known) - 1)
    positives = torch.where(known[place] == labels, counts[place], 0)
    return positives - 1 if leave_one_out else positives


def _count_within(positions: Tensor, gallery: Tensor, radius: float) -> Tensor:
    """Gallery items within the radius of each position (n,): strip by strip, never all pairs."""
    gallery = gallery[gallery[:, 0].argsort()]
    easting = gallery[:, 0].contiguous()
    order = positions[:, 0].argsort()
    counts = torch.empty(len(positions), dtype=torch.long, device=positions.device)
    for rows in order.split(CHUNK):
        chunk = positions[rows]
        ends = torch.stack([chunk[0, 0] - radius, chunk[-1, 0] + radius])
        # A strip a little too wide costs nothing; `within` decides.
        low = int(torch.searchsorted(easting, ends[:1] - 1))
        high = int(torch.searchsorted(easting, ends[1:] + 1, right=True))
        counts[rows] = within(chunk[:, None], gallery[None, low:high], radius=radius).sum(1)
    return counts
