"""From an image of any size to the tensor a network takes: size, channels and augmentation.

Everything here is geometry and colour on bytes; scaling to floats and normalisation belong to the network
(`doubtless.models.Encoder`), so that they cannot be forgotten at query time.

torchvision is imported where it is used: it takes longer to import than everything else together, and images that
are held in the size of their network need none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from doubtless.errors import InputError, nearest

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
            raise InputError(f"There is no augmentation {steps!r}{nearest(steps, PRESETS)}.")
        self.augmentation = [_build(step, size) for step in steps]

    @property
    def is_random(self) -> bool:
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
            from torchvision.transforms.v2 import functional as geometry

            return geometry.rgb_to_grayscale(image, num_output_channels=1)
        return image[:1].expand(self.channels, -1, -1)

    def _with_size(self, image: Tensor) -> Tensor:
        """Short side to `size`, then the square in the middle."""
        if self.size is None or tuple(image.shape[-2:]) == (self.size, self.size):
            return image
        from torchvision.transforms import InterpolationMode
        from torchvision.transforms.v2 import functional as geometry

        image = geometry.resize(image, [self.size], interpolation=InterpolationMode.BILINEAR, antialias=True)
        return geometry.center_crop(image, [self.size, self.size])


def _build(step: AugmentStep, size: int | None) -> Callable[[Tensor], Tensor]:
    """A transform of torchvision v2 by its name, with its arguments: "RandomHorizontalFlip" or {name: {…}}."""
    from torchvision.transforms import v2

    if isinstance(step, dict) and len(step) != 1:
        raise InputError(f"An augmentation step is a name or {{name: {{arguments}}}}, got {step!r}.")
    name, arguments = next(iter(step.items())) if isinstance(step, dict) else (step, {})
    known = [key for key in dir(v2) if key[:1].isupper()]
    if name not in known:
        raise InputError(f"torchvision v2 has no transform {name!r}{nearest(name, known)}.")
    if name == "RandomResizedCrop" and "size" not in arguments:
        if size is None:
            raise InputError("RandomResizedCrop needs data.size.")
        arguments = {"size": [size, size], "antialias": True, **arguments}
    try:
        return getattr(v2, name)(**arguments)
    except (TypeError, ValueError) as error:
        raise InputError(f"The transform {name} does not take {arguments}: {error}.") from error
