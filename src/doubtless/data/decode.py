"""Image files of every common kind to uint8 RGB tensors."""

from __future__ import annotations

from pathlib import Path
from typing import IO

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from doubtless.errors import InputError

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"}


def decode_image(file: str | Path | IO[bytes]) -> Tensor:
    """Reads a grey, RGB, RGBA, palette, CMYK or 16-bit image as uint8 (3, H, W).

    Transparency becomes white, 16 bits become 8, the camera's rotation is applied.
    """
    try:
        with Image.open(file) as opened:
            return image_tensor(opened)
    except (OSError, SyntaxError, ValueError, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise InputError(f"{file} cannot be read as an image: {error}.") from error


def image_tensor(image: Image.Image) -> Tensor:
    """A Pillow image as uint8 (3, H, W)."""
    rgb = _to_rgb(ImageOps.exif_transpose(image))
    return torch.from_numpy(np.array(rgb)).permute(2, 0, 1).contiguous()


def _to_rgb(image: Image.Image) -> Image.Image:
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
        rgba = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", rgba.size, "white"), rgba)
    return image.convert("RGB")


def readable(path: Path) -> str | None:
    """None if the whole file decodes, else why not. JPEGs are checked at an eighth of their size, which
    still reads every byte."""
    try:
        with Image.open(path) as image:
            image.draft("RGB", (image.width // 8 or 1, image.height // 8 or 1))
            image.load()
            if image.mode == "F" and not np.isfinite(np.asarray(image)).all():
                return "it has NaN or infinite pixels"
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        return str(error).split(str(path))[0].strip() or type(error).__name__
    return None
