"""`Reserve`: a file that keeps some of the disk, so that items can still be removed when the rest of it is full.

Whoever removes writes first: SQLite notes in its log what goes, and before the log can be used again what lies in
it must fit into the database. Without a reserve a full disk would stay full.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

NAME = "reserve"
PIECE = 512 << 10
"""Bytes that a removal of some items needs: pages of the log, and what SQLite shares beside it."""


class Reserve:
    """The file of one index; only its writer touches it."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / NAME

    def keep(self, growth: int) -> None:
        """Takes what a removal needs beside the bytes by which the database will still grow.

        Where there is not twice as much, or files cannot be given room, there is none.
        """
        wanted = PIECE * (1 + -(-growth // PIECE))
        with contextlib.suppress(OSError, AttributeError):  # AttributeError: Windows
            if self._size() >= wanted or shutil.disk_usage(self._file.parent).free < 2 * wanted:
                return
            handle = os.open(self._file, os.O_WRONLY | os.O_CREAT, 0o666)
            try:
                os.posix_fallocate(handle, 0, wanted)
            finally:
                os.close(handle)

    def give(self) -> bool:
        """Gives it to whoever comes first; whether there was any."""
        had = self._size() > 0
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)
        return had

    def _size(self) -> int:
        try:
            return self._file.stat().st_size
        except OSError:
            return 0
