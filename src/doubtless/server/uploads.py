"""Images from strangers: what they are is read from their first bytes, how large from their header, both before
anything is decoded; decoding itself stops when its time is over.

Accepted are JPEG, PNG, WebP, BMP and GIF (its first frame). TIFF is not: its decoder reads whole files at once, in
too many dialects.
"""

from __future__ import annotations

import io
import time
from dataclasses import dataclass

from PIL import Image, UnidentifiedImageError
from torch import Tensor

from doubtless.data import image_tensor
from doubtless.errors import InputError
from doubtless.server.errors import ImageError, LargeImageError, UnsupportedImageError

MEDIA_TYPES = {
    "JPEG": "image/jpeg",
    "PNG": "image/png",
    "WEBP": "image/webp",
    "BMP": "image/bmp",
    "GIF": "image/gif",
}
"""Pillow's name of a format → its media type: all that is accepted."""
SUFFIXES = {"JPEG": ".jpg", "PNG": ".png", "WEBP": ".webp", "BMP": ".bmp", "GIF": ".gif"}
LONGEST = 100
"""How many times its shorter side an image may be long: made square, a line of pixels would become a large one."""


@dataclass(frozen=True)
class Limits:
    """What is accepted of one request.

    upload    bytes of a request's body
    pixels    of an image, as its header says
    seconds   to decode an image
    k         hits a query may ask for
    """

    upload: int = 20 << 20
    pixels: int = 50_000_000
    seconds: float = 10.0
    k: int = 100

    def __post_init__(self) -> None:
        if min(self.upload, self.pixels, self.k) < 1 or self.seconds <= 0:
            raise InputError(f"limits must be positive, got {self}.")


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
        if time.monotonic() > self.until:
            raise TimeoutError
        return super().read(size)


def decode(data: bytes, limits: Limits) -> Picture:
    """An upload as pixels, or the reason why not."""
    if len(data) > limits.upload:
        raise LargeImageError(f"the image has {len(data):,} bytes; at most {limits.upload:,} are accepted.")
    late = ImageError(f"the image took longer than {limits.seconds:g} s to decode.")
    try:
        with Image.open(
            DeadlineReader(data, time.monotonic() + limits.seconds), formats=tuple(MEDIA_TYPES)
        ) as image:
            kind = str(image.format)
            refuse_shape(*image.size, limits)
            return Picture(image_tensor(image), MEDIA_TYPES[kind], SUFFIXES[kind])
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise UnsupportedImageError(
            f"this is no image of an accepted type: {', '.join(MEDIA_TYPES)}."
        ) from None
    except Image.DecompressionBombError:
        raise LargeImageError(
            f"the image has more than the {limits.pixels:,} pixels that are accepted."
        ) from None
    except TimeoutError:
        raise late from None
    except Exception as error:  # decoders of damaged files raise whatever they stumble over
        raise ImageError("the image is damaged and cannot be decoded.") from error


def sniffed(data: bytes) -> str | None:
    """The media type that the first bytes say, where it is an accepted one."""
    try:
        with Image.open(io.BytesIO(data), formats=tuple(MEDIA_TYPES)) as image:
            return MEDIA_TYPES[str(image.format)]
    except Exception:  # whatever Pillow says: nothing to show
        return None


def refuse_shape(width: int, height: int, limits: Limits) -> None:
    """Refuses what is too large, or too long and thin, to be prepared for a model."""
    if width * height > limits.pixels:
        raise LargeImageError(
            f"the image has {width}×{height} pixels; at most {limits.pixels:,} are accepted."
        )
    if max(width, height) > LONGEST * min(width, height):
        raise ImageError(
            f"the image has {width}×{height} pixels; one side may be {LONGEST} times the other at most."
        )
