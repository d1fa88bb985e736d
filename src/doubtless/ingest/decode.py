"""Decoding images in threads, in order, a bounded number ahead of whoever takes them."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from PIL import Image, UnidentifiedImageError
from torch import Tensor

from doubtless.data import Preparation, image_tensor
from doubtless.ingest.records import ImageRecord, is_text, too_large

MAX_PIXELS = 100_000_000
"""An image beyond this is taken for a decompression bomb: 300 MB as bytes."""

PENDING_BYTES = 256 << 20
"""Files that are read and not yet decoded, together."""


def default_workers() -> int:
    """Threads that decode, by the number of cores."""
    return min(16, (os.cpu_count() or 1) + 2)


def decode_all(
    records: Iterable[ImageRecord], preparation: Preparation, pool: ThreadPoolExecutor, *, ahead: int
) -> Iterator[tuple[ImageRecord, Tensor | str]]:
    """Every record with its prepared image (C, H, W), or the reason why there is none; in the records' order."""
    running: deque[tuple[ImageRecord, int, Future[Tensor | str]]] = deque()
    pending = 0
    for record in records:
        size = len(record.data) if isinstance(record.data, bytes) else 0
        while running and (len(running) >= ahead or pending + size > PENDING_BYTES):
            done, held, image = running.popleft()
            pending -= held
            yield done, image.result()
        running.append((_without_data(record), size, pool.submit(decode, record, preparation)))
        pending += size
    while running:
        done, _, image = running.popleft()
        yield done, image.result()


def decode(record: ImageRecord, preparation: Preparation) -> Tensor | str:
    """The prepared image, uint8 (C, H, W), or, as a string, what is wrong with it."""
    data = record.data
    if record.problem is not None or data is None:
        return record.problem or "there is nothing to read"
    if record.label is not None and (not is_text(record.label) or "\0" in record.label):
        return "its label is no text that can be kept"
    try:
        if isinstance(data, Tensor):
            return preparation(data)
        if isinstance(data, Path) and (problem := too_large(data.stat().st_size)) is not None:
            return problem
        with Image.open(data if isinstance(data, Path) else io.BytesIO(data)) as image:
            if image.width * image.height > MAX_PIXELS:
                return f"it has {image.width}×{image.height} pixels, more than the {MAX_PIXELS:,} that are decoded"
            return preparation(image_tensor(image))
    except Exception as error:  # decoders of damaged files raise whatever they stumble over
        return _reason(error)


def _reason(error: Exception) -> str:
    """What a decoder said, in one line, without addresses of objects."""
    if isinstance(error, UnidentifiedImageError):
        return "it is no image that Pillow knows"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = " ".join(str(error).split())
    return text or type(error).__name__


def _without_data(record: ImageRecord) -> ImageRecord:
    """Who it is, alone: the bytes go when they are decoded."""
    if not isinstance(record.data, bytes):
        return record
    return ImageRecord(record.id, None, record.label, record.path, record.metadata, record.problem)
