"""Loaders: prepared images of a source, in memory on the device where they fit, through workers where not.

Random images come from workers too, unless the device is a GPU and can augment by itself
(`doubtless.data.device_augmentation`): then they are held there as they are without chance.

Features of a frozen encoder are computed once for a whole source, kept on disk and memory-mapped. Their key
is a hash of everything they depend on: the encoder's weights, how images are prepared, and what the source
holds. A changed pixel or weight gives another key, never stale features.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from doubtless.data.batches import BalancedBatches
from doubtless.data.prepare import Preparation
from doubtless.data.source import Source
from doubtless.data.sources import Progress
from doubtless.distributed import rank, world_size
from doubtless.errors import InputError
from doubtless.files import atomic_writer

if TYPE_CHECKING:
    from doubtless.data.device_augmentation import DeviceAugmentation


MEMORY_BUDGET = 2 << 30
"""Prepared images up to this many bytes are kept in memory as one tensor."""


class Batch(NamedTuple):
    """What a loader gives: images uint8 (b, C, H, W) or features (b, F); labels and positions (b,)."""

    inputs: Tensor
    labels: Tensor
    position: Tensor


class ImageSet(Dataset[Batch]):
    """A part of a source, prepared: what training, validation and evaluation read.

    >>> from doubtless.data import open_source
    >>> images = ImageSet(open_source("digits"), torch.arange(100), Preparation(channels=1, size=28))
    >>> len(images), images[0].inputs.shape
    (100, torch.Size([1, 28, 28]))
    """

    def __init__(self, source: Source, index: Tensor, preparation: Preparation, *, seed: int = 0) -> None:
        self.source = source
        self.index = index
        self.preparation = preparation
        self.labels = source.labels[index]
        self.places = None if source.places is None else source.places[index]
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: int) -> Batch:
        where = int(self.index[position])
        draw = hash((self.seed, self.epoch, where)) & 0x7FFFFFFF
        image = self.preparation(self.source.image(where), seed=draw)
        return Batch(image, self.labels[position], torch.tensor(position))

    def in_memory(self, progress: Progress | None = None) -> Tensor | None:
        """All prepared images as one uint8 tensor (n, C, H, W); None if they are drawn at random or too large."""
        if self.preparation.is_random or len(self) == 0:
            return None
        first = self[0].inputs
        if len(self) * first.numel() > MEMORY_BUDGET:
            return None
        if self.source.pixels is not None and self.source.pixels[0].shape == first.shape:
            return self.source.pixels[self.index]
        if self.preparation.size is None and self.source.pixels is None:
            raise InputError(
                f"The images of {self.source.name} come in different sizes; set data.size, such as 112."
            )
        everything = torch.empty(len(self), *first.shape, dtype=torch.uint8)
        positions = range(len(self))
        for position in progress(positions, "reading images", len(self)) if progress else positions:
            everything[position] = self[position].inputs
        return everything


class TensorBatches:
    """Batches indexed out of one tensor, on whatever device it is: no Python loader in the way.

    With `augment` each batch is augmented there, from the batches' seed, the epoch and the step alone.
    """

    def __init__(
        self,
        inputs: Tensor,
        labels: Tensor,
        batches: BalancedBatches,
        *,
        augment: DeviceAugmentation | None = None,
    ) -> None:
        self.inputs = inputs
        self.labels = labels.to(inputs.device)
        self.batches = batches
        self.augment = augment
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        plan = self.batches.epoch(self.epoch, rank=rank(), world_size=world_size())  # (steps, share)
        rows = plan.to(self.inputs.device)  # one transfer an epoch
        for step, row in enumerate(rows):
            yield Batch(self._augmented(self.inputs[row], step), self.labels[row], row)

    def _augmented(self, inputs: Tensor, step: int) -> Tensor:
        if self.augment is None:
            return inputs
        seed = self.batches.seed
        return self.augment(
            inputs, seed=seed, epoch=self.epoch, step=step, rank=rank(), world_size=world_size()
        )


class WorkerBatches:
    """Batches decoded and augmented by worker processes."""

    def __init__(self, images: ImageSet, batches: BalancedBatches, *, workers: int) -> None:
        self.images = images
        self.batches = batches
        self.workers = workers
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        self.images.epoch = self.epoch
        plan = self.batches.epoch(self.epoch, rank=rank(), world_size=world_size())
        yield from DataLoader(
            self.images,
            batch_sampler=plan.tolist(),
            num_workers=self.workers,
            pin_memory=torch.cuda.is_available(),
        )


def training_batches(
    images: ImageSet,
    *,
    batch_size: int,
    per_class: int | None,
    seed: int,
    workers: int,
    device: torch.device,
    progress: Progress | None = None,
    augment_on_device: bool | None = None,
) -> TensorBatches | WorkerBatches:
    """The training loader of an image set: set its `epoch` before iterating.

    `augment_on_device`: None does so on CUDA. Where it is done, random steps see the prepared square, held a
    little larger than what comes out where originals are larger, whereas workers run them on the original.
    """
    batches = BalancedBatches(images.labels, batch_size=batch_size, per_class=per_class, seed=seed)
    held = images.in_memory(progress)
    if held is not None:
        return TensorBatches(held.to(device), images.labels, batches)
    if device.type == "cuda" if augment_on_device is None else augment_on_device:
        augment = _augmentation_of(images)
        still = None if augment is None else _held_for(augment, images, progress)
        if still is not None:
            return TensorBatches(still.to(device), images.labels, batches, augment=augment)
    return WorkerBatches(images, batches, workers=workers)


def _augmentation_of(images: ImageSet) -> DeviceAugmentation | None:
    """The batched version of an image set's random steps, where there is one."""
    preparation = images.preparation
    if preparation.size is None or not preparation.is_random:
        return None
    # Here and not above: it needs torchvision, which is slow to import.
    from doubtless.data.device_augmentation import device_augmentation

    return device_augmentation(preparation.augmentation, size=preparation.size)


