"""Photos as of a shop: each product is a packet of its own colours and print, never twice from the same side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw


def write_shop(folder: Path, *, products: int, photos: int, start: int = 0, side: int = 96) -> Path:
    """A folder per product, JPEGs in it; those from `start` on, so that other calls make other photos."""
    for product in range(products):
        look = np.random.default_rng(product)
        paper, ink = (tuple(int(value) for value in look.integers(0, 256, 3)) for _ in range(2))
        spots = look.uniform(0.15, 0.85, (5, 2))
        place = folder / f"product-{product:02}"
        place.mkdir(parents=True, exist_ok=True)
        for photo in range(start, start + photos):
            draw = np.random.default_rng([product, photo])
            image = Image.new("RGB", (side, side), tuple(int(value) for value in draw.integers(90, 160, 3)))
            pen, (left, top) = ImageDraw.Draw(image), draw.uniform(0, side / 5, 2)
            size = side * draw.uniform(0.65, 0.8)
            pen.rectangle((left, top, left + size, top + size), fill=paper)
            for x, y in spots:
                at, radius = (left + x * size, top + y * size), size / 9
                pen.ellipse((at[0] - radius, at[1] - radius, at[0] + radius, at[1] + radius), fill=ink)
            image.save(place / f"{photo:03}.jpg", quality=88)
    return folder
