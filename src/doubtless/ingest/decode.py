"""Decoding images in threads, in order, a bounded number ahead of whoever takes them."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from torch import Tensor

from doubtless.data import Preparation, image_tensor
from doubtless.data.images import open_image, reason_of
from doubtless.data.streams.records import ImageRecord, is_text

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
        with open_image(data) as image:
            return preparation(image_tensor(image))
    except Exception as error:  # decoders of damaged files raise whatever they stumble over
        return reason_of(error)


def _without_data(record: ImageRecord) -> ImageRecord:
    """Who it is, alone: the bytes go when they are decoded."""
    if not isinstance(record.data, bytes):
        return record
    return ImageRecord(record.id, None, record.label, record.path, record.metadata, record.problem)
