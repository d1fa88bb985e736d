"""Image files below a folder, or named one by one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from doubtless.data.images import is_image, unread_kind
from doubtless.data.streams.records import ImageRecord, is_text


@dataclass(frozen=True)
class FolderStream:
    """Image files below a folder, sorted by path; files of other kinds among them are bad ones, with the reason."""

    root: Path
    files: tuple[str, ...]
    """Paths below the root, with / between folders."""

    @classmethod
    def open(cls, root: Path) -> FolderStream:
        """Lists the images below a folder."""
        return cls(root.absolute(), tuple(sorted(files_below(root, _among_pictures))))

    @property
    def name(self) -> str:
        """Where they come from."""
        return str(self.root)

    @property
    def images(self) -> int:
        """How many of the files are images, by their names."""
        return sum(map(is_image, self.files))

    def __len__(self) -> int:
        return len(self.files)

    def ids(self) -> Iterator[str]:
        """All ids, in order, without reading an image."""
        return iter(self.files)

    def fingerprint(self) -> str:
        """Changes when the images do."""
        digest = hashlib.sha256()
        for file in self.files:
            stat = (self.root / file).stat()
            digest.update(os.fsencode(f"{file}:{stat.st_size}:{stat.st_mtime_ns}\n"))
        return digest.hexdigest()[:16]

    def slice(self, start: int, stop: int) -> FolderStream:
        """Images start … stop − 1 alone."""
        return replace(self, files=self.files[start:stop])

    def records(self) -> Iterator[ImageRecord]:
        """One by one, not yet decoded."""
        for file in self.files:
            path = self.root / file
            if not is_text(str(path)):
                readable = os.fsencode(file).decode("ascii", "backslashreplace")
                yield ImageRecord(readable, None, problem="its name is not UTF-8")
                continue
            label = file.split("/")[0] if "/" in file else None
            yield ImageRecord(file, path, label=label, path=str(path), problem=unread_kind(file))


def files_below(root: Path, wanted: Callable[[str], bool]) -> Iterator[str]:
    """Files below a folder by their names; hidden ones and links to folders are left out."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in files:
            if not file.startswith(".") and wanted(file):
                yield (Path(folder) / file).relative_to(root).as_posix()


def _among_pictures(name: str) -> bool:
    return is_image(name) or unread_kind(name) is not None
