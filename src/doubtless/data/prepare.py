"""From image files of every common kind to the tensor a network takes: bytes, size, channels and augmentation.

Everything here is geometry and colour on bytes; scaling to floats and normalisation belong to the network
(`doubtless.models.Encoder`), so that they cannot be forgotten at query time.

torchvision is imported where it is used, for augmentation: it takes longer to import than everything else together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from doubtless.data.geometry import grey, middle_square, short_side_to
from doubtless.data.images import open_image, reason_of
from doubtless.data.pixels import rgb_pixels
from doubtless.errors import InputError, nearest

ImageLike = str | Path | bytes | Image.Image | Tensor | np.ndarray
"""A file, its bytes, a Pillow image, a tensor (C, H, W) or an array (H, W, 3): bytes, or floats in [0, 1]."""


def decode_image(file: str | Path | IO[bytes]) -> Tensor:
    """Reads a grey, RGB, RGBA, palette, CMYK or 16-bit image as uint8 (3, H, W).

    Transparency becomes white, 16 bits become 8, the camera's rotation is applied.
    """
    try:
        with open_image(file) as opened:
            return image_tensor(opened)
    except Exception as error:  # decoders of damaged files raise whatever they stumble over
        raise InputError(f"{file} cannot be read as an image: {reason_of(error)}.") from error


def image_tensor(image: Image.Image) -> Tensor:
    """A Pillow image as uint8 (3, H, W)."""
    # Copied by numpy: torch would share a single image among threads, which wait for each other on a busy machine.
    return torch.from_numpy(rgb_pixels(image))


def pixels_of(image: ImageLike) -> Tensor:
    """One image of any kind as uint8 (C, H, W).

    >>> pixels_of(torch.ones(1, 2, 2)).unique()
    tensor([255], dtype=torch.uint8)
    """
    if isinstance(image, str | Path):
        return decode_image(image)
    if isinstance(image, bytes):
        try:
            with open_image(image) as opened:
                return image_tensor(opened)
        except Exception as error:  # as above
            raise InputError(f"These bytes cannot be read as an image: {reason_of(error)}.") from error
    if isinstance(image, Image.Image):
        return image_tensor(image)
    if isinstance(image, np.ndarray):
        image = _tensor_of(image)
    if not isinstance(image, Tensor):
        raise InputError(
            "An image must be a file, its bytes, a Pillow image, an array (H, W) or (H, W, 3), or a tensor "
            f"(C, H, W), got a {type(image).__name__}."
        )
    if image.dim() != 3:
        raise InputError(f"An image must have shape (C, H, W), got {tuple(image.shape)}.")
    if not image.is_floating_point():
        return image
    if not bool(torch.isfinite(image).all()) or float(image.min()) < 0 or float(image.max()) > 1:
        raise InputError("An image of floats must lie in [0, 1], without NaN.")
    return (image * 255).round().to(torch.uint8)


def _tensor_of(array: np.ndarray) -> Tensor:
    """An array (H, W), (H, W, 1 or 3) or (1 or 3, H, W), as Pillow, OpenCV or torch give it, as (C, H, W)."""
    if array.dtype.kind not in "uif":
        raise InputError(f"An image must be an array of numbers, got {array.dtype}.")
    wide = array[None] if array.ndim == 2 else array
    if wide.ndim != 3 or not {1, 3} & {wide.shape[0], wide.shape[-1]}:
        raise InputError(
            f"An image must be an array (H, W), (H, W, 1 or 3) or (1 or 3, H, W), got {array.shape}."
        )
    if array.ndim == 3 and wide.shape[-1] in (1, 3):
        wide = wide.transpose(2, 0, 1)
    if wide.dtype.kind == "f":
        return torch.from_numpy(np.ascontiguousarray(wide, dtype=np.float32))
    if wide.size and (wide.min() < 0 or wide.max() > 255):
        raise InputError("An image of whole numbers must lie in 0…255.")
    return torch.from_numpy(np.ascontiguousarray(wide, dtype=np.uint8))


def readable(file: Path | bytes) -> str | None:
    """None if the whole file, or what its bytes say, decodes, else why not. JPEGs are checked at an eighth of
    their size, which still reads every byte."""
    try:
        with open_image(file) as image:
            image.draft("RGB", (image.width // 8 or 1, image.height // 8 or 1))
            image.load()
            if image.mode == "F" and not np.isfinite(np.asarray(image)).all():
                return "it has NaN or infinite pixels"
    except Exception as error:  # as above
        return reason_of(error)
    return None


AugmentStep = str | dict[str, dict[str, Any]]

PRESETS: dict[str, list[AugmentStep]] = {
    "crop-flip": [{"RandomResizedCrop": {"scale": [0.2, 1.0]}}, "RandomHorizontalFlip"],
    # Bayesian triplet loss, section 4
    "place": [
        {"RandomRotation": {"degrees": 10}},
        {"RandomResizedCrop": {"scale": [0.4, 1.0]}},
        {"ColorJitter": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}},
        "RandomHorizontalFlip",
    ],
}


class Preparation:
    """Makes uint8 (channels, size, size) out of any uint8 (C, H, W); without `size`, images keep theirs.

    >>> Preparation(channels=1, size=28)(torch.zeros(3, 100, 60, dtype=torch.uint8)).shape
    torch.Size([1, 28, 28])
    """

    def __init__(
        self, *, channels: int, size: int | None = None, augment: str | Sequence[AugmentStep] = ()
    ) -> None:
        self.channels = channels
        self.size = size
        steps = PRESETS[augment] if isinstance(augment, str) and augment in PRESETS else augment
        if isinstance(steps, str):
            raise InputError(f"There is no augmentation {steps!r}{nearest(steps, PRESETS)}")
        self.augmentation = [_build(step, size) for step in steps]

    @property
    def is_random(self) -> bool:
        """Whether it augments."""
        return bool(self.augmentation)

    def without_augmentation(self, *, size: int | None = None) -> Preparation:
        """The same without chance, at another size where one is given."""
        return Preparation(channels=self.channels, size=size or self.size)

    def describe(self) -> str:
        """What it does, as a part of cache keys."""
        return (
            f"channels={self.channels} size={self.size} augment={[repr(step) for step in self.augmentation]}"
        )

    def __call__(self, image: Tensor, *, seed: int | None = None) -> Tensor:
        """Prepares one image; with augmentation the draw is fixed by `seed`, whatever process does it."""
        image = self._with_channels(image)
        if self.augmentation:
            with torch.random.fork_rng(devices=[]):
                if seed is not None:
                    torch.manual_seed(seed)
                for step in self.augmentation:
                    image = step(image)
        return self._with_size(image)

    def _with_channels(self, image: Tensor) -> Tensor:
        if image.shape[0] == self.channels:
            return image
        if self.channels == 1:
            return grey(image)
        return image[:1].expand(self.channels, -1, -1)

    def _with_size(self, image: Tensor) -> Tensor:
        """Short side to `size`, then the square in the middle."""
        if self.size is None or tuple(image.shape[-2:]) == (self.size, self.size):
            return image
        return middle_square(short_side_to(image, self.size), self.size)


def _build(step: AugmentStep, size: int | None) -> Callable[[Tensor], Tensor]:
    """A transform of torchvision v2 by its name, with its arguments: "RandomHorizontalFlip" or {name: {…}}."""
    from torchvision.transforms import v2

    if isinstance(step, dict) and len(step) != 1:
        raise InputError(f"An augmentation step is a name or {{name: {{arguments}}}}, got {step!r}.")
    name, arguments = next(iter(step.items())) if isinstance(step, dict) else (step, {})
    known = [key for key in dir(v2) if key[:1].isupper()]
    if name not in known:
        raise InputError(f"torchvision v2 has no transform {name!r}{nearest(name, known)}")
    if name == "RandomResizedCrop" and "size" not in arguments:
        if size is None:
            raise InputError("RandomResizedCrop needs data.size.")
        arguments = {"size": [size, size], "antialias": True, **arguments}
    try:
        return getattr(v2, name)(**arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"The transform {name} does not take {arguments}: {error}.") from error
