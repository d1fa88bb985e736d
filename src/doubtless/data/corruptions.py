"""Pictures made worse: blur, noise and occlusion, each from 0 (untouched) to 1 (hardly anything left), and crops.

Strengths are relative to the shorter side, so that they mean the same for a thumbnail and for a photograph. They
are nested: the same noise grows, the same blocks come one after the other, a smaller crop lies inside a larger one,
so that more is more of the same. The sliders of the demo's page do the same in the browser.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from doubtless.errors import InputError

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


class Corruption(Protocol):
    """Makes uint8 (C, H, W) worse by a strength between 0 and 1; what it draws is drawn by `seed`."""

    def __call__(self, image: Tensor, strength: float, *, seed: int = 0) -> Tensor:
        """The picture made worse, in the same shape."""
        ...


def blur(image: Tensor, strength: float, *, seed: int = 0) -> Tensor:
    """A Gaussian blur of uint8 (C, H, W). Nothing in it is drawn: every seed gives the same.

    >>> blur(torch.eye(8, dtype=torch.uint8).mul(255)[None], 0.5).shape
    torch.Size([1, 8, 8])
    """
    _check(image, strength)
    spread = strength * WIDEST_BLUR * min(image.shape[1:])
    if spread < 0.05:  # narrower than any neighbour can notice
        return image
    reach = max(1, round(3 * spread))
    offsets = torch.arange(-reach, reach + 1, dtype=torch.float, device=image.device)
    weights = torch.exp(-offsets.square() / (2 * spread**2))
    weights = (weights / weights.sum()).view(1, 1, 1, -1)
    soft = image.float()[:, None]  # (C, 1, H, W)
    for _ in range(2):  # along the rows, then along the columns, which a transpose makes rows
        wide = functional.pad(soft, (reach, reach, 0, 0), mode="replicate")  # the edge goes on as it is
        soft = functional.conv2d(wide, weights).transpose(2, 3)
    return _as_bytes(soft[:, 0])


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


CORRUPTIONS: Mapping[str, Corruption] = {"blur": blur, "noise": noise, "occlusion": occlude}


def disturb(image: Tensor, strengths: Mapping[str, float], *, seed: int = 0) -> Tensor:
    """All of them in the order of `CORRUPTIONS`: what is out of focus is out of focus before a sensor's noise.

    >>> bool((disturb(torch.full((3, 9, 9), 80, dtype=torch.uint8), {"blur": 0.0}) == 80).all())
    True
    """
    if unknown := [name for name in strengths if name not in CORRUPTIONS]:
        raise InputError(f"A picture can be disturbed by {', '.join(CORRUPTIONS)}, got {unknown[0]!r}.")
    for name, corruption in CORRUPTIONS.items():
        image = corruption(image, strengths.get(name, 0.0), seed=seed)
    return image


def crop(image: Tensor, area: float, *, seed: int = 0) -> Tensor:
    """A window of uint8 (C, H, W) in its own proportions, with this share of its area, at a place drawn by `seed`.

    >>> crop(torch.zeros(3, 40, 60, dtype=torch.uint8), 0.25).shape
    torch.Size([3, 20, 30])
    """
    if not 0 < area <= 1:
        raise InputError(f"A crop must keep a share of the area above 0 and up to 1, got {area}.")
    _check(image, 0.0)
    places = torch.rand(2, generator=torch.Generator().manual_seed(seed)).tolist()
    window = []
    for side, place in zip(image.shape[1:], places, strict=True):
        kept = max(1, round(math.sqrt(area) * side))
        # The same share of what is cut off lies before the window whatever its size: a smaller one is inside.
        start = math.floor(place * (side - kept + 1))
        window.append(slice(start, start + kept))
    return image[:, window[0], window[1]]


def _check(image: Tensor, strength: float) -> None:
    if not 0 <= strength <= 1:
        raise InputError(f"The strength of a disturbance must lie between 0 and 1, got {strength}.")
    if image.dim() != 3 or image.dtype != torch.uint8 or 0 in image.shape:
        raise InputError(
            f"A picture to disturb must be uint8 of shape (C, H, W), got {image.dtype} of {tuple(image.shape)}."
        )


def _as_bytes(image: Tensor) -> Tensor:
    return image.round().clamp(0, 255).to(torch.uint8)
