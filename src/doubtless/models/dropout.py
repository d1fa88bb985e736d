"""Dropout at test time: masks that are the same for every image, in the small nets and after any network's blocks.

Gal and Ghahramani, *Dropout as a Bayesian Approximation* (2016): a network with its dropout left on is a
draw of networks. A draw is a set of masks; all images must go through the same draws to be comparable.

The small nets (`ConvBlocks`) drop single values, as their paper does. All others (`BlockDropout`) drop whole
channels of maps and tokens: neighbouring values of a map say nearly the same, so that single ones missing thin
nothing (Tompson et al. 2015, *Efficient Object Localization Using Convolutional Networks*); and such masks are some
thousand numbers whatever the size of the images, where those of single values would be millions for every draw.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, linear

from doubtless.errors import InputError
from doubtless.models.blocks import BlockOutput, Trial, find_blocks
from doubtless.models.encoder import Encoder

Drop = Callable[[int, Tensor], Tensor]
"""Dropout number i on values (m, F): what stands between two blocks."""

MASKED_WEIGHTS = 2**24  # numbers held at once: copies of a linear layer, one for each draw
SAMPLED_IMAGES = 512  # images times draws that go through the blocks at once
SAMPLED_VALUES = 2**24  # and the numbers that a block of them may put out, in networks of any size


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


class BlockDropout:
    """Dropout after every block of an encoder's network, but for one that only pooling parts from the head.

    Which modules are blocks is said in `doubtless.models.blocks`. The network stays as it is, weights keep their
    names: hooks after its blocks drop channels while a forward pass asks for it, and do nothing in all others.

    Where a forward pass is asked for several draws, images are repeated only where they differ first: after the
    first block, or before what holds it where the block's input is used again behind it, as in dense blocks.

    >>> encoder = Encoder("test_resnet", channels=3, size=32)
    >>> blocks = BlockDropout(encoder, size=32)
    >>> [block.name for block in blocks.outputs], blocks.widths
    (['layer1.0', 'layer2.0', 'layer3.0'], [32, 48, 192])
    """

    def __init__(self, encoder: Encoder, *, size: int) -> None:
        network, self.size = encoder.backbone, size
        images = torch.zeros(2, encoder.takes, size, size, device=encoder.mean.device)
        trial = Trial(network, images)
        seen = trial.see(find_blocks(network))
        outputs = seen.blocks
        if outputs and not seen.weights_follow and outputs[-1].width == encoder.feature_dim:
            outputs = outputs[:-1]  # its channels are the head's inputs, which are dropped there
        if not outputs:
            raise InputError(
                f"dropout.where: blocks finds no block in {encoder.name} but what the head takes; "
                "use dropout.where: head."
            )
        self.outputs: list[BlockOutput] = outputs
        self.repeats_after = False
        for number, block in enumerate(outputs):
            network.get_submodule(block.name).register_forward_hook(partial(_after_block, number))
        self._choose_repetition(trial)

    @property
    def widths(self) -> list[int]:
        """How many channels each block puts out."""
        return [block.width for block in self.outputs]

    @contextmanager
    def per_image(self, rate: float) -> Iterator[None]:
        """Within it: forward passes of the encoder drop channels, drawn anew for every image."""
        with _dropping(PerImage(self.outputs, rate)):
            yield

    def draw(self, encoder: Encoder, head: nn.Linear, images: Tensor, *, masks: Tensor) -> Tensor:
        """Images (n, C, H, W) through encoder and head once for every draw: (s, n, D).

        `masks` (s, sum of `widths` + features) has those of the blocks and of the head's inputs side by side. All
        draws of a few images go through together, as many as memory allows, so that what comes before the first
        dropout is computed once. In a graph that is exported all images do, for cuts would fix their number.
        """
        if torch.compiler.is_exporting():
            return self._draw(encoder, head, images, masks=masks)
        if len(images) == 0:
            return masks.new_zeros(len(masks), 0, head.out_features)
        values = max(block.values for block in self.outputs) * images[0, 0].numel() // self.size**2
        together = max(1, min(SAMPLED_IMAGES, SAMPLED_VALUES // max(1, values)))
        draws = masks.split(min(together, len(masks)))
        columns = []
        for some in images.split(max(1, together // len(masks))):
            columns.append(torch.cat([self._draw(encoder, head, some, masks=chosen) for chosen in draws]))
        return torch.cat(columns, dim=1)

    def _draw(self, encoder: Encoder, head: nn.Linear, images: Tensor, *, masks: Tensor) -> Tensor:
        """As `draw`, everything at once."""
        *of_blocks, of_features = masks.split([*self.widths, encoder.feature_dim], dim=1)
        shape = (len(masks), images.shape[0])
        with _dropping(SharedMasks(self.outputs, of_blocks, shape, self.repeats_after)):
            features = encoder(images).unflatten(0, shape)
        found: Tensor = head(features * of_features.unsqueeze(1))
        return found

    def _choose_repetition(self, trial: Trial) -> None:
        """Takes the latest place for the repetition with which the rest of the network runs.

        Two images and three draws: where six rows meet two, it fails.
        """
        first = self.outputs[0].name.split(".")
        shape = (3, len(trial.images))
        masks = [torch.ones(3, width, device=trial.images.device) for width in self.widths]
        for depth in [None, *range(len(first), -1, -1)]:  # after the block, before it, before what holds it …
            self.repeats_after = depth is None
            module = trial.network.get_submodule(".".join(first[:depth]))
            handle = None if depth is None else module.register_forward_pre_hook(_before_blocks)
            try:
                with _dropping(SharedMasks(self.outputs, masks, shape, self.repeats_after)):
                    rows = len(trial())
            except Exception:  # every network fails in its own way
                rows = 0
            if rows == shape[0] * shape[1]:
                return
            if handle is not None:
                handle.remove()
        raise InputError(
            "dropout.where: blocks cannot repeat images in this network; use dropout.where: head."
        )


@dataclass(frozen=True)
class PerImage:
    """Channels dropped for every image anew: training."""

    blocks: list[BlockOutput]
    rate: float

    def repeat(self, values: Tensor) -> Tensor:
        """Every image once."""
        return values

    def after(self, number: int, values: Tensor) -> Tensor:
        """The output of a block, thinned."""
        axis = self.blocks[number].axis
        shape = [length if place in (0, axis) else 1 for place, length in enumerate(values.shape)]
        return values * dropout(values.new_ones(shape), self.rate)


@dataclass(frozen=True)
class SharedMasks:
    """Masks (draws, width) for each block, the same for all images. Values are (draws · images, …)."""

    blocks: list[BlockOutput]
    masks: list[Tensor]
    shape: tuple[int, int]
    repeats_after: bool

    def repeat(self, values: Tensor) -> Tensor:
        """Every image once for each draw. Memory keeps its layout, which `Tensor.repeat` would not."""
        return torch.cat([values] * self.shape[0])

    def after(self, number: int, values: Tensor) -> Tensor:
        """The output of a block, thinned."""
        if number == 0 and self.repeats_after:
            values = self.repeat(values)
        axis, mask = self.blocks[number].axis, self.masks[number]
        sides = [mask.shape[1] if place == axis else 1 for place in range(1, values.dim())]
        mask = mask.view(self.shape[0], 1, *sides).to(values.dtype)
        return (values.unflatten(0, self.shape) * mask).flatten(0, 1)


# Not an attribute of the network: several threads may embed with one.
_ACTIVE: ContextVar[PerImage | SharedMasks | None] = ContextVar("dropout after blocks", default=None)


@contextmanager
def _dropping(drop: PerImage | SharedMasks) -> Iterator[None]:
    token = _ACTIVE.set(drop)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def _after_block(number: int, module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
    """The hook of a block; None leaves its output as it is."""
    drop = _ACTIVE.get()
    return None if drop is None else drop.after(number, output)


def _before_blocks(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """The hook where images are repeated; None leaves the inputs as they are."""
    drop = _ACTIVE.get()
    return None if drop is None else tuple(drop.repeat(values) for values in inputs)
