"""Small pictures of items, decoded within the service's limits, some of them remembered."""

from __future__ import annotations

import asyncio
import io
import threading
from collections import OrderedDict
from enum import IntEnum

import numpy as np
import torch
from PIL import Image, features
from torch import Tensor

from doubtless.server.service.decoder import Budget, Decoder, Limits
from doubtless.server.service.errors import ImageError, NotFoundError


class Size(IntEnum):
    """Pixels along the longer side, at most."""

    SMALL = 96
    MIDDLE = 192
    LARGE = 384


WORKERS = 2
"""Threads that decode them: those who ask come first."""
MOST_BYTES = 32 << 20
"""Of the pictures that are remembered."""
QUALITY = 80
KIND, MEDIA_TYPE = ("WEBP", "image/webp") if features.check("webp") else ("JPEG", "image/jpeg")


def fitted(pixels: Tensor, size: int = Size.LARGE) -> Tensor:
    """uint8 (3, H, W) with its longer side at most `size`; smaller pictures stay as they are.

    >>> fitted(torch.zeros(3, 400, 800, dtype=torch.uint8), 96).shape
    torch.Size([3, 48, 96])
    """
    if max(pixels.shape[1:]) <= size:
        return pixels
    image = Image.fromarray(pixels.permute(1, 2, 0).numpy())
    image.thumbnail((size, size), Image.Resampling.LANCZOS, reducing_gap=2.0)
    return torch.from_numpy(np.array(image).transpose(2, 0, 1).copy())


def encoded(pixels: Tensor) -> bytes:
    """uint8 (3, H, W) as a file of `MEDIA_TYPE`."""
    file = io.BytesIO()
    Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(file, KIND, quality=QUALITY)
    return file.getvalue()


class Thumbnails:
    """Makes small pictures of files' bytes; may be used from several threads."""

    def __init__(self, limits: Limits, *, most_bytes: int = MOST_BYTES, budget: Budget | None = None) -> None:
        """budget: of those who ask, shared with them."""
        self.decoder = Decoder(fitted, limits, workers=WORKERS, budget=budget, reduced=2 * Size.LARGE)
        self.most_bytes = most_bytes
        self._known: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def known(self, stamp: str, size: int) -> bytes | None:
        """One that was made before, of the file that has this stamp."""
        with self._lock:
            found = self._known.get((stamp, size))
            if found is not None:
                self._known.move_to_end((stamp, size))
            return found

    async def make(self, stamp: str, size: int, data: bytes) -> bytes:
        """The picture of a file; `NotFoundError` where it is none that can be decoded within the limits."""
        try:
            picture = await asyncio.wrap_future(self.decoder.submit(data))
        except ImageError as error:
            raise NotFoundError("This item has no image that can be shown.") from error
        made = await asyncio.to_thread(lambda: encoded(fitted(picture.pixels, size)))
        self._remember((stamp, size), made)
        return made

    def close(self) -> None:
        """Ends its threads."""
        self.decoder.close()

    def _remember(self, key: tuple[str, int], made: bytes) -> None:
        with self._lock:
            self._bytes += len(made) - len(self._known.pop(key, b""))
            self._known[key] = made
            while self._bytes > self.most_bytes:
                _, gone = self._known.popitem(last=False)
                self._bytes -= len(gone)
