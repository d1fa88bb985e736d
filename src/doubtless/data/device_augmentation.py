"""Augmentation of whole batches where they are, on a GPU above all: one draw per image, a few kernels in all.

The steps are those of torchvision v2 that `Preparation` builds by name, with torchvision's distributions. What
differs from running them image by image:

- They see the prepared square, not the original. It is held up to 8/7 of the size that comes out (the customary
  256 → 224), so that crops keep detail; a crop is then shrunk by at most 8/7, which needs no smoothing first.
- Geometric steps in a row are one bilinear sampling, a rotation too (torchvision's takes the nearest pixel).
- The order of a colour jitter's four steps is one draw per batch, not one per image: over the steps of a training
  each image sees all orders, as often as each other.
- Values are floats of 0…255, rounded once, at the end; torchvision rounds down after every step of a jitter.

Nothing waits for the device: its random numbers are one table per batch, and no size depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, permutations
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode, v2

from doubtless.data.device_geometry import (
    TRIES,
    Fit,
    Flip,
    Frame,
    Geometric,
    PaddedCrop,
    Range,
    ResizedCrop,
    Rotation,
    first_that_fits,
    rectangles,
    resample,
    uniform,
    whole_up_to,
)
from doubtless.errors import InputError

WHITE = 255.0


class Pixelwise(Protocol):
    """A step that changes values: `draws` uniform numbers per image decide how."""

    draws: ClassVar[int]

    def apply(self, images: Tensor, draws: Tensor, order: Sequence[int]) -> Tensor:
        """Images (b, C, H, W) of floats, uniform numbers (b, draws), and the order of a jitter's four parts."""


@dataclass(frozen=True)
class Jitter:
    """Brightness, contrast, saturation and hue, each with a factor uniform in its range; None: left alone."""

    draws: ClassVar[int] = 4
    ranges: tuple[Range | None, Range | None, Range | None, Range | None]

    def apply(self, images: Tensor, draws: Tensor, order: Sequence[int]) -> Tensor:
        """The parts one after the other, in the order that was drawn for the batch."""
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
        """Luma in all channels where the draw is below `p`."""
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
        """Fills every image's rectangle, those of no height with nothing."""
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
    """Images (b, C, H, W) times a factor (b, 1, 1, 1), kept within the range of bytes."""
    return (images * factor).clamp(0, WHITE)


def contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Away from every image's mean grey by a factor (b, 1, 1, 1); 0 is all grey, 1 the image."""
    return _from(gray(images).mean((1, 2, 3), keepdim=True), images, factor)


def saturate(images: Tensor, factor: Tensor) -> Tensor:
    """Away from every pixel's grey by a factor (b, 1, 1, 1); grey images stay as they are."""
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


ENLARGED = 8 / 7
"""Images that are cropped and stretched are held up to this much larger than what comes out."""

ORDERS = list(permutations(range(4)))
GEOMETRIC = (ResizedCrop, PaddedCrop, Flip, Rotation, Fit)

Step = Geometric | Pixelwise


class Draws(NamedTuple):
    """All chance of a batch: uniform numbers of [0, 1), (b, draws), and the order of a jitter's parts."""

    numbers: Tensor
    order: tuple[int, ...]

    def rows(self, start: int, stop: int) -> Draws:
        """The chance of some images of the batch; the order is common to all."""
        return self._replace(numbers=self.numbers[start:stop])


class DeviceAugmentation:
    """Random steps for batches of bytes (b, C, side, side), to (b, C, size, size) on the same device.

    `side` may be `size` up to `largest_side`. `counts_pixels`: a window is cut whose size is in pixels of what
    comes in, so that the images must be held as they are and not be resized to fit.

    >>> augmentation = device_augmentation([v2.RandomHorizontalFlip()], size=28)
    >>> augmentation(torch.zeros(8, 1, 28, 28, dtype=torch.uint8), seed=0, epoch=0, step=0).shape
    torch.Size([8, 1, 28, 28])
    """

    def __init__(self, steps: Sequence[Step], *, size: int) -> None:
        self.steps = list(steps)
        self.size = size
        self.draws = sum(step.draws for step in steps)
        kinds = [type(step) for step in steps if isinstance(step, ResizedCrop | PaddedCrop)]
        self.counts_pixels = kinds[:1] == [PaddedCrop]
        self.largest_side = round(ENLARGED * size) if kinds[:1] == [ResizedCrop] else size

    def __call__(
        self, images: Tensor, *, seed: int, epoch: int, step: int, rank: int = 0, world_size: int = 1
    ) -> Tensor:
        """Augments a step's batch, or one process's share of it: the same for every number of processes."""
        count = len(images)
        draws = self.draw(count * world_size, seed=seed, epoch=epoch, step=step, device=images.device)
        return self.apply(images, draws.rows(rank * count, (rank + 1) * count))

    def draw(self, count: int, *, seed: int, epoch: int, step: int, device: torch.device) -> Draws:
        """The chance of one step, from (seed, epoch, step) alone."""
        state = np.random.SeedSequence([seed, epoch, step]).generate_state(2, np.uint64)
        generator = torch.Generator(device).manual_seed(int(state[0] >> np.uint64(1)))
        numbers = torch.rand(count, self.draws, generator=generator, device=device)
        return Draws(numbers, ORDERS[int(state[1]) % len(ORDERS)])

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        """Images (b, C, side, side) of bytes with draws (b, draws) given."""
        side = images.shape[-1]
        if images.dtype != torch.uint8 or images.dim() != 4 or images.shape[-2] != side:
            raise InputError(
                f"Augmentation takes square uint8 images (b, C, side, side), got {images.dtype} "
                f"{tuple(images.shape)}."
            )
        if not self.size <= side <= self.largest_side:
            raise InputError(
                f"This augmentation takes images of side {self.size} to {self.largest_side}, got {side}."
            )
        columns = draws.numbers.split([step.draws for step in self.steps], dim=1)
        values = images.float()
        pairs = zip(self.steps, columns, strict=True)
        for moves_pixels, group in groupby(pairs, key=lambda pair: isinstance(pair[0], GEOMETRIC)):
            run = list(group)
            values = _move(values, run) if moves_pixels else _recolour(values, run, draws.order)
        return values.round_().clamp_(0, WHITE).to(torch.uint8)  # our own copy since `float`


