"""Pictures made worse: blur, noise and occlusion, each from 0 (untouched) to 1 (hardly anything left).

Strengths are relative to the shorter side, so that they mean the same for a thumbnail and for a photograph. They
are nested: the same noise grows, the same blocks come one after the other, so that more is more of the same. The
sliders of the demo's page do the same in the browser.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

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
