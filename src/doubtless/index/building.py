"""`Builder`: makes the approximate index of a large gallery in the background, while it is searched exactly.

It works on the files of the cache as they are when it begins, of which the first rows never change, and takes the
index's locks only to begin and to hand over. A gallery that is closed does not wait for it: what is not done is
begun again by the next that writes for a while, or by `compact`, which builds while it is waited for.
"""

from __future__ import annotations

import contextlib
import threading

from doubtless.errors import FileError
from doubtless.index.database.lock import Gate
from doubtless.index.proposals import Approximate, Source
from doubtless.index.vector_cache import VectorCache

PATIENCE = 5.0
"""Seconds after which a writer is taken to stay: one that removes an item and goes begins nothing."""
PIECE = 2048
"""Vectors added at a time; so long a gallery that is being closed waits."""


class Builder:
    """One thread at most, of one index that is open for writing and whose kind is for the library to choose."""

    def __init__(self, cache: VectorCache, mutex: threading.RLock, gate: Gate) -> None:
        self._cache, self._mutex, self._gate = cache, mutex, gate
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def consider(self) -> None:
        """Begins where that is worth it and nobody is at it; called when an index is opened and after changes."""
        busy = self._thread is not None and self._thread.is_alive()
        if busy or self._stop.is_set() or not self._is_wanted():
            return
        self._thread = threading.Thread(target=self._work, name="doubtless-build", daemon=True)
        self._thread.start()

    def wait(self, timeout: float | None = None) -> None:
        """Until nothing is being built."""
        if self._thread is not None:
            self._thread.join(timeout)

    def stop(self) -> None:
        """Gives up what is being built; whoever calls holds none of the index's locks."""
        self._stop.set()
        self.wait()

    def _is_wanted(self) -> bool:
        return self._cache.settings.kind == "auto" and self._cache.next_step() in ("build", "extend")

    def _work(self) -> None:
        if self._stop.wait(PATIENCE):
            return
        with self._mutex:
            if self._stop.is_set() or not self._is_wanted():
                return
            generation, source, old = self._cache.generation, self._cache.source(), self._cache.extendable()
        made = self._made(source, old)
        with self._mutex:
            if made is None or self._stop.is_set() or self._cache.generation != generation:
                return  # closed, or compacted meanwhile
            with (
                self._gate.alone(),
                contextlib.suppress(OSError, FileError),
            ):  # a full disk: exact, as before
                self._cache.take(made)

    def _made(self, source: Source, old: Approximate | None) -> Approximate | None:
        import faiss

        faiss.omp_set_num_threads(1)  # of this thread: searches go on beside it
        start = old or Approximate.empty(source)
        return start.extended(source, piece=PIECE, stop=self._stop.is_set)
