"""`Witness`: a line beside the database that says how far it had come, so that one that lost its log is noticed.

What was written last lies in the log (`index.sqlite-wal`) until SQLite moves it into the database. A copy without
it, or one whose log is damaged, opens without a word and is short of what was acknowledged. The writer notes the
version after every change; a database that is older than its note is not opened.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from doubtless.errors import StoreError

NAME = "last-change"
LENGTH = 64


class Witness:
    """The note of one index."""

    def __init__(self, folder: Path, identity: str) -> None:
        self._file, self._identity = folder / NAME, identity

    def note(self, version: int) -> None:
        """After a change is on the disk; where it cannot be written an older one stays, which does no harm."""
        with contextlib.suppress(OSError):
            handle = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                os.pwrite(handle, f"{self._identity} {version}".ljust(LENGTH - 1).encode() + b"\n", 0)
            finally:
                os.close(handle)

    def version(self) -> int:
        """What was noted; −1 where that cannot be read, or is of another index."""
        try:
            identity, version = self._file.read_text().split()
            return int(version) if identity == self._identity else -1
        except (OSError, ValueError):
            return -1


def refuse_older(folder: Path, noted: int, version: int) -> None:
    """`noted` was read before `version`: so a writer that is at it disturbs nobody."""
    if noted > version:
        raise StoreError(
            f"The database of the index {folder} is older than it was: change {noted:,} was acknowledged, and it "
            f"has come to {version:,}. Its log, index.sqlite-wal, was not copied with it or is damaged. Copy it "
            f"again (doubtless backup does so beside a writer), or, to go on with what there is, delete "
            f"{folder / NAME}."
        )
