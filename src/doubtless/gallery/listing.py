"""What a gallery holds, item by item: counted, listed, looked at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import torch

from doubtless.errors import InputError
from doubtless.gallery.answer import Answer
from doubtless.gallery.upkeep import Upkeep
from doubtless.index.filters import Where
from doubtless.index.items import Item, refuse_unknown


class Listing(Upkeep):
    """A gallery whose items can be looked through."""

    def items(self, where: Where | None = None, *, start: int = 0, count: int | None = None) -> list[Item]:
        """Items in the order in which they came, those for which a condition holds: `count` from number `start` on.

        >>> from doubtless import Embedding, Gallery
        >>> vectors = Embedding.point(torch.eye(3))
        >>> with Gallery.create("shop", embedding=vectors, labels=["leek", "garlic", "leek"]) as shop:
        ...     [item.id for item in shop.items({"label": "leek"})], shop.label_counts()
        (['0', '2'], {'leek': 2, 'garlic': 1})
        """
        if start < 0 or (count is not None and count < 0):
            raise InputError(f"Items are listed from 0 on, and 0 or more of them, got {start} and {count}.")
        rows = self.index.rows_where(where or {})[start:]
        chosen = rows if count is None else rows[:count]
        return [item for some in chosen.split(LISTED) if len(some) for item in self.index.items(some)]

    def count(self, where: Where | None = None) -> int:
        """How many items there are, or for how many of them a condition holds."""
        return len(self.index.rows_where(where or {}))

    def label_counts(self) -> dict[str, int]:
        """Labels that items carry now, the most frequent first, with their numbers."""
        names, codes = self.index.label_names, self.index.labels.tolist()
        return dict(Counter(names[code] for code in codes if code >= 0).most_common())

    def neighbours(self, id: str, k: int = 5) -> Answer:
        """What the gallery thinks of one of its items among all others: its nearest, and whether they agree."""
        rows = self.index.rows_of([id])
        refuse_unknown([id], rows)
        return self.ask_items(torch.tensor([rows[id]]), k)[0]

    def walk(self, where: Where | None = None) -> Iterator[Item]:
        """All items, or those for which a condition holds, some of them in memory at a time."""
        for some in self.index.rows_where(where or {}).split(LISTED):
            if len(some):
                yield from self.index.items(some)


LISTED = 10_000
"""Items that are read together."""
