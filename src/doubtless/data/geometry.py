"""Size and colour of images as torchvision's `resize`, `center_crop` and `rgb_to_grayscale` make them, bit for bit.

torchvision takes longer to import than to embed a picture: who asks one question should not wait for it.
`tests/data/test_geometry.py` compares them.
"""

from __future__ import annotations

import platform

import torch
from torch import Tensor
from torch.nn.functional import interpolate


def short_side_to(image: Tensor, size: int) -> Tensor:
    """An image (C, H, W) whose short side is then `size`; bilinear, antialiased.

    >>> short_side_to(torch.zeros(3, 100, 60, dtype=torch.uint8), 30).shape
    torch.Size([3, 50, 30])
    """
    height, width = image.shape[-2:]
    short, long = min(height, width), max(height, width)
    other = int(size * long / short)
    shape = (other, size) if width <= height else (size, other)
    if shape == (height, width):
        return image
    batch = _packed(image)
    if image.dtype == torch.uint8 and not _resizes_bytes(image.device):
        found = interpolate(batch.float(), shape, mode="bilinear", align_corners=False, antialias=True)
        return found.round_().to(torch.uint8)[0]
    return interpolate(batch, shape, mode="bilinear", align_corners=False, antialias=True)[0]


def middle_square(image: Tensor, size: int) -> Tensor:
    """The square of `size` in the middle of an image (C, H, W) that is no smaller.

    >>> middle_square(torch.arange(12).view(1, 3, 4), 2).tolist()
    [[[1, 2], [5, 6]]]
    """
    top, left = (round((side - size) / 2) for side in image.shape[-2:])
    return image[..., top : top + size, left : left + size]


def grey(image: Tensor) -> Tensor:
    """An image (3, H, W) as (1, H, W): 0.2989 R + 0.587 G + 0.114 B.

    Some lines at a time: as floats, 50 million pixels would take 400 MB beside it.
    """
    lines = max(1, AT_ONCE // max(1, image.shape[-1]))
    found = torch.empty_like(image[..., :1, :, :], memory_format=torch.contiguous_format)
    for part, made in zip(image.split(lines, dim=-2), found.split(lines, dim=-2), strict=True):
        made.copy_(_grey(part))
    return found


AT_ONCE = 2**20
"""Pixels that are made grey in one go."""


def _grey(image: Tensor) -> Tensor:
    red, green, blue = image.unbind(dim=-3)
    value = red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)
    return value.unsqueeze(-3).to(image.dtype)


def _packed(image: Tensor) -> Tensor:
    """A batch of one; one whose channels lie side by side in memory says so, and stays so."""
    batch = image.unsqueeze(0)
    strides = list(batch.stride())
    if batch.is_contiguous(memory_format=torch.channels_last) and image.numel() != strides[0]:
        return batch.as_strided(batch.shape, [image.numel(), *strides[1:]])
    return batch


def _resizes_bytes(device: torch.device) -> bool:
    """Whether bytes are resized as such, and not as floats that are rounded again."""
    fast = torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")
    return device.type == "cpu" and (fast or platform.machine() in ("aarch64", "arm64"))
