"""From a Pillow image to bytes (3, H, W): white for transparency, 8 bits for 16, turned as the camera was held.

Nothing but Pillow and numpy is imported: processes that decode pictures of strangers load this file alone.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageOps

ORIENTATION = 0x0112
BAND = 1 << 20
"""Pixels that are converted at a time."""


def rgb_pixels(image: Image.Image) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """uint8 (3, H, W), channel by channel; made a band at a time: there are never three copies of a picture."""
    upright = ImageOps.exif_transpose(image) if image.getexif().get(ORIENTATION, 1) != 1 else image
    width, height = upright.size
    pixels = np.empty((3, height, width), np.uint8)
    whole = upright.mode in {"I", "F"}  # what their numbers mean is seen in all of them
    step = height if whole else max(1, BAND // max(1, width))
    for top in range(0, height, step):
        bottom = min(height, top + step)
        band = upright if bottom - top == height else upright.crop((0, top, width, bottom))
        pixels[:, top:bottom] = np.asarray(to_rgb(band)).transpose(2, 0, 1)
    return pixels


def to_rgb(image: Image.Image) -> Image.Image:
    """Three channels of a byte each, whatever it had."""
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    elif image.mode == "I":  # what Pillow makes of some 16-bit PNGs: 32-bit numbers up to 65535
        values = np.asarray(image)
        wide = values.max(initial=0) > 255
        image = Image.fromarray((values >> 8 if wide else values).clip(0, 255).astype(np.uint8))
    elif image.mode == "F":
        values = np.asarray(image)
        if not np.isfinite(values).all():
            raise ValueError("it has NaN or infinite pixels")
        image = Image.fromarray(
            (values * (255 if values.max(initial=0) <= 1 else 1)).clip(0, 255).astype(np.uint8)
        )
    if image.mode in {"RGBA", "LA", "PA"} or "transparency" in image.info:
        rgba = image if image.mode == "RGBA" else image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image if image.mode == "RGB" else image.convert("RGB")
