"""The blocks of any network: which modules they are, and what it takes to drop channels after each of them.

What counts as a block, in this order:

1. timm's networks say it themselves: the finest groups of layers of their `group_matcher`, which are residual
   blocks, dense layers, inverted residuals, transformer blocks.
2. Others by their structure. `Sequential`, `ModuleList` and `ModuleDict` are looked into, to any depth; a module in
   them that has a `forward` of its own and weights inside it is a block, and so is a `Sequential` of plain layers
   beside it. Plain layers beside blocks are stem, pooling or neck.
3. Without any such container: the network's own modules that are so.
4. A network of plain layers: each that has weights is a block, in a `Sequential` up to the next one.

A network in which there is only one block is a wrapper: its blocks are those of what it wraps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from doubtless.errors import InputError


class BlockOutput(NamedTuple):
    """What a block puts out: `width` channels along `axis`, `values` numbers an image."""

    name: str
    width: int
    axis: int
    values: int


def find_blocks(network: nn.Module) -> list[str]:
    """The names of a network's blocks; what is one stands above. None at all is an empty list.

    >>> from doubtless.models import networks
    >>> find_blocks(networks.resnet9())
    ['0', '1', '2', '3', '4', '5']
    >>> find_blocks(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 8, 3)))
    ['2', '3']
    """
    if names := _named_by_timm(network):
        return names
    inner = [name for name, child in network.named_children() if _is_block(child)]
    found = list(_in_containers(network, "")) or inner
    if len(found) == 1:
        return [f"{found[0]}.{name}" for name in find_blocks(network.get_submodule(found[0]))] or found
    return found or list(_plain_layers(network, ""))


def _named_by_timm(network: nn.Module) -> list[str]:
    """The modules whose names are the finest groups of layers that timm's network knows."""
    matcher = getattr(network, "group_matcher", None)
    groups = matcher(coarse=False) if callable(matcher) else None
    if not isinstance(groups, dict):
        return []
    # Those with a number of their own belong to the group before or after them: a stem, a norm.
    said: Any = groups.get("blocks") or []
    pairs = [(said, None)] if isinstance(said, str) else said
    patterns = [re.compile(pattern) for pattern, place in pairs if place is None]
    names = [
        name
        for name, module in network.named_modules()
        if any(pattern.fullmatch(name) for pattern in patterns) and _has_weights(module)
    ]
    return [name for name in names if not any(other.startswith(f"{name}.") for other in names)]


def _in_containers(module: nn.Module, name: str) -> Iterator[str]:
    """Rule 2: blocks in the containers of a module, or in it where it is one."""
    for short, child in module.named_children():
        full = f"{name}.{short}" if name else short
        deeper = list(_in_containers(child, full)) if _is_container(child) else []
        if deeper:
            yield from deeper
        elif _is_container(module) and (_is_block(child) or (_is_container(child) and _has_weights(child))):
            yield full


def _plain_layers(module: nn.Module, name: str) -> Iterator[str]:
    """Rule 4: each layer with a matrix of weights; in a `Sequential` the last layer before the next such one."""
    last: str | None = None
    for short, child in module.named_children():
        full = f"{name}.{short}" if name else short
        weighs = any(value.dim() > 1 for value in child.parameters())
        if weighs and last is not None:
            yield last
        if _is_container(child):
            yield from _plain_layers(child, full)
            last = None
        elif weighs or (last is not None and isinstance(module, nn.Sequential)):
            last = full
    if last is not None:
        yield last


def _is_container(module: nn.Module) -> bool:
    """Whether it does nothing but hold others: it has no forward of its own."""
    forward: Any = type(module).forward
    if isinstance(module, nn.ModuleList | nn.ModuleDict):
        return forward in (nn.ModuleList.forward, nn.ModuleDict.forward)
    return isinstance(module, nn.Sequential) and forward is nn.Sequential.forward


def _is_block(module: nn.Module) -> bool:
    """Whether it has a forward of its own and weights inside it."""
    return not _is_container(module) and any(_has_weights(child) for child in module.children())


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


class Seen(NamedTuple):
    """A network's blocks as a forward pass met them, and whether anything with weights follows the last."""

    blocks: list[BlockOutput]
    weights_follow: bool


class Trial:
    """Forward passes of a network that compute nothing: its weights, and zero images, on the meta device.

    Of a network that will not run there (a tensor that is neither parameter nor buffer, a decision by values) with
    its own weights.
    """

    def __init__(self, network: nn.Module, images: Tensor) -> None:
        self.network, self._real = network, images
        held = chain(network.named_parameters(), network.named_buffers())
        self.state = {name: torch.empty_like(value, device="meta") for name, value in held}
        self.images = images.to("meta")

    @torch.no_grad()
    def __call__(self) -> Tensor:
        """What the network gives, in evaluation mode."""
        modes = {module: module.training for module in self.network.modules()}
        try:
            output: Tensor = torch.func.functional_call(self.network.eval(), self.state, (self.images,))
        finally:
            for module, training in modes.items():
                module.training = training
        return output

    def see(self, names: Iterable[str]) -> Seen:
        """What the named blocks put out, in the order they are run in."""
        wanted, order = set(names), list[tuple[str, Any]]()

        def note(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
            order.append((name, output))

        handles = [
            module.register_forward_hook(partial(note, name))
            for name, module in self.network.named_modules()
            if name in wanted or next(module.parameters(recurse=False), None) is not None
        ]
        try:
            self()
        except Exception:  # every network fails in its own way
            order.clear()
            self.state, self.images = {}, self._real
            self()
        finally:
            for handle in handles:
                handle.remove()
        places = [place for place, (name, _) in enumerate(order) if name in wanted]
        if len({order[place][0] for place in places}) != len(places):
            raise InputError(
                "dropout.where: blocks needs blocks that are run once; this network repeats some."
            )
        blocks = [self._describe(*order[place]) for place in places]
        return Seen(blocks, weights_follow=bool(places) and places[-1] + 1 < len(order))

    def _describe(self, name: str, output: Any) -> BlockOutput:
        count = len(self.images)
        if not isinstance(output, Tensor) or output.dim() < 2 or output.shape[0] != count:
            what = tuple(output.shape) if isinstance(output, Tensor) else f"a {type(output).__name__}"
            raise InputError(
                f"dropout.where: blocks needs blocks that give one tensor with a row for each image; {name} gives "
                f"{what} for {count} images. Use dropout.where: head."
            )
        axis = _channel_axis(self.network, name, output) if output.dim() == 4 else output.dim() - 1
        return BlockOutput(name, output.shape[axis], axis, output[0].numel())


def _channel_axis(network: nn.Module, name: str, output: Tensor) -> int:
    """Of a block's maps: the axis that is not a side of the square images; of tokens and features it is the last.

    Where sides do not tell, the block's norms and biases do, one number for each channel, or timm by its word for
    channels behind the sides.
    """
    _, first, second, third = output.shape
    if first != second == third:
        return 1
    if first == second != third:
        return 3
    lengths = {len(value) for value in network.get_submodule(name).parameters() if value.dim() == 1}
    if first != third:
        return 3 if third in lengths and first not in lengths else 1
    return 3 if any("NHWC" in str(getattr(module, "output_fmt", "")) for module in network.modules()) else 1
