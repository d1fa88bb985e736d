"""What is kept of a calibration to tell later what became of the gallery: queries, and a sketch of items."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from doubtless.calibration.kept_searches import Items, KeptSearches

ATTACHMENT = "kept"


@dataclass(frozen=True, eq=False)
class Change:
    """What became of a gallery, or a part of it, since somebody looked."""

    then: int
    """Items there were."""
    now: int
    new: int
    """Items that came; one that got another label or embedding is new."""
    new_labels: int
    """Labels that no item carried."""
    gone_labels: int

    @property
    def gone(self) -> int:
        """Items that went."""
        return self.then - (self.now - self.new)

    @property
    def share(self) -> float:
        """How much of it is another one: the share of items that are new or, if larger, of those that went.

        >>> Change(then=100, now=110, new=20, new_labels=0, gone_labels=0).share
        0.18181818181818182
        """
        return max(self.new / max(1, self.now), self.gone / max(1, self.then))

    def sentence(self) -> str:
        """In words.

        >>> Change(then=100, now=110, new=20, new_labels=2, gone_labels=0).sentence()
        'Since it was calibrated 20 of its 110 items are new and 10 of 100 went (2 new labels)'
        """
        labels = [
            f"{count:,} {what} label{'' if count == 1 else 's'}"
            for count, what in ((self.new_labels, "new"), (self.gone_labels, "vanished"))
            if count
        ]
        named = f" ({', '.join(labels)})" if labels else ""
        return (
            f"Since it was calibrated {self.new:,} of its {self.now:,} items are new and {self.gone:,} of "
            f"{self.then:,} went{named}"
        )


@dataclass(frozen=True, eq=False)
class Sketch:
    """What a gallery was: how many items, how many of each label, and up to which row."""

    items: int
    last: int
    """The highest row; rows rise and are never used again, so higher ones are new."""
    labels: Tensor
    """(L,) items per label code."""

    @classmethod
    def of(cls, items: Items) -> Sketch:
        """Of these items."""
        last = int(items.row[-1]) if len(items) else -1
        return cls(len(items), last, items.label[items.label >= 0].bincount())

    def change(self, items: Items) -> Change:
        """What became of it."""
        labels = items.label[items.label >= 0].bincount(minlength=len(self.labels))
        before = torch.nn.functional.pad(self.labels, (0, len(labels) - len(self.labels)))
        return Change(
            self.items,
            len(items),
            int((items.row > self.last).sum()),
            int(((labels > 0) & (before == 0)).sum()),
            int(((labels == 0) & (before > 0)).sum()),
        )


@dataclass(frozen=True, eq=False)
class Kept:
    """Calibration queries with what they found, and what they found it in."""

    searches: KeptSearches
    sketch: Sketch

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON for `Index.attach`."""
        sketch = self.sketch
        return {**self.searches.tensors(), "sketch.labels": sketch.labels}, {
            "items": sketch.items,
            "last": sketch.last,
        }

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> Kept:
        """What `state` gave."""
        sketch = Sketch(record["items"], record["last"], tensors["sketch.labels"])
        return cls(KeptSearches.from_tensors(tensors), sketch)
