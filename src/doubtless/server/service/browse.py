"""Looking through a gallery that is served: its items by pages, its labels, one item with its neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from doubtless.errors import InputError
from doubtless.gallery import Gallery, Item
from doubtless.gallery.listing import Considered, Page
from doubtless.server.service.errors import NotFoundError
from doubtless.server.service.items import Items

TRIED = 4
"""Items of a label of which one must have an image to be an example."""
MOST_TRIED = 100
"""Labels that are tried."""


class Browse:
    """What can be seen of a gallery's items; for any thread."""

    def __init__(self, gallery: Gallery, items: Items) -> None:
        self.gallery, self.items = gallery, items

    def page(
        self, *, where: Mapping[str, Any] | None, text: str | None, after: str | None, count: int
    ) -> Page:
        """Some items, in the order in which they came; `after` is the cursor that a page before has named."""
        row = -1
        if after is not None:
            if not (after.isascii() and after.isdigit() and len(after) < 19):
                raise InputError("The cursor in `after` is none that a page has named.")
            row = int(after)
        return self.gallery.page(where, text=text or "", after=row, count=count)

    def labels(self, text: str | None, most: int) -> tuple[list[tuple[str, int]], int]:
        """Labels that have a text in them, with their numbers, the most frequent first; and how many there are."""
        wanted, counts = (text or "").lower(), self.gallery.label_counts()
        found = [one for one in counts.items() if wanted in one[0].lower()]
        return found[:most], len(found)

    def about(self, id: str, k: int) -> Considered:
        """An item, and what the gallery would say of it were it not there."""
        self.items.get(id)
        return self.gallery.considered(id, k)

    def examples(self, most: int) -> list[Item]:
        """Items with an image, each of another label, frequent ones first; of any where there are no labels."""
        chosen: list[Item] = []
        labels: list[str | None] = []
        labels += list(self.gallery.label_counts())[:MOST_TRIED]
        for label in labels or [None]:
            some = self.gallery.page({"label": label}, count=TRIED if label is not None else TRIED * most)
            shown = [item for item in some.items if self.items.has_image(item.path)]
            chosen += shown[:1] if label is not None else shown[:most]
            if len(chosen) >= most:
                break
        return chosen[:most]

    def image_stamp(self, id: str) -> str:
        """Of an item's image file, by which it is known again; `NotFoundError` where there is none."""
        stamp = self.items.image_stamp(self.items.get(id).path)
        if stamp is None:
            raise NotFoundError("This item has no image that can be shown.")
        return stamp
