"""Crops, flips and rotations of a whole batch, each image by its own draw, in one bilinear sampling.

A run of geometric steps is followed backwards: from the pixel centres of what comes out to where they lie in
what went in. Each step is an affine map of these positions, so however many there are, every image is read
once. Positions are in pixels with centres at halves, as in torchvision: an image of width w spans [0, w].

What lies outside an image is `fill`. A bilinear sample that hangs over the border is the sample at the nearest
position inside, times the share of its weight that is inside (`cover`), plus fill times the rest: exact, and
it lets a later step's border stand where it would be if the images between the steps were made.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

Frame = tuple[int, int]
"""Height and width."""
Range = tuple[float, float]

TRIES = 10  # rectangles that torchvision draws before it gives up


class Sampling(NamedTuple):
    """Where the pixels of the output look, and how much of what they see is image."""

    x: Tensor  # (b or 1, H or 1, W)
    y: Tensor  # (b or 1, H, W or 1)
    cover: Tensor | float = 1.0
    ground: Tensor | float = 0.0  # what fill has added so far


class Geometric(Protocol):
    """A step that moves pixels: `draws` uniform numbers per image decide how."""

    draws: ClassVar[int]

    def after(self, frame: Frame) -> Frame:
        """The frame it makes of a frame."""

    def parameters(self, draws: Tensor, frame: Frame) -> tuple[Tensor, ...]:
        """What is done to each image, (b, 1, 1) each, from uniform numbers (b, draws)."""

    def back(self, at: Sampling, parameters: tuple[Tensor, ...], frame: Frame) -> Sampling:
        """From positions in its output to positions in its input, which has this frame."""


@dataclass(frozen=True)
class ResizedCrop:
    """A rectangle of random area and aspect, stretched to `size`.

    The rectangle's pixels alone are read, as if it had been cut out first. Nothing smooths before the rectangle
    is shrunk, so it must not be shrunk by much.
    """

    draws: ClassVar[int] = 2 * TRIES + 2
    size: Frame
    scale: Range
    ratio: Range

    def after(self, frame: Frame) -> Frame:
        """Always `size`."""
        return self.size

    def parameters(self, draws: Tensor, frame: Frame) -> tuple[Tensor, ...]:
        """Top, left, height, width: the first of ten tries that fits, the middle of the image if none does."""
        high, wide = frame
        width, height = rectangles(draws[:, :-2], high * wide, scale=self.scale, ratio=self.ratio)
        fits = (width > 0) & (width <= wide) & (height > 0) & (height <= high)
        any_fits, height, width = first_that_fits(fits, height, width)
        middle_height, middle_width = self._middle(frame)
        height = torch.where(any_fits, height, middle_height)
        width = torch.where(any_fits, width, middle_width)
        top, left = whole_up_to(draws[:, -2:-1], high - height), whole_up_to(draws[:, -1:], wide - width)
        if (middle_height, middle_width) != frame:  # the whole image is in the middle anyway
            top = torch.where(any_fits, top, (high - middle_height) // 2)
            left = torch.where(any_fits, left, (wide - middle_width) // 2)
        return tuple(value.unsqueeze(-1) for value in (top, left, height, width))

    def back(self, at: Sampling, parameters: tuple[Tensor, ...], frame: Frame) -> Sampling:
        """Stretched from `size` to the rectangle."""
        top, left, height, width = parameters
        return at._replace(
            x=_stretch(at.x, left, width, self.size[1]), y=_stretch(at.y, top, height, self.size[0])
        )

    def _middle(self, frame: Frame) -> Frame:
        """The largest rectangle of an accepted aspect."""
        high, wide = frame
        low, large = min(self.ratio), max(self.ratio)
        if wide / high < low:
            return round(wide / low), wide
        if wide / high > large:
            return high, round(high * large)
        return frame


@dataclass(frozen=True)
class Fit:
    """The whole image stretched to `size`: no draw."""

    draws: ClassVar[int] = 0
    size: Frame

    def after(self, frame: Frame) -> Frame:
        """Always `size`."""
        return self.size

    def parameters(self, draws: Tensor, frame: Frame) -> tuple[Tensor, ...]:
        """Nothing is drawn."""
        return ()

    def back(self, at: Sampling, parameters: tuple[Tensor, ...], frame: Frame) -> Sampling:
        """Stretched from `size` to the whole image."""
        high, wide = frame
        return at._replace(x=_stretch(at.x, 0, wide, self.size[1]), y=_stretch(at.y, 0, high, self.size[0]))


@dataclass(frozen=True)
class PaddedCrop:
    """A window of `size` anywhere in the image, after `fill` was put around it: (left, right, top, bottom)."""

    draws: ClassVar[int] = 2
    size: Frame
    padding: tuple[int, int, int, int]
    fill: float

    def after(self, frame: Frame) -> Frame:
        """Always `size`."""
        return self.size

    def room(self, frame: Frame) -> Frame:
        """How far the window can move; negative where it does not fit."""
        left, right, top, bottom = self.padding
        return frame[0] + top + bottom - self.size[0], frame[1] + left + right - self.size[1]

    def parameters(self, draws: Tensor, frame: Frame) -> tuple[Tensor, ...]:
        """Top and left of the window in the padded image."""
        down, along = self.room(frame)
        return whole_up_to(draws[:, :1, None], down), whole_up_to(draws[:, 1:, None], along)

    def back(self, at: Sampling, parameters: tuple[Tensor, ...], frame: Frame) -> Sampling:
        """Moved by the window's place; outside of the image is `fill`."""
        top, left = parameters
        moved = at._replace(x=at.x + (left - self.padding[0]), y=at.y + (top - self.padding[2]))
        return _framed(moved, frame, self.fill) if any(self.padding) else moved


