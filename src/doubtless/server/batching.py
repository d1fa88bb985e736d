"""`Batcher`: what many threads ask for at once becomes one call.

A batch begins as soon as the worker is free and something waits. It is filled with what waits already and, for at
most `wait` seconds, with what is known to be on its way; someone who asks alone waits for nobody.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Generic, TypeVar

from doubtless.errors import InputError
from doubtless.server.errors import OverloadedError

Asked = TypeVar("Asked")
Got = TypeVar("Got")

POLL = 0.001
"""Seconds between two looks at what is on its way."""


@dataclass(frozen=True)
class Batching:
    """How requests are put together.

    size    the most in a batch
    wait    the most seconds a batch waits for requests whose images are being decoded
    queue   requests that may wait; more are refused
    """

    size: int = 32
    wait: float = 0.005
    queue: int = 1024

    def __post_init__(self) -> None:
        if self.size < 1 or self.queue < 1 or not 0 <= self.wait <= 60:
            raise InputError(
                "batches need a size and a queue of at least 1 and a wait of 0 to 60 seconds, got "
                f"size {self.size}, queue {self.queue}, wait {self.wait}."
            )


class Batcher(Generic[Asked, Got]):
    """Calls `work` with lists of what was submitted, in one thread.

    >>> batcher = Batcher(lambda numbers: [2 * number for number in numbers])
    >>> batcher.submit(21).result()
    42
    >>> batcher.close()

    work     list → as many results; one that is an exception is raised where it was asked for
    coming   how many are on their way here
    """

    def __init__(
        self,
        work: Callable[[list[Asked]], Sequence[Got | Exception]],
        settings: Batching | None = None,
        *,
        coming: Callable[[], int] = lambda: 0,
    ) -> None:
        self.settings = settings or Batching()
        self.batches = 0  # calls of `work`
        self.items = 0  # what they were given, together
        self._work, self._coming = work, coming
        self._queue: queue.SimpleQueue[tuple[Asked, Future[Got]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # closing comes after all that was submitted
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="doubtless-batches", daemon=True)
        self._thread.start()

    def submit(self, asked: Asked) -> Future[Got]:
        """The result, when it is there."""
        future: Future[Got] = Future()
        with self._lock:
            if self._closed:
                raise OverloadedError("the service is closed; it takes no more requests.")
            if self._queue.qsize() >= self.settings.queue:
                raise OverloadedError(f"{self.settings.queue} requests are waiting already; try again later.")
            self._queue.put((asked, future))
        return future

    def close(self) -> None:
        """Finishes what was submitted, then stops. Closing twice is allowed."""
        with self._lock:
            if not self._closed:
                self._queue.put(None)
            self._closed = True
        self._thread.join()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, last = self._gathered(first)
            self._answer(batch)
            if last:
                return

    def _gathered(self, first: tuple[Asked, Future[Got]]) -> tuple[list[tuple[Asked, Future[Got]]], bool]:
        """A batch, and whether nothing comes after it."""
        batch, until = [first], time.monotonic() + self.settings.wait
        while len(batch) < self.settings.size:
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                if time.monotonic() >= until or not self._coming():
                    break
                time.sleep(POLL)
                continue
            if entry is None:
                return batch, True
            batch.append(entry)
        return batch, False

    def _answer(self, batch: list[tuple[Asked, Future[Got]]]) -> None:
        wanted = [entry for entry in batch if entry[1].set_running_or_notify_cancel()]
        if not wanted:
            return
        self.batches += 1
        self.items += len(wanted)
        try:
            results = self._work([asked for asked, _ in wanted])
        except Exception as error:  # whoever asked is told; the worker goes on
            results = [error] * len(wanted)
        for (_, future), result in zip(wanted, results, strict=True):
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