def _held_for(augment: DeviceAugmentation, images: ImageSet, progress: Progress | None) -> Tensor | None:
    """Images without chance (n, C, side, side), as large as `augment` has use for; None if they do not fit."""
    pixels = images.source.pixels
    sides = None if pixels is None else (pixels.shape[-2], pixels.shape[-1])
    if augment.counts_pixels and sides != (augment.size, augment.size):
        return None  # a window of so many pixels of the original is not one of the resized image
    side = augment.largest_side if sides is None else min(augment.largest_side, max(augment.size, min(sides)))
    still = images.preparation.without_augmentation(size=side)
    return ImageSet(images.source, images.index, still).in_memory(progress)


def in_order(
    images: ImageSet, *, batch_size: int, workers: int = 0, held: Tensor | None = None
) -> Iterator[Batch]:
    """Every image once, in order. `held` is what `images.in_memory()` gave, where it gave something."""
    if held is None:
        yield from DataLoader(images, batch_size=batch_size, num_workers=workers)
        return
    labels = images.labels.to(held.device)
    for start in range(0, len(images), batch_size):
        stop = min(start + batch_size, len(images))
        yield Batch(held[start:stop], labels[start:stop], torch.arange(start, stop))


def cache_folder() -> Path:
    """$DOUBTLESS_CACHE, or the user's cache folder."""
    own = os.environ.get("DOUBTLESS_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "doubtless"


def cached_features(
    encoder: nn.Module, images: ImageSet, compute: Callable[[ImageSet], Tensor], *, folder: Path | None = None
) -> Tensor:
    """Features (n, F) of an image set; `compute` makes those of the whole source if they are not there yet."""
    still = images.preparation.without_augmentation()
    key = hashlib.sha256(
        f"{_weights_hash(encoder)} {still.describe()} {images.source.fingerprint()}".encode()
    ).hexdigest()[:24]
    path = (folder or cache_folder() / "features") / f"{key}.npy"
    if not path.exists():
        whole = ImageSet(images.source, torch.arange(len(images.source)), still)
        features = compute(whole).cpu().numpy()
        with atomic_writer(path) as file:
            np.lib.format.write_array(file, features, allow_pickle=False)
    stored = np.load(path, mmap_mode="r", allow_pickle=False)
    return torch.from_numpy(stored[images.index.numpy()])  # only the rows asked for are read


def _weights_hash(encoder: nn.Module) -> str:
    digest = hashlib.sha256(repr(encoder).encode())
    for name, value in sorted(encoder.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    for name, value in sorted(encoder.named_buffers()):  # normalisation is not in the state, but matters
        digest.update(f"{name}{value.flatten()[:8].tolist()}".encode())
    return digest.hexdigest()
