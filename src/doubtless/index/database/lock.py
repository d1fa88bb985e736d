"""Who may write: one process per index (a lock on a file), and inside a process many searches or one change."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from doubtless.errors import StoreError

LENGTH = 32
"""Bytes of the process number: always as many, so that writing it anew takes no more of the disk."""


class WriterLock:
    """A lock on a file that the operating system gives back when its process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        try:
            self._handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise StoreError(
                f"The index {path.parent} cannot be opened for writing: {error.strerror or error}; "
                "open it without writable=True to search it."
            ) from error
        try:
            _lock(self._handle)
        except OSError:
            holder = os.pread(self._handle, LENGTH, 0).decode(errors="replace").strip() or "unknown"
            os.close(self._handle)
            raise StoreError(
                f"The index {path.parent} has a writer already (process {holder}); one process writes at a "
                "time, any number may read. Wait until it is done, or open the index without writable=True."
            ) from None
        with contextlib.suppress(OSError):  # a full disk: the lock holds, and says of whom another time
            os.pwrite(self._handle, f"{os.getpid()}".ljust(LENGTH - 1).encode() + b"\n", 0)

    def release(self) -> None:
        """Closes the file; a forked child that does so leaves its parent's lock alone."""
        os.close(self._handle)


def _lock(handle: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        os.lseek(handle, 1024, os.SEEK_SET)  # past the process number, which others may read
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        return
    import fcntl

    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


class Gate:
    """Many threads search at once; one that changes what they search waits for them, and they for it.

    >>> gate = Gate()
    >>> with gate.shared():
    ...     pass
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._searching = 0
        self._changing = 0  # waiting for its turn, or at it: nobody new comes in

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Inside, nobody changes what is searched."""
        with self._condition:
            self._condition.wait_for(lambda: not self._changing)
            self._searching += 1
        try:
            yield
        finally:
            with self._condition:
                self._searching -= 1
                self._condition.notify_all()

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Callers hold the index's mutex: one at a time comes here."""
        with self._condition:
            self._changing += 1
            self._condition.wait_for(lambda: not self._searching)
        try:
            yield
        finally:
            with self._condition:
                self._changing -= 1
                self._condition.notify_all()