@dataclass(frozen=True)
class Flip:
    """Left and right (or, upright, top and bottom) change places with probability `p`."""

    draws: ClassVar[int] = 1
    p: float
    upright: bool

    def after(self, frame: Frame) -> Frame:
        """The same frame."""
        return frame

    def parameters(self, draws: Tensor, frame: Frame) -> tuple[Tensor, ...]:
        """Whether each image is flipped."""
        return (draws[:, :, None] < self.p,)

    def back(self, at: Sampling, parameters: tuple[Tensor, ...], frame: Frame) -> Sampling:
        """Mirrored where the image is flipped."""
        (flips,) = parameters
        if self.upright:
            return at._replace(y=torch.where(flips, frame[0] - at.y, at.y))
        return at._replace(x=torch.where(flips, frame[1] - at.x, at.x))


@dataclass(frozen=True)
class Rotation:
    """About the middle, against the clock, by an angle uniform in `degrees`; the frame stays."""

    draws: ClassVar[int] = 1
    degrees: Range
    fill: float

    def after(self, frame: Frame) -> Frame:
        """The same frame."""
        return frame

    def parameters(self, draws: Tensor, frame: Frame) -> tuple[Tensor, ...]:
        """The angle of each image, in degrees."""
        return (uniform(draws[:, :, None], self.degrees),)

    def back(self, at: Sampling, parameters: tuple[Tensor, ...], frame: Frame) -> Sampling:
        """Turned back about the middle; outside of the image is `fill`."""
        radians = parameters[0] * (math.pi / 180)
        cosine, sine = radians.cos(), radians.sin()
        x, y = at.x - frame[1] / 2, at.y - frame[0] / 2
        turned = at._replace(
            x=x * cosine - y * sine + frame[1] / 2, y=x * sine + y * cosine + frame[0] / 2
        )  # (b, H, W)
        return _framed(turned, frame, self.fill)


def resample(images: Tensor, steps: Sequence[tuple[Geometric, tuple[Tensor, ...]]]) -> Tensor:
    """Images (b, C, H, W) of floats after geometric steps, each with its parameters, in one sampling.

    >>> flipped = resample(torch.tensor([[[[1.0, 2.0]]]]), [(Flip(p=1.0, upright=False), (torch.tensor(True),))])
    >>> flipped.tolist()
    [[[[2.0, 1.0]]]]
    """
    frames: list[Frame] = [(images.shape[-2], images.shape[-1])]
    for step, _ in steps:
        frames.append(step.after(frames[-1]))
    high, wide = frames.pop()
    at = Sampling(
        x=torch.arange(wide, device=images.device).view(1, 1, wide) + 0.5,
        y=torch.arange(high, device=images.device).view(1, high, 1) + 0.5,
    )
    for (step, parameters), frame in zip(reversed(steps), reversed(frames), strict=True):
        at = step.back(at, parameters, frame)
    sides = torch.broadcast_tensors(at.x * (2 / images.shape[-1]) - 1, at.y * (2 / images.shape[-2]) - 1)
    grid = torch.stack(sides, dim=-1).expand(len(images), high, wide, 2)
    seen = grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)
    if isinstance(at.cover, Tensor):
        seen = seen * at.cover.unsqueeze(1)
    return seen + at.ground.unsqueeze(1) if isinstance(at.ground, Tensor) else seen


def uniform(draws: Tensor, among: Range) -> Tensor:
    """Uniform numbers of [0, 1) moved to a range."""
    return draws * (among[1] - among[0]) + among[0]


def whole_up_to(draws: Tensor, end: Tensor | int) -> Tensor:
    """Uniform numbers of [0, 1) to whole numbers 0 … end, as floats."""
    return (draws * (end + 1)).floor().clamp(max=end)  # the product may round up


def rectangles(draws: Tensor, area: int, *, scale: Range, ratio: Range) -> tuple[Tensor, Tensor]:
    """Whole sides (b, tries) with area uniform and aspect first/second log-uniform, from draws (b, 2 · tries)."""
    areas, aspects = draws.chunk(2, dim=1)
    target = uniform(areas, (area * scale[0], area * scale[1]))
    aspect = uniform(aspects, (math.log(ratio[0]), math.log(ratio[1]))).exp()
    return (target * aspect).sqrt().round(), (target / aspect).sqrt().round()


def first_that_fits(fits: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether any of the tries (b, tries) fits, and the sides of the first that does, (b, 1) each."""
    earliness = torch.arange(fits.shape[1], 0, -1, device=fits.device)
    chosen = (fits * earliness).argmax(1, keepdim=True)
    return fits.any(1, keepdim=True), first.gather(1, chosen), second.gather(1, chosen)


def _stretch(position: Tensor, start: Tensor | int, length: Tensor | int, size: int) -> Tensor:
    """From [0, size] to [start, start + length], never nearer to its ends than the middle of its last pixels."""
    return (position * (length / size)).clamp_min(0.5).clamp(max=length - 0.5) + start


def _framed(at: Sampling, frame: Frame, fill: float) -> Sampling:
    """Positions moved into the frame; what of their samples lay outside is fill."""
    high, wide = frame
    inside = _cover(at.x, wide) * _cover(at.y, high)
    ground = at.ground if fill == 0 else at.ground + at.cover * (1 - inside) * fill
    return Sampling(at.x.clamp(0.5, wide - 0.5), at.y.clamp(0.5, high - 0.5), at.cover * inside, ground)


def _cover(position: Tensor, length: int) -> Tensor:
    """The share of a bilinear sample's weight that lies on pixels."""
    return (torch.minimum(position, length - position) + 0.5).clamp(0, 1)
