"""From a picture that a visitor chose to the HTML of its answer. No Gradio here: what the page does, testable."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from doubtless.errors import DoubtlessError, InputError
from doubtless.server.page.answer_view import (
    SHOWN,
    asked_view,
    covering_view,
    decision_view,
    doubt_view,
    error_view,
    hits_view,
    waiting_view,
)
from doubtless.server.page.corruptions import disturb
from doubtless.server.page.thumbnails import Thumbnails, picture_address
from doubtless.server.uploads import Limits, decode

if TYPE_CHECKING:
    from doubtless.server.service import Service

LONGEST = 640
"""Pixels along the longer side of a picture that is disturbed live."""
NOUNS = {"blur": "blur", "noise": "noise", "occlude": "occlusion"}
HITS = 20
"""Hits asked for: a covering set may take so many."""


@dataclass(frozen=True)
class View:
    """The four places of the first tab."""

    asked: str
    decision: str
    found: str
    doubt: str


class Asking:
    """Answers about pictures, as HTML."""

    def __init__(self, service: Service, thumbnails: Thumbnails) -> None:
        self.service, self.thumbnails = service, thumbnails

    def chosen(self, address: str | None) -> Tensor:
        """The picture behind a ``data:`` address, uint8 (3, H, W), decoded within the service's limits."""
        return shrunk(decode(bytes_of(address, self.service.limits), self.service.limits).pixels)

    def view(
        self, image: Tensor | None, strengths: Mapping[str, float], *, confidence: float, first: bool = False
    ) -> View:
        """The answer about a disturbed picture. Only `first` looks at an undisturbed one count for drift."""
        if image is None:
            return View("", waiting_view(len(self.service.index)), "", "")
        try:
            shown = disturb(image, strengths)
            watched = first and not any(strengths.values())
            answer = self.service.answer_images(
                [shown], k=min(HITS, self.service.limits.k), confidence=confidence, watched=watched
            )[0]
        except DoubtlessError as error:
            return failed(error)
        pictures = self.thumbnails.of([hit.id for hit in answer.hits[:SHOWN]])
        return View(
            asked_view(picture_address(shown), _described(strengths)),
            decision_view(answer),
            hits_view(answer, pictures) + covering_view(answer, confidence=confidence),
            doubt_view(answer),
        )


def failed(error: DoubtlessError) -> View:
    """What is shown instead of an answer."""
    return View("", error_view(str(error)), "", "")


def bytes_of(address: str | None, limits: Limits) -> bytes:
    """The bytes of a base64 ``data:`` address; nothing else is followed: no file, no other machine."""
    head, found, body = (address or "").partition(";base64,")
    if not found or not head.startswith("data:"):
        raise InputError("a picture must come as a base64 data address.")
    if len(body) > limits.upload * 4 // 3 + 4:
        raise InputError(f"the picture has more than the {limits.upload:,} bytes that are accepted.")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise InputError("the picture's data address is not base64.") from None


def shrunk(image: Tensor) -> Tensor:
    """(3, H, W) with its longer side at most `LONGEST`."""
    height, width = image.shape[1:]
    scale = LONGEST / max(height, width)
    if scale >= 1:
        return image
    return transforms.resize(
        image, [max(1, round(height * scale)), max(1, round(width * scale))], antialias=True
    )


def _described(strengths: Mapping[str, float]) -> str:
    said = [f"{NOUNS[name]} {100 * value:.0f} %" for name, value in strengths.items() if value > 0]
    return f"As it was asked, with {', '.join(said)}" if said else "As it was asked"
