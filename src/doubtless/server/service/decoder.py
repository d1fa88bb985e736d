"""Images from outside, decoded within limits of bytes, pixels and time.

What they are is read from their first bytes, how large from their header, both before anything is decoded. Accepted
is what `doubtless.data.images` takes from strangers; of several frames, the first.

A thread of `Decoder` cannot be stopped from outside. One that is over its time is given up: its request is told,
another thread takes its place, and it ends by itself at the next block it reads.
"""

from __future__ import annotations

import io
import os
import queue
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from PIL import Image, UnidentifiedImageError
from torch import Tensor

from doubtless.data import image_tensor
from doubtless.data.images import MAX_PIXELS, is_heic, uploaded_kinds
from doubtless.errors import InputError
from doubtless.server.service.errors import (
    ImageError,
    LargeImageError,
    OverloadedError,
    UnsupportedImageError,
)

LONGEST = 100
"""How many times its shorter side an image may be long: made square, a line of pixels would become a large one."""


@dataclass(frozen=True)
class Limits:
    """What is accepted of one request.

    upload    bytes of a request's body
    pixels    of an image, as its header says
    seconds   to decode an image
    k         hits that a query may ask for
    """

    upload: int = 20 << 20
    pixels: int = MAX_PIXELS
    seconds: float = 10.0
    k: int = 100

    def __post_init__(self) -> None:
        if min(self.upload, self.pixels, self.k) < 1 or self.seconds <= 0:
            raise InputError(f"Limits must be positive, got {self}.")


@dataclass(frozen=True)
class Picture:
    """A decoded upload."""

    pixels: Tensor  # uint8 (C, H, W)
    media_type: str
    suffix: str


class DeadlineReader(io.BytesIO):
    """Bytes that can be read until a moment; decoders come back for more every 64 kB."""

    def __init__(self, data: bytes, until: float) -> None:
        super().__init__(data)
        self.until = until

    def read(self, size: int | None = -1, /) -> bytes:
        """As `io.BytesIO`, until the moment has come."""
        if time.monotonic() > self.until:
            raise TimeoutError
        return super().read(size)


def decode(data: bytes, limits: Limits) -> Picture:
    """An upload as pixels, or the reason why not."""
    if len(data) > limits.upload:
        raise LargeImageError(f"The image has {len(data):,} bytes; at most {limits.upload:,} are accepted.")
    late = ImageError(f"The image took longer than {limits.seconds:g} s to decode.")
    accepted = uploaded_kinds()
    try:
        with Image.open(
            DeadlineReader(data, time.monotonic() + limits.seconds), formats=tuple(accepted)
        ) as image:
            kind = accepted[str(image.format)]
            refuse_shape(*image.size, limits)
            if image.format == "AVIF":
                refuse_tiles(data)
            return Picture(image_tensor(image), kind.media_type, kind.suffixes[0])
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise _unsupported(data) from None
    except Image.DecompressionBombError:
        raise LargeImageError(
            f"The image has more than the {limits.pixels:,} pixels that are accepted."
        ) from None
    except TimeoutError:
        raise late from None
    except Exception as error:  # decoders of damaged files raise whatever they stumble over
        raise ImageError("The image is damaged and cannot be decoded.") from error


def accepted_names() -> list[str]:
    """What people call the kinds that are accepted.

    >>> accepted_names()[:3]
    ['JPEG', 'PNG', 'WebP']
    """
    return [kind.name for kind in uploaded_kinds().values()]


def accepted_files() -> list[str]:
    """The same for whoever chooses a file: media types, and ends of names.

    >>> accepted_files()[:3]
    ['image/jpeg', '.jpg', '.jpeg']
    """
    return [end for kind in uploaded_kinds().values() for end in (kind.media_type, *kind.suffixes)]


def _unsupported(data: bytes) -> UnsupportedImageError:
    if is_heic(data) and "HEIF" not in uploaded_kinds():
        return UnsupportedImageError(
            "The image is HEIC, which this server cannot read: it lacks the extra heic. Send it as JPEG."
        )
    return UnsupportedImageError(f"This is no image of an accepted type: {', '.join(accepted_names())}.")


def sniffed(data: bytes) -> str | None:
    """The media type that the first bytes say, where it is an accepted one."""
    try:
        with Image.open(io.BytesIO(data), formats=tuple(uploaded_kinds())) as image:
            return uploaded_kinds()[str(image.format)].media_type
    except Exception:  # whatever Pillow says: nothing to show
        return None


def refuse_shape(width: int, height: int, limits: Limits) -> None:
    """Refuses what is too large, or too long and thin, to be prepared for a model."""
    if width * height > limits.pixels:
        raise LargeImageError(
            f"The image has {width}×{height} pixels; at most {limits.pixels:,} are accepted."
        )
    if max(width, height) > LONGEST * min(width, height):
        raise ImageError(
            f"The image has {width}×{height} pixels; one side may be {LONGEST} times the other at most."
        )


TILED = re.compile(rb"infe(?:\x02.{5}|\x03.{7})..grid", re.DOTALL)
"""Where an AVIF file lists an item that is put together of others."""


def refuse_tiles(data: bytes) -> None:
    """Refuses AVIF of many tiles: each may be larger than the header says, and all are decoded in one call.

    libavif compares a frame with the header when it has decoded it, and nothing else of the process runs meanwhile.
    """
    if TILED.search(data):
        raise ImageError("The image is an AVIF put together of tiles; only AVIF of one piece is accepted.")


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
        """The picture, when it is decoded; refused where too many wait."""
        job = _Job(data)
        with self._lock:
            if self._stop.is_set():
                raise OverloadedError("The service is closed; it takes no more requests.")
            if self._pending >= WAITING or self.lost >= LOST * self.workers:
                raise OverloadedError("Too many images are waiting to be decoded; try again later.")
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
                    job, ImageError(f"The image took longer than {self.limits.seconds:g} s to decode.")
                )
