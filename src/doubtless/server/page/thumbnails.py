"""Small pictures for the page: of items, as addresses that need no request, and many at once in one sheet."""

from __future__ import annotations

import base64
import io
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from doubtless.errors import DoubtlessError
from doubtless.report.images import data_uri
from doubtless.server.service.decoder import decode

if TYPE_CHECKING:
    from torch import Tensor

    from doubtless.server.service.service import Service


KEPT = 2_000
"""Pictures that are remembered."""
CELL = 48
"""Side of a picture in a sheet, in pixels."""
COLUMNS = 25


def picture_address(image: Tensor) -> str:
    """uint8 (C, H, W) as a ``data:`` address, at most 160 pixels along its longer side."""
    return data_uri(image.permute(1, 2, 0).numpy())


class Thumbnails:
    """Pictures of a service's items; items without one have none. May be used from several threads."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._known: OrderedDict[str, str | None] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, ids: Sequence[str]) -> dict[str, str]:
        """Id → address, of those that have a picture."""
        found = {id: self._address(id) for id in ids}
        return {id: address for id, address in found.items() if address is not None}

    def sheet(self, ids: Sequence[str]) -> str | None:
        """One picture with a cell for every item, `COLUMNS` a row; None where no item has a picture."""
        rows = -(-len(ids) // COLUMNS)
        sheet = Image.new("RGB", (COLUMNS * CELL, max(1, rows) * CELL))
        drawn = 0
        for place, id in enumerate(ids):
            picture = self._picture(id)
            if picture is None:
                continue
            small = Image.fromarray(picture)
            small = small.resize(_fitted(*small.size), Image.Resampling.BILINEAR)
            row, column = divmod(place, COLUMNS)
            left, top = ((CELL - side) // 2 for side in small.size)
            sheet.paste(small, (column * CELL + left, row * CELL + top))
            drawn += 1
        file = io.BytesIO()
        sheet.save(file, "JPEG", quality=80)
        return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}" if drawn else None

    def _address(self, id: str) -> str | None:
        with self._lock:
            if id in self._known:
                self._known.move_to_end(id)
                return self._known[id]
        picture = self._picture(id)
        address = None if picture is None else data_uri(picture)
        with self._lock:
            self._known[id] = address
            if len(self._known) > KEPT:
                self._known.popitem(last=False)
        return address

    def _picture(self, id: str) -> np.ndarray | None:
        """uint8 (H, W, 3)."""
        try:
            pixels = decode(self.service.image_of(id).data, self.service.limits).pixels
        except DoubtlessError:
            return None
        return pixels.permute(1, 2, 0).numpy()


def _fitted(width: int, height: int) -> tuple[int, int]:
    scale = CELL / max(width, height)
    return max(1, round(width * scale)), max(1, round(height * scale))
