"""Data sources from Python objects: a torch `Dataset` or a list of images, whoever made it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from doubtless.data.prepare import pixels_of
from doubtless.data.source import ImageList, Source
from doubtless.errors import InputError

PYTHON = "python"
"""The name of data that was given as an object: nothing that could be opened again."""
IN_MEMORY = 2 << 30
"""Images of one shape are copied into one tensor up to so many bytes."""


def as_source(data: Any, *, name: str = PYTHON, labels: Sequence[Any] | None = None) -> Source:
    """A source from a torch `Dataset` of (image, label), a list of such pairs, or images and their labels.

    Images are files, Pillow images or tensors (C, H, W) of bytes or of floats in [0, 1], of any size; labels are
    whole numbers or strings. Images of one shape are held as one tensor, files stay files, and others are asked
    for when they are needed.

    >>> as_source([(torch.zeros(1, 8, 8), "cat"), (torch.ones(1, 8, 8), "dog")]).label_names
    ['cat', 'dog']
    >>> as_source([torch.zeros(1, 8, 8), torch.ones(1, 6, 6)], labels=[3, 3]).images[1].shape
    torch.Size([1, 6, 6])
    """
    if isinstance(data, Source):
        return replace(data, name=name)
    if not hasattr(data, "__len__") or not hasattr(data, "__getitem__") or isinstance(data, str | dict):
        raise InputError(
            f"{name} must be a Source, a Dataset with a length or a list of (image, label) pairs, got a "
            f"{type(data).__name__}."
        )
    if len(data) == 0:
        raise InputError(f"{name} has no images.")
    if labels is not None and len(labels) != len(data):
        raise InputError(f"{name} has {len(data)} images but {len(labels)} labels.")
    images: Sequence[Any] = _First(name, data) if labels is None else data
    if isinstance(data, list | tuple) and all(isinstance(image, str | Path) for image in images):
        found = labels if labels is not None else [pair[1] for pair in data]
        numbers, names = _numbered(name, found, None)
        return Source(name=name, labels=numbers, label_names=names, paths=[Path(image) for image in images])
    return _read(name, images, data, labels)


def _read(name: str, images: Sequence[Any], data: Any, labels: Sequence[Any] | None) -> Source:
    """Walks once through all images: their labels, shapes and a hash of their pixels."""
    held: list[Tensor] | None = []
    digest, channels, size = hashlib.sha256(), 1, 0
    found: list[Any] = []
    for position in range(len(data)):
        item = data[position]
        image, label = (item, labels[position]) if labels is not None else _pair(name, position, item)
        pixels = _pixels(name, position, image)
        digest.update(f"{tuple(pixels.shape)}".encode() + pixels.contiguous().numpy().tobytes())
        channels, size = max(channels, pixels.shape[0]), size + pixels.numel()
        found.append(label)
        if held is not None and (size > IN_MEMORY or (held and held[0].shape != pixels.shape)):
            held = None
        if held is not None:
            held.append(pixels)
    numbers, names = _numbered(name, found, getattr(data, "classes", None))
    if held is not None:
        return Source(name=name, labels=numbers, label_names=names, pixels=torch.stack(held))
    kept = ImageList(images, channels, digest.hexdigest())
    return Source(name=name, labels=numbers, label_names=names, images=kept)


class _First(Sequence[Any]):
    """The images of a sequence of (image, label)."""

    def __init__(self, name: str, pairs: Any) -> None:
        self.name = name
        self.pairs = pairs

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: Any) -> Any:
        if not 0 <= index < len(self):  # a Dataset need not end by itself
            raise IndexError(index)
        return _pair(self.name, index, self.pairs[index])[0]


def _pair(name: str, position: int, item: Any) -> tuple[Any, Any]:
    if not isinstance(item, list | tuple) or len(item) != 2:
        raise InputError(
            f"{name} must give (image, label) pairs, number {position} is a {type(item).__name__}; labels that "
            "lie elsewhere are given to as_source(images, labels=...)."
        )
    return item[0], item[1]


def _pixels(name: str, position: int, image: Any) -> Tensor:
    try:
        pixels = pixels_of(image)
    except InputError as error:
        raise InputError(f"Image number {position} of {name} cannot be used. {error}") from error
    if pixels.dtype != torch.uint8 or pixels.shape[0] not in (1, 3):
        raise InputError(
            f"Image number {position} of {name} must be (1 or 3, H, W) of bytes or of floats in [0, 1], got "
            f"{tuple(pixels.shape)} of {pixels.dtype}."
        )
    return pixels.cpu()


def _numbered(name: str, labels: Sequence[Any], classes: Any) -> tuple[Tensor, list[str]]:
    """Labels as positions in the names of the classes that occur: sorted, numbers by their value."""
    plain = [label.item() if isinstance(label, Tensor | np.generic) else label for label in labels]
    kinds = {type(label) for label in plain}
    if kinds not in ({int}, {str}):
        got = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise InputError(f"The labels of {name} must all be whole numbers or all be strings, got {got}.")
    present = sorted(set(plain))
    position = {label: number for number, label in enumerate(present)}
    named = (
        isinstance(classes, list | tuple) and kinds == {int} and 0 <= present[0] <= present[-1] < len(classes)
    )
    names = [str(classes[label]) if named else str(label) for label in present]
    return torch.tensor([position[label] for label in plain]), names
