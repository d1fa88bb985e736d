"""A data source: labelled images, named by one string, in memory, in files or in a sequence of someone else's.

`Places` says where images were taken, for sources in which two belong together because they are near each other.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from doubtless.data.prepare import decode_image, pixels_of
from doubtless.errors import InputError

RADIUS = 25.0
REGION_WIDTH = 1e7
"""Metres between two regions' origins: a UTM zone's coordinates span less, so regions never touch."""


@dataclass(frozen=True)
class Places:
    """Positions of n images. "Within 25 m" is not transitive, so no label can say which images belong together.

    Images that ask and images that answer are kept apart: `query` says which is which.

    >>> near = Places(torch.tensor([[0.0, 0.0], [20.0, 0.0]]), torch.tensor([0, 0]), torch.tensor([True, False]))
    >>> near[torch.tensor([1])].position
    tensor([[20.,  0.]])
    """

    position: Tensor  # (n, 2) metres; those of different regions lie far apart
    region: Tensor  # (n,) long, such as a city: what a split keeps whole
    query: Tensor  # (n,) bool: asks; the others are the database that is searched
    radius: float = RADIUS

    def __post_init__(self) -> None:
        count = len(self.region)
        if tuple(self.position.shape) != (count, 2) or tuple(self.query.shape) != (count,):
            raise InputError(
                f"Places need positions ({count}, 2), regions and roles ({count},), got "
                f"{tuple(self.position.shape)} and {tuple(self.query.shape)}."
            )
        bad = ~torch.isfinite(self.position).all(1)
        if bool(bad.any()):
            raise InputError(
                f"{int(bad.sum())} positions are NaN or infinite, the first is number {int(bad.nonzero()[0])}."
            )

    @classmethod
    def of_regions(cls, position: Tensor, region: Tensor, *, query: Tensor) -> Places:
        """From each region's own coordinates (n, 2), such as UTM: regions are moved far apart."""
        moved = position.double().clone()
        moved[:, 0] += REGION_WIDTH * region
        return cls(moved, region, query)

    def __len__(self) -> int:
        return len(self.region)

    def __getitem__(self, rows: Tensor) -> Places:
        return Places(self.position[rows], self.region[rows], self.query[rows], self.radius)

    def cells(self) -> Tensor:
        """A label (n,) for who can only take labels: squares whose diagonal is the radius.

        Two images of one square are always near each other; two of neighbouring squares may be, too, so what is
        measured goes by positions.
        """
        corner = (self.position / (self.radius / 2**0.5)).floor().long()
        return corner.unique(dim=0, return_inverse=True)[1]


TRAIN, TEST = 0, 1


@dataclass(frozen=True)
class ImageList(Sequence[Tensor]):
    """Images of any kinds and sizes in a sequence of someone else's, made uint8 (C, H, W) when asked for.

    `digest` is of their pixels, read once when the list is made. Random images are therefore no source: chance
    belongs into `data.augment`.

    >>> ImageList([torch.zeros(1, 8, 9), torch.zeros(1, 5, 4)], channels=1, digest="")[1].shape
    torch.Size([1, 5, 4])
    """

    items: Sequence[Any]
    channels: int
    digest: str

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Tensor:  # type: ignore[override]
        return pixels_of(self.items[index])


