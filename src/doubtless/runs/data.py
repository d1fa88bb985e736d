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
from doubtless.progress import phase

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
    """Opens the source, unless it is given, and splits it, or takes the split a run has recorded.

    What chooses an epoch or a scale sees images as they will be measured: validation has the size of the test part.
    """
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
    measured = random.without_augmentation(size=config.evaluation.size)
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
        validation=ImageSet(source, split.validation, measured),
        test=ImageSet(source, split.test, measured),
    )


def whole_source(
    name: str | Source,
    data: DataConfig,
    spec: DataSpec,
    *,
    size: int | None = None,
    progress: Progress | None = None,
) -> ImageSet:
    """All images of a source (its test part where it has one), prepared for a trained network.

    `size` is their side, where it is another than that the network was trained at.
    """
    source = name if isinstance(name, Source) else open_source(name, root=data.root, progress=progress)
    index = (
        torch.arange(len(source))
        if source.given_split is None
        else torch.nonzero(source.given_split == 1)[:, 0]
    )
    return ImageSet(source, index, Preparation(channels=spec.channels, size=size or spec.size))


def image_size(method: Method) -> int:
    """The side of the images a trained method is asked about: that it is measured at, `evaluation.size`."""
    return method.config.evaluation.size or method.spec.size


def preparation_of(method: Method) -> Preparation:
    """How images are prepared for a trained method."""
    return Preparation(channels=method.spec.channels, size=image_size(method))


def must_take(method: Method, size: int | None) -> None:
    """Refuses another side of images than a network was built for where it cannot take that; None: its own."""
    built, name = method.spec.size, method.config.model.backbone
    if size is None or size == built:
        return
    try:
        own, other = (
            method.observe(torch.zeros(1, method.spec.channels, side, side)).shape[1]
            for side in (built, size)
        )
    except (RuntimeError, ValueError, TypeError, AssertionError) as error:
        reason = (str(error).splitlines() or [""])[0].rstrip(".")
        raise InputError(
            f"evaluation.size {size} does not fit {name}, which was built for images of side {built}: {reason}."
        ) from error
    if own != other:
        raise InputError(
            f"evaluation.size {size} does not fit {name}: how many features it gives depends on the side of the "
            f"images, {own} at {built} and {other} at {size}; leave it out, or take a network that pools."
        )


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


def embed_images(
    method: Method, images: ImageSet, *, again: bool = False, progress: Progress | None = None
) -> Embedding:
    """The embedding of a whole image set, on the method's device, batch by batch.

    `again`: they are wanted every epoch, and stay on the device where they fit; others take no room there.
    """
    batches = described_batches(method, images, again=again, progress=progress)
    return Embedding.cat([some.embedding for some in batches])


def described_batches(
    method: Method, images: ImageSet, *, again: bool = False, progress: Progress | None = None
) -> Iterator[Described]:
    """Embedding and features of a whole image set, on the method's device, a batch at a time."""
    if method.batch_kind == "features":  # a frozen encoder: its features are kept from run to run
        for features in features_of(method, images, progress=progress).split(EMBED_BATCH):
            yield method.describe_features(features)
        return
    for features in _observed_batches(method, images, "embedding", progress, again=again):
        yield method.describe_features(features)


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
    method.eval()  # also while the reader has the features
    try:
        yield from _observed_batches(method, images.without_augmentation(), "features", progress)
    finally:
        method.train(training)


def _observed_batches(
    method: Method, images: ImageSet, text: str, progress: Progress | None, *, again: bool = False
) -> Iterator[Tensor]:
    """Features of a set, (n, F) a batch, in evaluation mode.

    On a GPU a smaller last batch is filled up: for each new number of images the device chooses, and in part
    compiles, the kernels of every convolution anew, which takes it as long as thousands of images do.
    """
    fills = method.device.type == "cuda" and len(images) > EMBED_BATCH
    place = method.device if again else torch.device("cpu")
    for batch in image_batches(images, text, progress, device=place):
        count = len(batch)
        if fills and count < EMBED_BATCH:
            batch = torch.cat([batch, batch[-1:].expand(EMBED_BATCH - count, -1, -1, -1)])
        yield method.observe(batch)[:count]


def image_batches(
    images: ImageSet, text: str, progress: Progress | None, *, device: torch.device
) -> Iterator[Tensor]:
    """Prepared images (n, C, H, W) of a set, a batch at a time, with `text` at the progress bar.

    They are on the device where all of them fit, else in memory; where they do not fit there either, they are read.
    """
    with phase("images"):
        held = images.held(device, progress)
        if held is None and device.type != "cpu":
            held = images.in_memory(progress)
    batches = (batch.inputs for batch in in_order(images, batch_size=EMBED_BATCH, held=held))
    total = -(-len(images) // EMBED_BATCH)
    yield from progress(batches, text, total) if progress else batches