def device_augmentation(steps: Sequence[Callable[..., Any]], *, size: int) -> DeviceAugmentation | None:
    """The batched version of transforms of torchvision v2; None where one of them, or an option, has none.

    >>> device_augmentation([v2.RandomResizedCrop(28), v2.ColorJitter(hue=0.1)], size=28).largest_side
    32
    >>> device_augmentation([v2.GaussianBlur(3)], size=28) is None
    True
    """
    batched: list[Step] = []
    for step in steps:
        version = VERSIONS[type(step)](step) if type(step) in VERSIONS else None
        if version is None:
            return None
        batched.append(version)
    augmentation = DeviceAugmentation(_flips_before_colours(batched), size=size)
    frame = (augmentation.largest_side, augmentation.largest_side)
    for part in augmentation.steps:
        if isinstance(part, PaddedCrop) and min(part.room(frame)) < 0:
            return None  # torchvision's own error says it
        if isinstance(part, ResizedCrop) and not _hardly_shrinks(frame, part.size, size):
            return None
        frame = part.after(frame) if isinstance(part, GEOMETRIC) else frame
    if frame == (size, size):
        return augmentation
    if frame[0] != frame[1] or not _hardly_shrinks(frame, (size, size), size):
        return None
    return DeviceAugmentation([*augmentation.steps, Fit((size, size))], size=size)


def _hardly_shrinks(frame: Frame, to: Frame, size: int) -> bool:
    """Whether no side gets smaller by more than images of `size` are held larger."""
    largest = round(ENLARGED * size)
    return frame[0] * size <= largest * to[0] and frame[1] * size <= largest * to[1]


def _move(values: Tensor, run: list[tuple[Any, Tensor]]) -> Tensor:
    frame: Frame = (values.shape[-2], values.shape[-1])
    with_parameters = []
    for step, draws in run:
        with_parameters.append((step, step.parameters(draws, frame)))
        frame = step.after(frame)
    return resample(values, with_parameters)


def _recolour(values: Tensor, run: list[tuple[Any, Tensor]], order: Sequence[int]) -> Tensor:
    for step, draws in run:
        values = step.apply(values, draws, order)
    return values


def _flips_before_colours(steps: Sequence[Step]) -> list[Step]:
    """Flips and colours commute exactly: a flip that follows colours joins the sampling before them."""
    ordered: list[Step] = []
    for step in steps:
        place = len(ordered)
        while isinstance(step, Flip) and place and isinstance(ordered[place - 1], Jitter | Grayscale):
            place -= 1
        ordered.insert(place, step)
    return ordered


def _resized_crop(step: v2.RandomResizedCrop) -> ResizedCrop | None:
    if step.interpolation not in (InterpolationMode.BILINEAR, "bilinear"):
        return None
    return ResizedCrop((step.size[0], step.size[1]), _range(step.scale), _range(step.ratio))


def _padded_crop(step: v2.RandomCrop) -> PaddedCrop | None:
    padding = tuple(step.padding or (0, 0, 0, 0))
    if step.pad_if_needed or step.padding_mode != "constant" or not isinstance(step.fill, int | float):
        return None
    return PaddedCrop((step.size[0], step.size[1]), padding, float(step.fill))


def _rotation(step: v2.RandomRotation) -> Rotation | None:
    if step.expand or step.center is not None or not isinstance(step.fill, int | float):
        return None
    return Rotation(_range(step.degrees), float(step.fill))


def _erasing(step: v2.RandomErasing) -> Erasing | None:
    if step.value is None or len(step.value) != 1:
        return None
    return Erasing(step.p, _range(step.scale), _range(step.ratio), float(step.value[0]))


def _jitter(step: v2.ColorJitter) -> Jitter:
    return Jitter((step.brightness, step.contrast, step.saturation, step.hue))


def _range(pair: Sequence[float]) -> tuple[float, float]:
    return float(pair[0]), float(pair[1])


VERSIONS: dict[type, Callable[[Any], Step | None]] = {
    v2.RandomResizedCrop: _resized_crop,
    v2.RandomCrop: _padded_crop,
    v2.RandomRotation: _rotation,
    v2.RandomHorizontalFlip: lambda step: Flip(step.p, upright=False),
    v2.RandomVerticalFlip: lambda step: Flip(step.p, upright=True),
    v2.ColorJitter: _jitter,
    v2.RandomGrayscale: lambda step: Grayscale(step.p),
    v2.RandomErasing: _erasing,
}
"""Transforms of torchvision with a batched version; a version of None says that an option has none."""
