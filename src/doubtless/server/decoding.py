"""`Decoder`: threads that decode uploads, each for a limited time.

A thread cannot be stopped from outside. One that is over its time is given up: its request is told, another thread
takes its place, and it ends by itself at the next block it reads.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from torch import Tensor

from doubtless.server.errors import ImageError, OverloadedError
from doubtless.server.uploads import Limits, Picture, decode

GRACE = 0.5
"""Seconds beyond its limit until a thread is given up that has not stopped by itself."""
LOST = 8
"""Threads that may be given up at a time, per thread that works; then nothing is decoded until one ends."""
WAITING = 1024
"""Uploads that may wait; more are refused."""
LOOK = 0.1
"""Seconds between two looks at who is over its time."""


@dataclass(eq=False)
class _Job:
    data: bytes
    future: Future[Picture] = field(default_factory=Future)
    until: float = float("inf")


class Decoder:
    """Decodes and prepares uploads in `workers` threads.

    prepare   uint8 (3, H, W) → what the model takes; runs in the same thread, within the same time
    """

    def __init__(
        self, prepare: Callable[[Tensor], Tensor], limits: Limits | None = None, *, workers: int | None = None
    ) -> None:
        self.limits = limits or Limits()
        self.workers = workers or min(8, (os.cpu_count() or 1) + 1)
        self.lost = 0  # threads given up that still run
        self._prepare = prepare
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running: set[_Job] = set()
        self._pending = 0
        self._stop = threading.Event()
        for _ in range(self.workers):
            self._start_worker()
        threading.Thread(target=self._watch, name="doubtless-decode-watch", daemon=True).start()

    @property
    def pending(self) -> int:
        """Uploads that wait to be decoded or are being decoded."""
        return self._pending

    def submit(self, data: bytes) -> Future[Picture]:
        job = _Job(data)
        with self._lock:
            if self._stop.is_set():
                raise OverloadedError("the service is closed; it takes no more requests.")
            if self._pending >= WAITING or self.lost >= LOST * self.workers:
                raise OverloadedError("too many images are waiting to be decoded; try again later.")
            self._pending += 1
        self._queue.put(job)
        return job.future

    def close(self) -> None:
        """What was submitted is still decoded; the threads then end."""
        with self._lock:
            if self._stop.is_set():
                return
            self._stop.set()
        for _ in range(self.workers):
            self._queue.put(None)

    def _start_worker(self) -> None:
        threading.Thread(target=self._work, name="doubtless-decode", daemon=True).start()

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            with self._lock:
                job.until = time.monotonic() + self.limits.seconds + GRACE
                self._running.add(job)
            result = self._decoded(job.data)
            with self._lock:
                given_up = job not in self._running
                self._running.discard(job)
                self.lost -= given_up
            if given_up:
                return  # another thread has this one's place
            self._finish(job, result)

    def _decoded(self, data: bytes) -> Picture | Exception:
        try:
            picture = decode(data, self.limits)
            return replace(picture, pixels=self._prepare(picture.pixels))
        except Exception as error:
            return error

    def _finish(self, job: _Job, result: Picture | Exception) -> None:
        if job.future.set_running_or_notify_cancel():
            if isinstance(result, Exception):
                job.future.set_exception(result)
            else:
                job.future.set_result(result)
        with self._lock:  # after the result: it is on its way until it is there
            self._pending -= 1

    def _watch(self) -> None:
        while self._pending or not self._stop.is_set():
            time.sleep(LOOK)
            now = time.monotonic()
            with self._lock:
                late = [job for job in self._running if job.until < now]
                self._running.difference_update(late)
                self.lost += len(late)
            for job in late:
                self._start_worker()
                self._finish(
                    job, ImageError(f"the image took longer than {self.limits.seconds:g} s to decode.")
                )
