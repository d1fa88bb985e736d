"""Images from outside, decoded within limits of bytes, pixels and time.

What they are is read from their first bytes, how large from their header, both before anything is decoded. Accepted
is what `doubtless.data.images` takes from strangers; of several frames, the first.

`Decoder` decodes in other processes (`decode_worker`): one that is over its time, or that takes more memory than
its picture says it needs, is ended. `decode` does the same in this one, for whoever has a picture of its own.
"""

from __future__ import annotations

import bisect
import io
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from doubtless.data import image_tensor
from doubtless.data.images import is_heic, uploaded_kinds
from doubtless.errors import InputError
from doubtless.server.service.errors import (
    ImageError,
    LargeImageError,
    OverloadedError,
    UnsupportedImageError,
)
from doubtless.server.service.headers import TILED, declared_size
from doubtless.server.service.workers import DecodingProcess, yield_to_others

LONGEST = 100
"""How many times its shorter side an image may be long: made square, a line of pixels would become a large one."""


@dataclass(frozen=True)
class Limits:
    """What is accepted of one request, and of all together.

    upload     bytes of a request's body
    pixels     of an image, as its header says
    seconds    to decode an image
    k          hits that a query may ask for
    together   pixels of images that are decoded at the same time; an image alone is always decoded
    """

    upload: int = 20 << 20
    pixels: int = 50_000_000
    seconds: float = 10.0
    k: int = 100
    together: int = 52_000_000

    def __post_init__(self) -> None:
        if min(self.upload, self.pixels, self.k, self.together) < 1 or self.seconds <= 0:
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
    size, limits = declared_size(data), limits_for(data, limits)
    if size is not None:
        refuse_shape(*size, limits)
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


