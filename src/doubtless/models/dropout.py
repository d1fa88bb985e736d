"""Dropout at test time: masks that are the same for every image, and the small nets cut into conv blocks.

Gal and Ghahramani, *Dropout as a Bayesian Approximation* (2016): a network with its dropout left on is a
draw of networks. A draw is a set of masks; all images must go through the same draws to be comparable.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

Drop = Callable[[int, Tensor], Tensor]
"""Dropout number i on values (m, F): what stands between two blocks."""

MASKED_WEIGHTS = 2**24  # numbers held at once: copies of a linear layer, one for each draw
SAMPLED_IMAGES = 512  # images times draws that go through the blocks at once


def draw_masks(width: int, *, rate: float, samples: int, generator: torch.Generator) -> Tensor:
    """Masks (samples, width) of 0 and 1/(1 − rate), on the generator's device.

    Draw by draw, so that draw j does not depend on how many there are:

    >>> few, many = (
    ...     draw_masks(4, rate=0.5, samples=count, generator=torch.Generator().manual_seed(0))
    ...     for count in (2, 9)
    ... )
    >>> torch.equal(few, many[:2])
    True
    """
    draws = [torch.rand(width, generator=generator, device=generator.device) for _ in range(samples)]
    return (torch.stack(draws) >= rate).float() / (1 - rate)


def masked_linear(features: Tensor, layer: nn.Linear, masks: Tensor) -> Tensor:
    """A linear layer of masked features: (n, F) and masks (s, F) to (s, n, D).

    The mask goes onto the weights, which are fewer than the features of n images, and all draws of a chunk
    are one product.

    >>> masked_linear(torch.randn(5, 128), nn.Linear(128, 8), torch.ones(50, 128)).shape
    torch.Size([50, 5, 8])
    """
    dim, width = layer.weight.shape
    parts = []
    for some in masks.split(max(1, MASKED_WEIGHTS // (dim * width))):
        weights = (some.unsqueeze(1) * layer.weight).view(-1, width)  # (chunk · D, F)
        found = linear(features, weights).unflatten(1, (len(some), dim))  # (n, chunk, D)
        parts.append(found.transpose(0, 1) + layer.bias)
    return torch.cat(parts)


class ConvBlocks(nn.Sequential):
    """A small net cut after each of its conv blocks: a convolution, and all up to the next one.

    Its layers keep their names, so that weights of the uncut net fit. Calling it gives the first block's
    output, flattened: all that comes before the first dropout. `rest` is what follows.

    >>> from doubtless.models import conv_fashion
    >>> blocks = ConvBlocks(conv_fashion(), channels=1, size=28)
    >>> first = blocks(torch.zeros(2, 1, 28, 28))
    >>> first.shape, blocks.widths
    (torch.Size([2, 21632]), [21632, 9216])
    >>> blocks.rest(first, drop=lambda number, values: values).shape
    torch.Size([2, 9216])
    """

    def __init__(self, net: nn.Sequential, *, channels: int, size: int) -> None:
        super().__init__(*net)
        starts = [number for number, layer in enumerate(self) if isinstance(layer, nn.Conv2d)]
        self.spans = list(zip(starts, [*starts[1:], len(self)], strict=True))
        self.shapes: list[torch.Size] = []
        values = torch.zeros(1, channels, size, size)
        with torch.no_grad():
            for number in range(len(self.spans)):
                values = self._block(number, values)
                self.shapes.append(values.shape[1:])

    @property
    def widths(self) -> list[int]:
        """How many values each block puts out."""
        return [shape.numel() for shape in self.shapes]

    def forward(self, images: Tensor) -> Tensor:
        """The output (n, F) of the first block alone, which `rest` takes on."""
        return self._block(0, images).flatten(1)

    def rest(self, first: Tensor, *, drop: Drop) -> Tensor:
        """The first block's output (m, F) through all other blocks, `drop` after every block, to (m, F')."""
        values = drop(0, first)
        for number in range(1, len(self.spans)):
            values = self._block(number, values.unflatten(1, self.shapes[number - 1]))
            values = drop(number, values.flatten(1))
        return values

    def _block(self, number: int, values: Tensor) -> Tensor:
        start, end = self.spans[number]
        for layer in list(self)[start:end]:
            values = layer(values)
        return values


def sampled_blocks(blocks: ConvBlocks, head: nn.Linear, first: Tensor, *, masks: Tensor) -> Tensor:
    """The first block's output (n, F) through the rest once for every draw: (s, n, D).

    `masks` (s, sum of the blocks' widths) has those of every block side by side. Draws and images go through
    together, at most `SAMPLED_IMAGES` pairs of them at a time; all at once in a graph that is exported, which cuts
    would fix to a number of images.
    """
    if torch.compiler.is_exporting():
        return _through_blocks(blocks, head, first, masks=masks)
    columns = []
    for images in first.split(SAMPLED_IMAGES):
        together = max(1, SAMPLED_IMAGES // max(1, len(images)))
        rows = [_through_blocks(blocks, head, images, masks=some) for some in masks.split(together)]
        columns.append(torch.cat(rows))  # (s, m, D)
    return torch.cat(columns, dim=1)


def _through_blocks(blocks: ConvBlocks, head: nn.Linear, first: Tensor, *, masks: Tensor) -> Tensor:
    """As `sampled_blocks`, everything at once."""
    draws, images = len(masks), first.shape[0]  # not its length: in a graph that is exported any number
    of_block = masks.split(blocks.widths, dim=1)

    def drop(number: int, values: Tensor) -> Tensor:
        masked = values.unflatten(0, (draws, images)) * of_block[number].unsqueeze(1)
        return masked.flatten(0, 1)

    repeated = first.expand(draws, -1, -1).flatten(0, 1)  # (draws · images, F)
    return head(blocks.rest(repeated, drop=drop)).unflatten(0, (draws, images))
