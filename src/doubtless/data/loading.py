"""Loaders: prepared images of a source, held on the device where they fit, through workers where not.

A set that is asked for again is there already (`doubtless.data.holding`), and what was decoded from files is kept
on disk for the next process (`doubtless.data.cache`). Random images are held as they are without chance and
augmented a batch at a time where they lie (`doubtless.data.device_augmentation`); steps that have no batched
version are left to workers.

Features of a frozen encoder are computed once for a whole source, kept on disk and memory-mapped. Their key
is a hash of everything they depend on: the encoder's weights, how images are prepared, and what the source
holds. A changed pixel or weight gives another key, never stale features.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import PIL
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from doubtless.data.batches import BalancedBatches
from doubtless.data.cache import cache_folder, cached_pixels
from doubtless.data.holding import SHELF, decoding_threads, in_threads, room_on
from doubtless.data.prepare import Preparation
from doubtless.data.source import Source
from doubtless.data.sources import Progress
from doubtless.distributed import rank, world_size
from doubtless.errors import InputError
from doubtless.files import atomic_writer

if TYPE_CHECKING:
    from doubtless.data.device_augmentation import DeviceAugmentation


CPU = torch.device("cpu")
PIXELS = 1
"""Raised when prepared pixels would change, so that those on disk are not taken for them."""
SHARE = 16
"""Images that a decoding thread takes at a time."""


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
        self._whole: tuple[ImageSet, Tensor] | None = None

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: int) -> Batch:
        where = int(self.index[position])
        draw = hash((self.seed, self.epoch, where)) & 0x7FFFFFFF
        image = self.preparation(self.source.image(where), seed=draw)
        return Batch(image, self.labels[position], torch.tensor(position))

    def without_augmentation(self, *, size: int | None = None) -> ImageSet:
        """The same images without chance, at another size where one is given; with the labels of their source."""
        return ImageSet(self.source, self.index, self.preparation.without_augmentation(size=size))

    def part(self, rows: Tensor) -> ImageSet:
        """Some of its images, by position. They are taken from all where all are held, and not kept apart."""
        some = ImageSet(self.source, self.index[rows], self.preparation, seed=self.seed)
        some.labels = self.labels[rows]
        some._whole = (self, rows)
        return some

    def in_memory(self, progress: Progress | None = None) -> Tensor | None:
        """All prepared images as one uint8 tensor (n, C, H, W); None if they are drawn at random or too large."""
        return self.held(CPU, progress)

    def held(self, device: torch.device, progress: Progress | None = None) -> Tensor | None:
        """The same on a device: prepared once, then there as long as the source is, and room for it."""
        if self.preparation.is_random or len(self) == 0:
            return None
        key = self._key(device)
        kept = SHELF.get(self.source, key)
        if kept is not None:
            return kept
        if self._whole is not None:
            whole, rows = self._whole
            everything = whole.held(device, progress)
            if everything is not None:
                return everything[rows.to(device)]
        room = room_on(device)
        if len(self) * math.prod(self.shape) > room:
            return None
        prepared = self._prepared(progress).to(device)
        if not (self._as_given and device == CPU):  # quick to index again
            SHELF.put(self.source, key, prepared, room=room)
        return prepared

    @property
    def shape(self) -> tuple[int, ...]:
        """Channels, height and width of its images."""
        size, pixels = self.preparation.size, self.source.pixels
        if size is not None:
            return (self.preparation.channels, size, size)
        if pixels is None:
            raise InputError(
                f"The images of {self.source.name} come in different sizes; set data.size, such as 112."
            )
        return (self.preparation.channels, pixels.shape[-2], pixels.shape[-1])

    def _key(self, device: torch.device) -> Hashable:
        """What its prepared images depend on beside their source; pixels that are written to are other pixels."""
        pixels = self.source.pixels
        version = None if pixels is None else pixels._version
        return self.preparation.describe(), self.index.numpy().tobytes(), version, str(device)

    @property
    def _as_given(self) -> bool:
        """Whether the source's own pixels are what is wanted."""
        return self.source.pixels is not None and tuple(self.source.pixels.shape[1:]) == self.shape

    def _prepared(self, progress: Progress | None) -> Tensor:
        source = self.source
        if self._as_given:
            assert source.pixels is not None
            return source.pixels[self.index]
        if source.paths is None or self._whole is not None:
            return self._decoded(progress)
        made_with = f"{PIXELS} {torch.__version__} {PIL.__version__}"
        about = f"{made_with} {self.preparation.describe()} {source.fingerprint()}"
        key = hashlib.sha256(about.encode() + self.index.numpy().tobytes()).hexdigest()[:24]
        return cached_pixels(key, (len(self), *self.shape), lambda: self._decoded(progress))

    def _decoded(self, progress: Progress | None) -> Tensor:
        """All of them, by as many threads as there may be."""
        everything = torch.empty(len(self), *self.shape, dtype=torch.uint8)
        pixels = everything.numpy()

        def fill(share: range) -> range:
            for position in share:
                pixels[position] = self[position].inputs.numpy()
            return share

        shares = (range(start, min(start + SHARE, len(self))) for start in range(0, len(self), SHARE))
        done = (position for share in in_threads(fill, shares, threads=self.threads) for position in share)
        for _ in progress(done, "reading images", len(self)) if progress else done:
            pass
        return everything

    @property
    def threads(self) -> int:
        """How many may prepare images at once: a sequence of someone else's, and chance, are left to one."""
        return 1 if self.preparation.is_random or self.source.images is not None else decoding_threads()


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
    augment_on_device: bool = True,
) -> TensorBatches | WorkerBatches:
    """The training loader of an image set: set its `epoch` before iterating.

    With `augment_on_device`, random steps see the prepared square, held a little larger than what comes out where
    originals are larger; workers, who take what has no batched version or does not fit, run them on the original.
    """
    batches = BalancedBatches(images.labels, batch_size=batch_size, per_class=per_class, seed=seed)
    held = images.held(device, progress)
    if held is not None:
        return TensorBatches(held, images.labels, batches)
    augment = _augmentation_of(images) if augment_on_device else None
    still = None if augment is None else _held_for(augment, images, device, progress)
    if still is not None:
        return TensorBatches(still, images.labels, batches, augment=augment)
    return WorkerBatches(images, batches, workers=workers)


