"""`Shelf`: copies of images that came with items over HTTP, in the folder `images` of the index.

A file's name is a hash of the item's id and the image's bytes: made here, never by a request. While an item is
being stored or removed, a note with its id lies in `images/pending`; what a killed process left half done is found
by these notes and cleared away when the index is next opened for writing.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from doubtless.files import write_bytes, write_text

FOLDER = "images"
PENDING = "pending"


class Shelf:
    """Images of an index, each for one item.

    >>> shelf = Shelf(Path("gallery"))
    >>> shelf.place("shoe", b"...", ".png").startswith("images/")
    True
    """

    def __init__(self, index: Path) -> None:
        self.index = index

    def place(self, id: str, data: bytes, suffix: str) -> str:
        """Where an item's image is kept, relative to the index: the path that the item has there."""
        digest = hashlib.sha256(b"%d\0" % len(id.encode()) + id.encode() + data).hexdigest()
        return f"{FOLDER}/{digest[:2]}/{digest}{suffix}"

    def holds(self, path: str | None) -> bool:
        """Whether an item's path is a place of this shelf."""
        return path is not None and path.startswith(f"{FOLDER}/")

    def file(self, place: str) -> Path:
        return self.index / place

    def write(self, place: str, data: bytes) -> None:
        """Durable when it returns."""
        write_bytes(self.file(place), data)

    @contextlib.contextmanager
    def changing(self, place: str, id: str, stored: Callable[[str], str | None]) -> Iterator[None]:
        """Around storing or removing an item: afterwards, and also after an error, the file is there exactly if
        the index has the item with it. `stored`: id → the item's path."""
        note = self.index / FOLDER / PENDING / Path(place).name
        write_text(note, f"{place}\n{id}")
        try:
            yield
        finally:
            self._settle(place, id, stored)
            note.unlink(missing_ok=True)

    def recover(self, stored: Callable[[str], str | None]) -> int:
        """Clears away what a killed process has left; how many changes it was at."""
        notes = [*(self.index / FOLDER / PENDING).glob("*.*")]
        for note in notes:
            place, _, id = note.read_text().partition("\n")
            if place == f"{FOLDER}/{note.name[:2]}/{note.name}":  # a note cut short names nothing
                self._settle(place, id, stored)
            note.unlink(missing_ok=True)
        return len(notes)

    def _settle(self, place: str, id: str, stored: Callable[[str], str | None]) -> None:
        if stored(id) != place:
            self.file(place).unlink(missing_ok=True)
