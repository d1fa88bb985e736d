"""Storing, removing and showing single items of a gallery that is served, with copies of their images.

The copies lie in the folder `images` of the index (`Shelf`). A file's name is a hash of the item's id and the
image's bytes: made here, never by a request. While an item is being stored or removed, a note with its id
lies in `images/pending`; what a killed process left half done is found by these notes and cleared away when
the index is next opened for writing.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from doubtless.embedding import Embedding
from doubtless.errors import DiskFullError
from doubtless.files import write_bytes, write_text
from doubtless.gallery import Gallery, Item
from doubtless.server.service.decoder import sniffed
from doubtless.server.service.errors import ConflictError, NotFoundError, ReadOnlyError


@dataclass(frozen=True)
class StoredImage:
    """An item's image as it lies on the disk."""

    data: bytes
    media_type: str


class Items:
    """The items of an index; changes come one after the other.

    largest      bytes of an image that is shown
    image_root   if given, only images below this folder are shown, and those kept in the index itself
    """

    def __init__(
        self, gallery: Gallery, *, read_only: bool, largest: int, image_root: Path | None = None
    ) -> None:
        self.gallery, self.read_only, self.largest = gallery, read_only, largest
        self.image_root = None if image_root is None else os.path.realpath(image_root)
        self.folder = gallery.folder
        self._place = str(self.folder)
        self.shelf = Shelf(self.folder)
        self.writing = threading.Lock()
        if not read_only:
            self.shelf.recover(self._path_of)

    def get(self, id: str) -> Item:
        """What is known of an item; `NotFoundError` where there is none."""
        item = self.gallery.item(id)
        if item is None:
            raise NotFoundError("There is no item of this id.")
        return item

    def add(
        self,
        id: str,
        embedding: Embedding,
        *,
        label: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        image: bytes | None = None,
        suffix: str = "",
    ) -> None:
        """Stores one item; it, and the copy of its image in the index, are durable when this returns."""
        self.refuse_read_only()
        with self.writing:
            if self.gallery.item(id) is not None:
                raise ConflictError(
                    "There is an item of this id already; remove it first, or choose another id."
                )
            if image is None:
                self.gallery.add(embedding=embedding, ids=[id], labels=[label], metadata=[metadata])
                return
            place = self.shelf.place(id, image, suffix)
            with self.shelf.changing(place, id, self._path_of):
                self.shelf.write(place, image)
                self.gallery.add(
                    embedding=embedding, ids=[id], labels=[label], paths=[place], metadata=[metadata]
                )

    def remove(self, ids: Sequence[str]) -> None:
        """Takes items out one by one, and the images that were stored with them; no other file is touched."""
        self.refuse_read_only()
        with self.writing:
            for id in ids:
                try:
                    self._remove(id)
                except DiskFullError:  # no room for the note
                    if not self.gallery.make_room():
                        raise
                    self._remove(id)

    def relabel(self, id: str, label: str | None) -> None:
        """Says what an item shows; that it is what is stored already is remembered, and not asked for again."""
        self.refuse_read_only()
        with self.writing:
            if label is not None and self.get(id).label == label:
                self.gallery.judgements.check(f"item:{id}", label)
            else:
                self.get(id)
                self.gallery.relabel([id], label)

    def has_image(self, path: str | None) -> bool:
        """Whether an item of this path has a file that may be shown; nothing of it is read."""
        return self.image_stamp(path) is not None

    def image_stamp(self, path: str | None) -> str | None:
        """Another word for every file, and for every version of it; None where there is none to show."""
        file = None if path is None else self._image_file(path)
        if file is None:
            return None
        try:
            found = os.stat(file)
        except OSError:
            return None
        if not stat.S_ISREG(found.st_mode) or found.st_size > self.largest:
            return None
        told = f"{file}\0{found.st_mtime_ns}\0{found.st_size}"
        return hashlib.sha256(told.encode(errors="surrogateescape")).hexdigest()[:32]

    def image(self, id: str) -> StoredImage:
        """The image of an item, if it is one of an accepted type that may be shown."""
        path = self.get(id).path
        file = None if path is None or not self.has_image(path) else self._image_file(path)
        nothing = NotFoundError("This item has no image that can be shown.")
        try:
            if file is None:
                raise nothing
            with open(file, "rb") as opened:
                data = opened.read()
        except OSError:
            raise nothing from None
        media_type = sniffed(data)
        if media_type is None:
            raise nothing
        return StoredImage(data, media_type)

    def refuse_read_only(self) -> None:
        """Refuses changes where nothing may be changed."""
        if self.read_only:
            raise ReadOnlyError("This service is read-only.")

    def _remove(self, id: str) -> None:
        path = self.get(id).path
        if path is None or not self.shelf.owns(path):
            self.gallery.remove([id])
            return
        with self.shelf.changing(path, id, self._path_of):
            self.gallery.remove([id])

    def _path_of(self, id: str) -> str | None:
        item = self.gallery.item(id)
        return None if item is None else item.path

    def _image_file(self, path: str) -> str | None:
        """Where an item's path, which the index knows, leads; None where it may not be followed.

        Every hit of every search comes here. Words and not `Path`, which keeps each part of every path in a table
        of Python's: it is made anew, 8 MB at a time, as they come and go.
        """
        if self.shelf.holds(path):
            root = os.path.realpath(self._place)
        elif self.image_root is not None:
            root = self.image_root
        else:  # as whoever made the index recorded it
            return path if os.path.isabs(path) else None
        found = os.path.realpath(os.path.join(root, path))
        return found if found.startswith(root.rstrip(os.sep) + os.sep) else None


FOLDER = "images"
PENDING = "pending"
PLACE = re.compile(rf"{FOLDER}/([0-9a-f]{{2}})/([0-9a-f]{{64}})(?:\.[a-z0-9]+)?")
"""What `Shelf.place` makes."""


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

    def owns(self, path: str) -> bool:
        """Whether a file is one that the shelf has put there: whoever made the index chose its items' paths."""
        match = PLACE.fullmatch(path)
        return match is not None and match[2].startswith(match[1]) and self._is_inside(path)

    def _is_inside(self, place: str) -> bool:
        """Whether no link on the way leads elsewhere."""
        return Path(os.path.realpath(self.file(place))) == self.index.resolve() / place

    def file(self, place: str) -> Path:
        """The file at a place."""
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
        if stored(id) != place and self.owns(place):
            self.file(place).unlink(missing_ok=True)
