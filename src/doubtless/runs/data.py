"""The data of a run: its source opened, split and prepared the way its configuration says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.config import Config, DataConfig
from doubtless.data import ImageSet, Preparation, Progress, Source, Split, in_order, make_split, open_source
from doubtless.data.loading import cached_features
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.methods import DataSpec, Described, Method, Subset

EMBED_BATCH = 256


@dataclass(frozen=True)
class RunData:
    """Train, validation and test images of a run, and what its network must know of them."""

    source: Source
    split: Split
    spec: DataSpec
    train: ImageSet
    validation: ImageSet
    test: ImageSet


def open_run_data(
    config: Config,
    *,
    split: Split | None = None,
    source: Source | None = None,
    progress: Progress | None = None,
) -> RunData:
    """Opens the source, unless it is given, and splits it, or takes the split a run has recorded."""
    data = config.data
    source = source or open_source(data.source, root=data.root, progress=progress)
    if split is None:
        split = make_split(
            source, data.split, validation=data.validation, test=data.test, seed=data.split_seed
        )
    elif split.fingerprint != source.fingerprint():
        raise InputError(
            f"{data.source} has changed since this run was split; its parts can no longer be told."
        )
    channels = data.channels or source.channels
    size = data.size or native_size(source)
    random = Preparation(channels=channels, size=size, augment=data.augment)
    still = random.without_augmentation()
    train = ImageSet(source, split.train, random, seed=config.seed)
    present, train.labels = torch.unique(train.labels, return_inverse=True)  # 0 … classes−1, for proxies
    spec = DataSpec(
        channels=channels, size=size, label_names=[source.label_names[i] for i in present.tolist()]
    )
    return RunData(
        source=source,
        split=split,
        spec=spec,
        train=train,
        validation=ImageSet(source, split.validation, still),
        test=ImageSet(source, split.test, still),
    )


def whole_source(
    name: str | Source, data: DataConfig, spec: DataSpec, *, progress: Progress | None = None
) -> ImageSet:
    """All images of a source (its test part where it has one), prepared for a trained network."""
    source = name if isinstance(name, Source) else open_source(name, root=data.root, progress=progress)
    index = (
        torch.arange(len(source))
        if source.given_split is None
        else torch.nonzero(source.given_split == 1)[:, 0]
    )
    return ImageSet(source, index, Preparation(channels=spec.channels, size=spec.size))


def native_size(source: Source) -> int:
    """The side of the images where all are one square."""
    if source.pixels is None:
        raise InputError(f"The images of {source.name} come in different sizes; set data.size, such as 112.")
    height, width = source.pixels.shape[-2:]
    if height != width:
        raise InputError(
            f"The images of {source.name} are {height}×{width}; set data.size to make them square."
        )
    return height


def embed_images(method: Method, images: ImageSet, *, progress: Progress | None = None) -> Embedding:
    """The embedding of a whole image set, on the method's device, batch by batch."""
    return Embedding.cat([some.embedding for some in described_batches(method, images, progress=progress)])


def described_batches(
    method: Method, images: ImageSet, *, progress: Progress | None = None
) -> Iterator[Described]:
    """Embedding and features of a whole image set, on the method's device, a batch at a time."""
    if method.batch_kind == "features":  # a frozen encoder: its features are kept from run to run
        for features in features_of(method, images, progress=progress).split(EMBED_BATCH):
            yield method.describe_features(features)
        return
    for batch in image_batches(images, "embedding", progress):
        yield method.describe(batch)


def subset_of(method: Method, images: ImageSet, *, progress: Progress | None = None) -> Subset:
    """What a method's `start` and `finish` see of an image set; features are computed when asked for."""
    keeps = method.batch_kind == "features"
    return Subset(
        labels=images.labels.to(method.device),
        features=lambda: features_of(method, images, progress=progress),
        batches=None if keeps else lambda: _feature_batches(method, images, progress),
    )


def features_of(method: Method, images: ImageSet, *, progress: Progress | None = None) -> Tensor:
    """Features (n, F) of an image set without augmentation, in evaluation mode; kept on disk if frozen."""
    if method.batch_kind != "features":
        return _compute_features(method, images, progress)
    kept = cached_features(method.encoder, images, lambda whole: _compute_features(method, whole, progress))
    return kept.to(method.device)


def _compute_features(method: Method, images: ImageSet, progress: Progress | None) -> Tensor:
    return torch.cat(list(_feature_batches(method, images, progress)))


def _feature_batches(method: Method, images: ImageSet, progress: Progress | None) -> Iterator[Tensor]:
    training = method.training
    method.eval()
    still = ImageSet(images.source, images.index, images.preparation.without_augmentation())
    try:
        for batch in image_batches(still, "features", progress):
            yield method.observe(batch)
    finally:
        method.train(training)


def image_batches(images: ImageSet, text: str, progress: Progress | None) -> Iterator[Tensor]:
    """Prepared images (n, C, H, W) of a set, a batch at a time, with `text` at the progress bar."""
    held = images.in_memory(progress)
    batches = (batch.inputs for batch in in_order(images, batch_size=EMBED_BATCH, held=held))
    total = -(-len(images) // EMBED_BATCH)
    yield from progress(batches, text, total) if progress else batches