@dataclass(frozen=True)
class Source:
    """n labelled images.

    Images live in memory (`pixels`, uint8 (n, C, H, W)), in files (`paths`) or in a sequence that makes them
    (`images`). `given_split` says which of them the source itself calls train (0) or test (1), None where it does
    not say.
    """

    name: str
    labels: Tensor  # (n,) long, positions in label_names
    label_names: list[str]
    pixels: Tensor | None = None
    paths: Sequence[Path] | None = None
    images: ImageList | None = None
    given_split: Tensor | None = None  # (n,)
    places: Places | None = None
    """Where the images were taken, where that and not the label says which belong together."""
    skipped: list[str] = field(default_factory=list)
    """Files that could not be read, each with the reason; they are not among the n images."""

    def __post_init__(self) -> None:
        if len(self) == 0:
            raise InputError(f"{self.name} has no images.")

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def ids(self) -> list[str]:
        """A name for each image: its path's last two parts, or its number."""
        if self.paths is not None:
            return ["/".join(path.parts[-2:]) for path in self.paths]
        return [str(i) for i in range(len(self))]

    @property
    def channels(self) -> int:
        """What the images have; files are taken as colour."""
        if self.images is not None:
            return self.images.channels
        return 3 if self.pixels is None else self.pixels.shape[1]

    def image(self, index: int) -> Tensor:
        """One image, uint8 (C, H, W)."""
        if self.pixels is not None:
            return self.pixels[index]
        if self.images is not None:
            return self.images[index]
        assert self.paths is not None
        return decode_image(self.paths[index])

    def fingerprint(self) -> str:
        """A hash of what it holds: pixels, or file names, sizes and times of change."""
        digest = hashlib.sha256(self.labels.numpy().tobytes())
        if self.pixels is not None:
            digest.update(self.pixels.numpy().tobytes())
        if self.images is not None:
            digest.update(self.images.digest.encode())
        for path in self.paths or []:
            try:
                stat = path.stat()
            except OSError as error:
                raise InputError(
                    f"{self.name} names an image that is not there: {path} ({error.strerror}); "
                    f"`doubtless sources check {self.name}` says what else is missing."
                ) from error
            digest.update(f"{'/'.join(path.parts[-2:])}:{stat.st_size}:{stat.st_mtime_ns}\n".encode())
        if self.places is not None:
            digest.update(self.places.position.numpy().tobytes() + self.places.query.numpy().tobytes())
        return digest.hexdigest()[:16]


def tensor_source(
    name: str,
    images: Tensor,
    labels: Tensor,
    *,
    label_names: list[str] | None = None,
    given_split: Tensor | None = None,
) -> Source:
    """A source from arrays of anyone's: (n, H, W) or (n, H, W, C) or (n, C, H, W), bytes or floats in [0, 1].

    >>> tensor_source("mine", torch.rand(10, 28, 28), torch.arange(10) % 2).pixels.shape
    torch.Size([10, 1, 28, 28])
    """
    if len(images) != len(labels):
        raise InputError(f"{name} has {len(images)} images but {len(labels)} labels.")
    if labels.dim() != 1:
        raise InputError(
            f"{name} must have one label for each image, got labels of shape {tuple(labels.shape)}."
        )
    if label_names is None:
        present, labels = torch.unique(labels, return_inverse=True)
        label_names = [str(value) for value in present.tolist()]
    return Source(
        name=name,
        labels=labels.long(),
        label_names=label_names,
        pixels=_channels_first(name, _as_bytes(name, images)),
        given_split=given_split,
    )


def _as_bytes(name: str, images: Tensor) -> Tensor:
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        if len(images) and (int(images.min()) < 0 or int(images.max()) > 255):
            raise InputError(f"{name} has whole-number pixels outside 0…255; scale them first.")
        return images.to(torch.uint8)
    bad = ~torch.isfinite(images).flatten(1).all(1)
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise InputError(
            f"{name} has NaN or infinite pixels in {int(bad.sum())} images, the first is number {first}."
        )
    if float(images.min()) < 0 or float(images.max()) > 1:
        raise InputError(
            f"{name} has floating-point pixels from {float(images.min()):.3g} to {float(images.max()):.3g}; "
            "accepted are floats in [0, 1] or bytes."
        )
    return (images * 255).round().to(torch.uint8)


def _channels_first(name: str, images: Tensor) -> Tensor:
    if images.dim() == 3:
        return images.unsqueeze(1).contiguous()
    if images.dim() == 4 and images.shape[-1] in (1, 3):
        return images.permute(0, 3, 1, 2).contiguous()
    if images.dim() == 4 and images.shape[1] in (1, 3):
        return images.contiguous()
    raise InputError(
        f"{name} must have images (n, H, W), (n, H, W, 1 or 3) or (n, 1 or 3, H, W), "
        f"got {tuple(images.shape)}."
    )


def locate(path: str | Path, root: str | Path | None = None) -> Path:
    """The path itself if it is there; else below `root` or $DOUBTLESS_DATA if it is there; else as written.

    Configurations and suites name `omniglot.npz`, and every machine says once where its data lies.
    """
    written = Path(path).expanduser()
    for folder in (root, os.environ.get("DOUBTLESS_DATA")):
        if folder and not written.exists() and (Path(folder).expanduser() / written).exists():
            return Path(folder).expanduser() / written
    return written


def data_root(root: str | Path | None = None) -> Path | None:
    """The data folder that was named, or $DOUBTLESS_DATA, or none."""
    chosen = root or os.environ.get("DOUBTLESS_DATA")
    return Path(chosen).expanduser() if chosen else None
