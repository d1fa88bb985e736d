"""What a gallery holds, item by item: counted, listed, looked at."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from doubtless.errors import InputError
from doubtless.gallery.answer import Answer
from doubtless.gallery.upkeep import Upkeep
from doubtless.index.base import Index
from doubtless.index.filters import Where
from doubtless.index.items import Item, item_of, refuse_unknown


@dataclass(frozen=True)
class Page:
    """Some items of a list, how many are in it, and where the next ones begin; None: these were the last."""

    items: list[Item]
    total: int
    following: int | None


@dataclass(frozen=True)
class Considered:
    """An item, what the gallery says of it were it not there, and how likely its own label is then.

    `answer` is None where there is no other item, `own` where labels were not calibrated or it has none.
    """

    item: Item
    answer: Answer | None
    own: float | None


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
        names, codes = self.index.label_names, self.index.labels
        counts = codes[codes >= 0].bincount(minlength=len(names))
        order = counts.argsort(descending=True, stable=True).tolist()
        return {names[code]: int(counts[code]) for code in order if counts[code] > 0}

    def page(self, where: Where | None = None, *, text: str = "", after: int = -1, count: int = 50) -> Page:
        """Items in the order in which they came, `count` of those after a place that a page before has named.

        text   only items whose id, label or values of metadata have it in them, in capitals or not

        >>> from doubtless import Embedding, Gallery
        >>> names = ["leek", "garlic", "black garlic"]
        >>> with Gallery.create("market", embedding=Embedding.point(torch.eye(3)), labels=names) as shop:
        ...     first = shop.page(text="GARLIC", count=1)
        ...     [item.id for item in first.items], first.total
        ...     [item.id for item in shop.page(text="GARLIC", after=first.following).items]
        (['1'], 2)
        ['2']
        """
        if count < 1:
            raise InputError(f"A page has at least one item, got {count}.")
        rows = self._lists.rows(self.index, where or {}, text)
        start = int(torch.searchsorted(rows, after, right=True))
        chosen = rows[start : start + count]
        names, fields = self.index.described(chosen.tolist())
        items = [item_of(fields[row], names) for row in chosen.tolist() if row in fields]
        more = start + len(chosen) < len(rows)
        return Page(items, len(rows), int(chosen[-1]) if more else None)

    @cached_property
    def _lists(self) -> Lists:
        return Lists()

    def considered(self, id: str, k: int = 5) -> Considered:
        """One of its items, and what the gallery thinks of it among all others."""
        rows = self.index.rows_of([id])
        refuse_unknown([id], rows)
        names, fields = self.index.described([rows[id]])
        refuse_unknown([id], [field.id for field in fields.values()])  # gone a moment ago
        field = fields[rows[id]]
        if len(self) < 2:
            return Considered(item_of(field, names), None, None)
        answers = self.ask_items(torch.tensor([rows[id]]), k)
        own = None
        if answers.distribution is not None and field.label is not None:
            own = float(answers.distribution.of(torch.tensor([[field.label]])))
        return Considered(item_of(field, names), answers[0], own)

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
MOST_LISTS = 8
"""Lists whose rows are remembered."""


class Lists:
    """Rows of items that were listed lately, so that turning a page looks nothing up again. For any thread."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], tuple[tuple[int, ...], Tensor]] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, index: Index, where: Where, text: str) -> Tensor:
        """Of the items for which a condition holds and that mention a text, rising (m,)."""
        if not where and not text:
            return index.rows
        key, version = (json.dumps(where, sort_keys=True, default=list), text), index.version
        with self._lock:
            before = self._known.get(key)
            if before is not None and before[0] == version:
                self._known.move_to_end(key)
                return before[1]
        rows = index.rows_where(where) if where else index.rows
        if text:
            rows = rows[torch.isin(rows, index.rows_with(text))]
        with self._lock:
            self._known[key] = version, rows
            self._known.move_to_end(key)
            while len(self._known) > MOST_LISTS:
                self._known.popitem(last=False)
        return rows
