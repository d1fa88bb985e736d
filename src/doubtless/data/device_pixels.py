"""Colours and erasing of a whole batch, each image by its own draw: the steps that leave pixels in place.

Values are floats of 0…255; torchvision's formulas, without its rounding down after each of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from doubtless.data.device_geometry import (
    TRIES,
    Range,
    first_that_fits,
    rectangles,
    uniform,
    whole_up_to,
)

WHITE = 255.0


class Pixelwise(Protocol):
    """A step that changes values: `draws` uniform numbers an image decide how."""

    draws: ClassVar[int]

    def apply(self, images: Tensor, draws: Tensor, order: Sequence[int]) -> Tensor:
        """Images (b, C, H, W) of floats, uniform numbers (b, draws), and the order of a jitter's four parts."""


@dataclass(frozen=True)
class Jitter:
    """Brightness, contrast, saturation and hue, each with a factor uniform in its range; None: left alone."""

    draws: ClassVar[int] = 4
    ranges: tuple[Range | None, Range | None, Range | None, Range | None]

    def apply(self, images: Tensor, draws: Tensor, order: Sequence[int]) -> Tensor:
        for part in order:
            among = self.ranges[part]
            if among is not None:
                images = PARTS[part](images, uniform(draws[:, part, None, None, None], among))
        return images


@dataclass(frozen=True)
class Grayscale:
    """Without colour with probability `p`."""

    draws: ClassVar[int] = 1
    p: float

    def apply(self, images: Tensor, draws: Tensor, order: Sequence[int]) -> Tensor:
        return torch.where(draws[:, :, None, None] < self.p, gray(images), images)


@dataclass(frozen=True)
class Erasing:
    """With probability `p` a rectangle of random area and aspect becomes `value`."""

    draws: ClassVar[int] = 2 * TRIES + 3
    p: float
    scale: Range
    ratio: Range
    value: float

    def parameters(self, draws: Tensor, frame: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Top, left, height, width, (b, 1) each: the first of ten tries that fits, else no height."""
        high, wide = frame
        height, width = rectangles(draws[:, :-3], high * wide, scale=self.scale, ratio=self.ratio)
        any_fits, height, width = first_that_fits((height < high) & (width < wide), height, width)
        height = torch.where(any_fits & (draws[:, -1:] < self.p), height, 0)
        top = whole_up_to(draws[:, -3:-2], high - height)
        return top, whole_up_to(draws[:, -2:-1], wide - width), height, width

    def apply(self, images: Tensor, draws: Tensor, order: Sequence[int]) -> Tensor:
        high, wide = images.shape[-2], images.shape[-1]
        top, left, height, width = self.parameters(draws, (high, wide))
        rows = torch.arange(high, device=images.device)
        columns = torch.arange(wide, device=images.device)
        in_rows = (top <= rows) & (rows < top + height)  # (b, H)
        in_columns = (left <= columns) & (columns < left + width)  # (b, W)
        return images.masked_fill(in_rows[:, None, :, None] & in_columns[:, None, None, :], self.value)


def gray(images: Tensor) -> Tensor:
    """Luma (b, 1, H, W) of colours; gray images as they are."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, dim=1)
    return red * 0.2989 + green * 0.587 + blue * 0.114


def brighten(images: Tensor, factor: Tensor) -> Tensor:
    return (images * factor).clamp(0, WHITE)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    return _from(gray(images).mean((1, 2, 3), keepdim=True), images, factor)


def saturate(images: Tensor, factor: Tensor) -> Tensor:
    return images if images.shape[1] == 1 else _from(gray(images), images, factor)


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Hue moved around the circle by `turns` (b, 1, 1, 1) of it; value and saturation stay.

    With hue h in sixths, the channels are high − chroma · clamp(min(k, 4 − k), 0, 1), k = n + h mod 6, where
    n = 5, 3, 1 for red, green and blue.
    """
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, dim=1)
    low, high = images.amin(1, keepdim=True), images.amax(1, keepdim=True)  # (b, 1, H, W)
    chroma = high - low
    divisor = torch.where(chroma == 0, 1.0, chroma)  # gray has no hue: any will do
    hue = torch.where(
        high == red,
        (green - blue) / divisor,
        torch.where(high == green, 2 + (blue - red) / divisor, 4 + (red - green) / divisor),
    )
    offsets = torch.arange(5, 0, -2, device=images.device).view(1, 3, 1, 1)
    k = (hue + 6 * turns + offsets).remainder(6)  # (b, 3, H, W)
    return high - chroma * torch.minimum(k, 4 - k).clamp(0, 1)


def _from(start: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """From `start` (factor 0) to the images (factor 1) and beyond."""
    return (start + (images - start) * factor).clamp(0, WHITE)


PARTS = (brighten, contrast, saturate, shift_hue)
"""A jitter's parts, numbered as torchvision numbers them."""