def _augmentation_of(images: ImageSet) -> DeviceAugmentation | None:
    """The batched version of an image set's random steps, where there is one."""
    preparation = images.preparation
    if preparation.size is None or not preparation.is_random:
        return None
    # Here and not above: it needs torchvision, which is slow to import.
    from doubtless.data.device_augmentation import device_augmentation

    return device_augmentation(preparation.augmentation, size=preparation.size)


def _held_for(
    augment: DeviceAugmentation, images: ImageSet, device: torch.device, progress: Progress | None
) -> Tensor | None:
    """Images without chance (n, C, side, side), as large as `augment` has use for; None if they do not fit."""
    pixels = images.source.pixels
    sides = None if pixels is None else (pixels.shape[-2], pixels.shape[-1])
    if augment.counts_pixels and sides != (augment.size, augment.size):
        return None  # a window of so many pixels of the original is not one of the resized image
    side = augment.largest_side if sides is None else min(augment.largest_side, max(augment.size, min(sides)))
    return images.without_augmentation(size=side).held(device, progress)


def in_order(images: ImageSet, *, batch_size: int, held: Tensor | None = None) -> Iterator[Batch]:
    """Every image once, in order. `held` is what `images.held(…)` gave; None: they are read on the way."""
    everywhere = torch.arange(len(images)).split(batch_size)
    if held is None:
        read = in_threads(images.__getitem__, range(len(images)), threads=images.threads)
        inputs = (torch.stack([next(read).inputs for _ in positions]) for positions in everywhere)
    else:
        inputs = (held[positions[0] : positions[-1] + 1] for positions in everywhere)
    labels = (images.labels if held is None else images.labels.to(held.device)).split(batch_size)
    yield from map(Batch, inputs, labels, everywhere)


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
