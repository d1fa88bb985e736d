"""From a picture that a visitor chose to the HTML of its answer. No Gradio here: what the page does,
testable.

The sliders disturb the picture first: blur, noise and occlusion, each from 0 (untouched) to 1 (hardly
anything left). Strengths are relative to the shorter side, so that they mean the same for a thumbnail and for
a photograph. They are nested: the same noise grows, the same blocks come one after the other, so that more is
more of the same.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
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
from doubtless.server.page.thumbnails import Thumbnails, picture_address
from doubtless.server.service.decoder import Limits, decode

if TYPE_CHECKING:
    from doubtless.server.service.service import Service


WIDEST_BLUR = 0.12
"""Standard deviation at strength 1, as a part of the shorter side."""
STRONGEST_NOISE = 0.2
"""Standard deviation at strength 1, as a part of the range of a pixel."""
GRAINS = 64
"""Grains of noise along the shorter side at most: finer ones would vanish when a model scales a photograph down."""
MOST_HIDDEN = 0.8
"""Share of the picture that is hidden at strength 1."""
BLOCKS = 4
"""Blocks along each side, hidden in an order drawn by the seed."""
GREY = 127


def blur(image: Tensor, strength: float) -> Tensor:
    """A Gaussian blur of uint8 (C, H, W).

    >>> blur(torch.eye(8, dtype=torch.uint8).mul(255)[None], 0.5).shape
    torch.Size([1, 8, 8])
    """
    _check(image, strength)
    spread = strength * WIDEST_BLUR * min(image.shape[1:])
    if spread < 0.05:  # narrower than any neighbour can notice
        return image
    reach = 2 * max(1, round(3 * spread)) + 1
    pad = [reach // 2] * 4  # the edge goes on as it is: reflecting would bring the other side in
    wide = transforms.pad(image.float(), pad, padding_mode="edge")
    soft = transforms.gaussian_blur(wide, [reach, reach], [spread, spread])
    height, width = image.shape[1:]
    return _as_bytes(soft[:, pad[0] : pad[0] + height, pad[0] : pad[0] + width])


def noise(image: Tensor, strength: float, *, seed: int = 0) -> Tensor:
    """Gaussian noise on uint8 (C, H, W), the same pattern for the same size and seed, alike in all channels."""
    _check(image, strength)
    if strength == 0:
        return image
    height, width = image.shape[1:]
    grain = max(1, min(height, width) // GRAINS)
    grid = (-(-height // grain), -(-width // grain))
    pattern = torch.randn(grid, generator=torch.Generator().manual_seed(seed))
    pattern = pattern.repeat_interleave(grain, 0).repeat_interleave(grain, 1)[:height, :width]
    return _as_bytes(image.float() + (strength * STRONGEST_NOISE * 255) * pattern.to(image.device))


def occlude(image: Tensor, strength: float, *, seed: int = 0) -> Tensor:
    """Grey blocks over uint8 (C, H, W), one after the other, the last one only in part.

    Blocks and not one square in the middle: a grey square is itself the picture of something, a bag perhaps.

    >>> int((occlude(torch.zeros(1, 8, 8, dtype=torch.uint8), 0.5) > 0).sum())
    26
    """
    _check(image, strength)
    hidden = image.clone()
    height, width = image.shape[1:]
    order = torch.randperm(BLOCKS**2, generator=torch.Generator().manual_seed(seed)).tolist()
    for place, block in enumerate(order):
        share = min(1.0, strength * MOST_HIDDEN * BLOCKS**2 - place)
        if share <= 0:
            break
        row, column = divmod(block, BLOCKS)
        top, bottom = row * height // BLOCKS, (row + 1) * height // BLOCKS
        left, right = column * width // BLOCKS, (column + 1) * width // BLOCKS
        hidden[:, top : top + round(share * (bottom - top)), left:right] = GREY
    return hidden


CORRUPTIONS: Mapping[str, Callable[[Tensor, float], Tensor]] = {
    "blur": blur,
    "noise": noise,
    "occlude": occlude,
}


def disturb(image: Tensor, strengths: Mapping[str, float]) -> Tensor:
    """All of them in the order of `CORRUPTIONS`: what is out of focus is out of focus before a sensor's noise.

    >>> bool((disturb(torch.full((3, 9, 9), 80, dtype=torch.uint8), {"blur": 0.0}) == 80).all())
    True
    """
    if unknown := [name for name in strengths if name not in CORRUPTIONS]:
        raise InputError(f"A picture can be disturbed by {', '.join(CORRUPTIONS)}, got {unknown[0]!r}.")
    for name, corruption in CORRUPTIONS.items():
        image = corruption(image, strengths.get(name, 0.0))
    return image


def _check(image: Tensor, strength: float) -> None:
    if not 0 <= strength <= 1:
        raise InputError(f"The strength of a disturbance must lie between 0 and 1, got {strength}.")
    if image.dim() != 3 or image.dtype != torch.uint8 or 0 in image.shape:
        raise InputError(
            f"A picture to disturb must be uint8 of shape (C, H, W), got {image.dtype} of {tuple(image.shape)}."
        )


def _as_bytes(image: Tensor) -> Tensor:
    return image.round().clamp(0, 255).to(torch.uint8)


LONGEST = 640
"""Pixels along the longer side of a picture that is disturbed live."""
NOUNS = {"blur": "blur", "noise": "noise", "occlude": "occlusion"}
HITS = 20
"""Hits asked for: a covering set may take so many."""


@dataclass(frozen=True)
class View:
    """The four places of the first tab, and the id of the answer that they show."""

    asked: str
    decision: str
    found: str
    doubt: str
    answer: str | None = None


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
            return View("", waiting_view(len(self.service.gallery)), "", "")
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
            answer.id,
        )

    def judge(self, answer: str | None, said: str | None, label: str | None) -> str:
        """Keeps what a visitor says of the answer that is shown; a sentence."""
        if answer is None:
            raise InputError("There is no answer yet that could be judged.")
        if said is None and not (label or "").strip():
            raise InputError("Say what the picture shows.")
        named = (label or "").strip() if said is None else None
        entry = self.service.judgements.say(answer, said, label=named, who="page").result()
        return (
            f"Kept: {entry.verdict or 'judged'}{'' if entry.truth is None else f', it shows {entry.truth}'}."
        )


def failed(error: DoubtlessError) -> View:
    """What is shown instead of an answer."""
    return View("", error_view(str(error)), "", "")


def bytes_of(address: str | None, limits: Limits) -> bytes:
    """The bytes of a base64 ``data:`` address; nothing else is followed: no file, no other machine."""
    head, found, body = (address or "").partition(";base64,")
    if not found or not head.startswith("data:"):
        raise InputError("A picture must come as a base64 data address.")
    if len(body) > limits.upload * 4 // 3 + 4:
        raise InputError(f"The picture has more than the {limits.upload:,} bytes that are accepted.")
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise InputError("The picture's data address is not base64.") from None


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
