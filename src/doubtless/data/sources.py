"""Every data source by its name: shipped samples, folders, arrays, torchvision's sets."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from doubtless.data.locate import data_root, locate
from doubtless.data.papers import PAPERS
from doubtless.data.prepare import SUFFIXES, readable
from doubtless.data.source import TEST, TRAIN, Source, tensor_source
from doubtless.errors import InputError, nearest

FASHION_NAMES = [
    "T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
]  # fmt: skip

Progress = Callable[[Iterable[Any], str, int], Iterable[Any]]
"""Wraps an iterable of a known length in a progress bar: progress(items, text, total)."""


@dataclass(frozen=True)
class SourceKind:
    """What `doubtless sources` lists."""

    form: str
    what: str


KINDS = [
    SourceKind("fashion-sample", "4,000 images of Fashion-MNIST (3,000 train, 1,000 test), shipped"),
    SourceKind("digits", "scikit-learn's 1,797 handwritten digits at 28×28, shipped; an OOD source"),
    SourceKind("folder:PATH", "images in one folder a class; unreadable files are skipped and named"),
    SourceKind("npz:PATH", "arrays x_train y_train x_test y_test, or x y"),
    SourceKind("torchvision:NAME", "FashionMNIST, MNIST, CIFAR10, SVHN or Omniglot below data.root"),
    *(SourceKind(paper.form, paper.what) for paper in PAPERS.values()),
]


def open_source(name: str, *, root: str | Path | None = None, progress: Progress | None = None) -> Source:
    """Opens a source by its name.

    >>> len(open_source("fashion-sample"))
    4000
    """
    kind, _, rest = name.partition(":")
    if name == "fashion-sample":
        return _fashion_sample()
    if name == "digits":
        return _digits()
    if kind == "folder" and rest:
        return _folder(name, locate(rest, root), progress)
    if kind == "npz" and rest:
        return _npz(name, locate(rest, root))
    if kind == "torchvision" and rest:
        return _torchvision(name, rest, data_root(root))
    if kind in PAPERS and rest:
        return PAPERS[kind].read(locate(rest, root)).source(name)
    known = [kind.form for kind in KINDS]
    raise InputError(
        f"There is no data source {name!r}{nearest(name, known)}; `doubtless sources` lists them."
    )


def _fashion_sample() -> Source:
    with as_file(files("doubtless.data") / "samples" / "fashion_sample.npz") as path:
        source = _npz("fashion-sample", path)
    return tensor_source(
        source.name, _pixels(source), source.labels, label_names=FASHION_NAMES, given_split=source.given_split
    )


def _digits() -> Source:
    from sklearn.datasets import load_digits
    from torch.nn.functional import interpolate

    data = load_digits()
    small = torch.from_numpy(data.images).float().unsqueeze(1) / 16  # (n, 1, 8, 8) in [0, 1]
    large = interpolate(small, size=(28, 28), mode="bilinear", align_corners=False)
    return tensor_source("digits", large.clamp(0, 1), torch.from_numpy(data.target))


def _npz(name: str, path: Path) -> Source:
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files if key[:1] in "xy"}
    except Exception as error:  # zipfile, zlib and numpy each raise their own for a damaged file
        raise InputError(f"{path} is no readable .npz file: {error}.") from error
    if {"x_train", "y_train", "x_test", "y_test"} <= set(arrays):
        images = np.concatenate([arrays["x_train"], arrays["x_test"]])
        labels = np.concatenate([arrays["y_train"], arrays["y_test"]])
        part = torch.full((len(images),), TEST)
        part[: len(arrays["x_train"])] = TRAIN
        return tensor_source(name, torch.from_numpy(images), _labels(name, labels), given_split=part)
    if {"x", "y"} <= set(arrays):
        return tensor_source(name, torch.from_numpy(arrays["x"]), _labels(name, arrays["y"]))
    raise InputError(
        f"{path} must hold x_train, y_train, x_test, y_test, or x and y; "
        f"it holds {', '.join(arrays) or 'none of them'}."
    )


def _labels(name: str, labels: np.ndarray) -> Tensor:
    if not np.issubdtype(labels.dtype, np.integer):
        raise InputError(f"{name} must have whole-number labels, got {labels.dtype}.")
    return torch.from_numpy(labels.astype(np.int64))


def _folder(name: str, path: Path, progress: Progress | None) -> Source:
    if not path.is_dir():
        raise InputError(f"There is no folder {path}.")
    classes = sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    found = [
        (file, label)
        for label, folder in enumerate(classes)
        for file in sorted(folder.rglob("*"))
        if file.suffix.lower() in SUFFIXES
    ]
    if not found:
        raise InputError(
            f"{path} has no images; expected are folders, one a class, with {', '.join(sorted(SUFFIXES))}."
        )
    with ThreadPoolExecutor() as pool:  # Pillow decodes outside the interpreter lock
        checks: Iterable[str | None] = pool.map(readable, [file for file, _ in found])
        if progress is not None:
            checks = progress(checks, f"checking {path.name}", len(found))
        problems = list(checks)
    good = [pair for pair, problem in zip(found, problems, strict=True) if problem is None]
    skipped = [f"{file}: {problem}" for (file, _), problem in zip(found, problems, strict=True) if problem]
    if not good:
        raise InputError(
            f"None of the {len(found)} images below {path} can be read; the first: {skipped[0]}."
        )
    present, labels = torch.unique(torch.tensor([label for _, label in good]), return_inverse=True)
    return Source(
        name=name,
        labels=labels,
        label_names=[classes[label].name for label in present.tolist()],
        paths=[file for file, _ in good],
        skipped=skipped,
    )


def _torchvision(name: str, dataset: str, root: Path | None) -> Source:
    from torchvision import datasets

    known = ["FashionMNIST", "MNIST", "CIFAR10", "SVHN", "Omniglot"]
    if dataset not in known:
        raise InputError(f"There is no source torchvision:{dataset}{nearest(dataset, known)}.")
    if root is None:
        raise InputError(
            f"torchvision:{dataset} needs data.root (or $DOUBTLESS_DATA), the folder that holds it."
        )
    build = getattr(datasets, dataset)
    try:
        if dataset == "SVHN":
            parts = [build(root, split=split) for split in ("train", "test")]
        elif dataset == "Omniglot":
            parts = [build(root, background=background) for background in (True, False)]
        else:
            parts = [build(root, train=train) for train in (True, False)]
    except (RuntimeError, OSError) as error:
        raise InputError(f"{dataset} was not found below {root}: {error}") from error
    images, labels = zip(*(_torchvision_arrays(part) for part in parts), strict=True)
    part = torch.cat([torch.full((len(some),), number) for number, some in enumerate(labels)])
    if dataset == "Omniglot":  # both parts count their characters from 0, but they are other characters
        labels = (labels[0], labels[1] + int(labels[0].max()) + 1)
    return tensor_source(name, torch.cat(images), torch.cat(labels), given_split=part)


def _torchvision_arrays(dataset: Any) -> tuple[Tensor, Tensor]:
    """Images (n, …) and labels (n,) of a torchvision data set, whatever it calls them."""
    if not hasattr(dataset, "data"):  # Omniglot: files, 105×105
        pairs = [(np.asarray(image.resize((28, 28))), label) for image, label in dataset]
        images, labels = zip(*pairs, strict=True)
        return torch.from_numpy(np.stack(images)), torch.tensor(labels)
    labels = dataset.targets if hasattr(dataset, "targets") else dataset.labels
    return torch.as_tensor(dataset.data), torch.as_tensor(labels).long()


def _pixels(source: Source) -> Tensor:
    assert source.pixels is not None
    return source.pixels