def limits_for(data: bytes, limits: Limits) -> Limits:
    """Of WebP and AVIF half as many pixels: their decoders keep copies of a picture beside it."""
    greedy = data[8:12] in (b"WEBP", b"avif", b"avis")
    return replace(limits, pixels=max(1, limits.pixels // 2)) if greedy else limits


TILES = "The image is an AVIF put together of tiles; only AVIF of one piece is accepted."


def refuse_tiles(data: bytes) -> None:
    """Refuses AVIF of many tiles: each may be larger than the header says, and all are decoded in one call.

    libavif compares a frame with the header when it has decoded it, and nothing else of the process runs meanwhile.
    """
    if TILED.search(data):
        raise ImageError(TILES)


WAITING, WAITING_BYTES = 1024, 256 << 20
"""Uploads that may wait, and their bytes together; more are refused."""
PATIENCE = 30.0
"""Seconds that an upload waits for its turn; then whoever asked has gone, or is told to come again."""
LARGE = 10e6
"""Pixels for which an upload is decoded as if it had come a second later: large ones wait for small ones."""
PER_PIXEL, BESIDE = 28, 256 << 20
"""Bytes that a decoder may take for a pixel, and beside: threads of some decoders, tables, the file."""
SMALL = 4_000_000
"""Pixels up to which a picture is small: for these there are processes that large ones leave free."""
UNKNOWN = SMALL
"""Pixels that a picture is taken to have that does not say, until its decoder does; one with more is refused."""


@dataclass(order=True)
class _Job:
    turn: float  # the lowest is decoded first
    number: int
    data: bytes = field(compare=False)
    pixels: int = field(compare=False)
    cost: int = field(compare=False)  # of the budget
    came: float = field(compare=False)
    future: Future[Picture] = field(default_factory=Future, compare=False)


class Budget:
    """Pixels that are being decoded at this moment, of all decoders that share it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.pixels = self.most = 0


class Decoder:
    """Decodes uploads in processes, which are started when they are first needed and ended when they take too long.

    All of them share one budget of pixels (`Limits.together`): what would be more waits, and others that fit go
    first; what has waited too long is refused as overload. Where there are several processes, half of them at most
    are for large pictures, and yield to everything else on the machine: whoever sends large ones waits for others.

    prepare   uint8 (3, H, W) → what the model takes; runs in a thread of this process
    budget    of another decoder too, where both are to stay within it together
    reduced   pixels that each side of a JPEG must keep, which may be decoded smaller for that; None: all of it
    """

    def __init__(
        self,
        prepare: Callable[[Tensor], Tensor],
        limits: Limits | None = None,
        *,
        workers: int | None = None,
        budget: Budget | None = None,
        reduced: int | None = None,
    ) -> None:
        self.limits = limits or Limits()
        self.workers = workers or min(8, (os.cpu_count() or 1) + 1)
        self.budget = budget or Budget()
        self._prepare, self._reduced = prepare, reduced
        self._changed = self.budget.changed
        self._waiting: list[_Job] = []  # sorted
        self._bytes = self._pending = self._numbered = 0
        self._processes = [DecodingProcess(yields=large) for large in self._lanes()]
        self._closed = False
        for process, large in zip(self._processes, self._lanes(), strict=True):
            threading.Thread(
                target=self._work, args=(process, large), name="doubtless-decode", daemon=True
            ).start()

    @property
    def pending(self) -> int:
        """Uploads that wait to be decoded or are being decoded."""
        return self._pending

    def submit(self, data: bytes) -> Future[Picture]:
        """The picture, when it is decoded; refused where too many wait, or where it says that it is too large."""
        size = declared_size(data)
        limits = limits_for(data, self.limits)
        if size is not None and len(data) <= self.limits.upload:
            refuse_shape(*size, limits)
        pixels = min(UNKNOWN if size is None else max(1, size[0] * size[1]), limits.pixels)
        with self._changed:
            if self._closed:
                raise OverloadedError("The service is closed; it takes no more requests.")
            if len(self._waiting) >= WAITING or self._bytes + len(data) > WAITING_BYTES:
                raise OverloadedError("Too many images are waiting to be decoded; try again later.")
            self._numbered += 1
            now = time.monotonic()
            cost = pixels * self.limits.pixels // limits.pixels
            job = _Job(now + cost / LARGE, self._numbered, data, pixels, cost, now)
            bisect.insort(self._waiting, job)
            self._bytes += len(data)
            self._pending += 1
            self._changed.notify_all()  # who wakes first may be another decoder's
        return job.future

    def close(self) -> None:
        """What was submitted is still decoded; threads and processes then end."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _lanes(self) -> list[bool]:
        """Of every process, whether it is for large pictures; one alone takes all as they come."""
        return [number < self.workers // 2 for number in range(self.workers)]

    def _work(self, process: DecodingProcess, large: bool) -> None:
        if large:
            yield_to_others()
        while (job := self._next(large)) is not None:
            try:
                self._answer(job, process)
            finally:
                with self._changed:
                    self.budget.pixels -= job.cost
                    self._pending -= 1  # after the result: it is on its way until it is there
                    self._changed.notify_all()
        process.end()

    def _next(self, large: bool) -> _Job | None:
        """The first of its kind that fits beside those that are being decoded; None when all is done."""
        with self._changed:
            while True:
                mine = [job for job in self._waiting if self.workers == 1 or (job.cost > SMALL) == large]
                job = next(filter(self._may_start, mine), None)
                if job is not None:
                    self._waiting.remove(job)
                    self._bytes -= len(job.data)
                    self.budget.pixels += job.cost
                    self.budget.most = max(self.budget.most, self.budget.pixels)
                    return job
                if self._closed and not mine:
                    return None
                self._changed.wait()

    def _may_start(self, job: _Job) -> bool:
        """Whether it fits into the budget, and leaves room to a small one whose turn is before its own."""
        used = self.budget.pixels + job.cost
        if self.budget.pixels and used > self.limits.together:
            return False
        return job.cost <= SMALL or not any(
            other.cost <= SMALL and other < job and used + other.cost > self.limits.together
            for other in self._waiting
        )

    def _answer(self, job: _Job, process: DecodingProcess) -> None:
        if not job.future.set_running_or_notify_cancel():
            return  # nobody waits for it any more
        try:
            if time.monotonic() - job.came > PATIENCE:
                raise OverloadedError("Too many images are waiting to be decoded; try again later.")
            picture = decode_apart(job.data, self.limits, process, most=job.pixels, reduced=self._reduced)
            result = replace(picture, pixels=self._prepare(picture.pixels))
        except Exception as error:
            job.future.set_exception(error)
        else:
            job.future.set_result(result)


def decode_apart(
    data: bytes, limits: Limits, process: DecodingProcess, *, most: int, reduced: int | None = None
) -> Picture:
    """As `decode`, in another process, which may take as much memory as `most` pixels take.

    reduced: a JPEG may be decoded smaller, with sides of so many pixels or more.
    """
    if sys.platform == "win32":  # its pipes cannot be waited for
        return decode(data, limits)
    limits = limits_for(data, limits)
    if len(data) > limits.upload:
        raise LargeImageError(f"The image has {len(data):,} bytes; at most {limits.upload:,} are accepted.")
    accepted = uploaded_kinds()
    asked = {
        "formats": list(accepted),
        "pixels": most,
        "reduced": reduced,
        "memory": BESIDE + PER_PIXEL * most + 2 * len(data),
    }
    until = time.monotonic() + limits.seconds
    try:
        try:
            record, pixels = process.ask(data, asked, until=until)
        except (
            EOFError,
            BrokenPipeError,
        ):  # somebody has ended it, maybe for want of memory: another one is tried
            record, pixels = process.ask(data, asked, until=until)
    except TimeoutError:
        raise ImageError(f"The image took longer than {limits.seconds:g} s to decode.") from None
    except (EOFError, OSError):  # a library that gives up at this picture
        raise ImageError("The image is damaged and cannot be decoded.") from None
    _refuse(record, data, limits)
    kind, shape = accepted[record["format"]], (3, record["height"], record["width"])
    refuse_shape(record["width"], record["height"], limits)
    return Picture(torch.from_numpy(pixels).view(shape), kind.media_type, kind.suffixes[0])


def _refuse(record: Mapping[str, Any], data: bytes, limits: Limits) -> None:
    """The sentence for what a process could not decode."""
    kind = record.get("error")
    if kind == "unsupported":
        raise _unsupported(data)
    if kind == "large":
        if record["width"] is not None and record["width"] * record["height"] <= limits.pixels:
            raise ImageError("The image is larger than its header says.")
        shown = "more" if record["width"] is None else f"{record['width']}×{record['height']} pixels, more"
        raise LargeImageError(f"The image has {shown} than the {limits.pixels:,} pixels that are accepted.")
    if kind == "tiles":
        raise ImageError(TILES)
    if kind == "memory":
        raise ImageError("The image takes more memory to decode than its header says.")
    if kind is not None:
        raise ImageError("The image is damaged and cannot be decoded.")
