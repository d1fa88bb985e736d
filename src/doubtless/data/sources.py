"""Every data source by its name: shipped samples, folders, arrays, torchvision's sets, plugins' and your own."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from doubtless.data.images import SUFFIXES, is_image, unread_kind
from doubtless.data.objects import PYTHON, as_source
from doubtless.data.papers import PAPERS, Paper
from doubtless.data.prepare import readable
from doubtless.data.source import TEST, TRAIN, Source, data_root, locate, tensor_source
from doubtless.errors import InputError, nearest
from doubtless.files import reading
from doubtless.registry import Registry, call_import_path, import_path_of

FASHION_NAMES = [
    "T-shirt", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
]  # fmt: skip

Progress = Callable[[Iterable[Any], str, int], Iterable[Any]]
"""Wraps an iterable of a known length in a progress bar: progress(items, text, total)."""


@dataclass(frozen=True)
class SourceRequest:
    """What a source is opened with: the name a configuration has for it, and the options of opening."""

    name: str
    rest: str
    """What stands behind the colon of the name."""
    root: Path | None = None
    """The data folder that was named, or $DOUBTLESS_DATA."""
    progress: Progress | None = None

    @property
    def path(self) -> Path:
        """The rest as a path: as written, or below the data folder."""
        return locate(self.rest, self.root)


@dataclass(frozen=True)
class SourceKind:
    """A kind of data source: how it is written, what it is, and who opens it.

    What `open` gives is a `Source` or anything that `as_source` makes one of.
    """

    form: str
    what: str
    open: Callable[[SourceRequest], Any]


def _check_kind(name: str, kind: Any) -> None:
    if not isinstance(kind, SourceKind) or kind.form.partition(":")[0] != name:
        raise InputError(f"The data source {name!r} must be a SourceKind whose form begins with its name.")


SOURCES: Registry[SourceKind] = Registry(
    "data source", group="doubtless.sources", check=_check_kind, hint="`doubtless sources` lists them."
)
"""Every kind of source by what stands before the colon."""


def source_kind(form: str, what: str) -> Callable[[Callable[[SourceRequest], Any]], SourceKind]:
    """Registers a function that opens a kind of source; it becomes the `SourceKind`.

    >>> @source_kind("noise:COUNT", "so many images of noise")  # would stay registered  # doctest: +SKIP
    ... def noise(request):
    ...     return [(torch.rand(1, 28, 28), number % 2) for number in range(int(request.rest))]
    """

    def register(opener: Callable[[SourceRequest], Any]) -> SourceKind:
        kind: SourceKind = SOURCES.register(form.partition(":")[0], SourceKind(form, what, opener))
        return kind

    return register


def open_source(name: str, *, root: str | Path | None = None, progress: Progress | None = None) -> Source:
    """Opens a source by its name.

    >>> len(open_source("fashion-sample"))
    4000
    """
    if name == PYTHON:
        raise InputError(
            "The data was given as a Python object, which no name leads to; give it again: "
            "train(..., data=...) or evaluate_run(..., data=...)."
        )
    word, _, rest = name.partition(":")
    kind = SOURCES.get(word)
    if bool(rest) != (":" in kind.form):
        raise InputError(f"The data source {word} is written {kind.form}, got {name!r}.")
    request = SourceRequest(name, rest, data_root(root), progress)
    key = name, request.root
    if _kept is not None and key in _kept:
        return _kept[key]
    source = as_source(kind.open(request), name=name)
    if _kept is not None:
        _kept[key] = source
    return source


_kept: dict[tuple[str, Path | None], Source] | None = None
"""Name and data folder → what was opened, within `kept_sources`."""


@contextlib.contextmanager
def kept_sources() -> Iterator[None]:
    """Within, a source that was opened is kept with its prepared images; its files must stay as they are.

    >>> with kept_sources():
    ...     open_source("digits") is open_source("digits")
    True
    """
    global _kept
    before = _kept
    _kept = {} if before is None else before
    try:
        yield
    finally:
        _kept = before


def named_source(data: Any) -> tuple[Source, str]:
    """A source from an object, and the name that opens it again: "python" where none does.

    `data`: what `as_source` takes, or a function without arguments that returns such a thing.
    """
    if isinstance(data, Source):
        return data, data.name if data.name.partition(":")[0] in SOURCES else PYTHON
    if not callable(data) or hasattr(data, "__getitem__"):
        return as_source(data), PYTHON
    name = import_path_of(data) or PYTHON
    return as_source(data(), name=name), name


@source_kind("fashion-sample", "4,000 images of Fashion-MNIST (3,000 train, 1,000 test), shipped")
def _fashion_sample(request: SourceRequest) -> Source:
    with as_file(files("doubtless.data") / "samples" / "fashion_sample.npz") as path:
        return replace(_arrays(request.name, path), label_names=FASHION_NAMES)


@source_kind("digits", "scikit-learn's 1,797 handwritten digits at 28×28, shipped; an OOD source")
def _digits(request: SourceRequest) -> Source:
    from sklearn.datasets import load_digits
    from torch.nn.functional import interpolate

    data = load_digits()
    small = torch.from_numpy(data.images).float().unsqueeze(1) / 16  # (n, 1, 8, 8) in [0, 1]
    large = interpolate(small, size=(28, 28), mode="bilinear", align_corners=False)
    return tensor_source(request.name, large.clamp(0, 1), torch.from_numpy(data.target))


@source_kind("folder:PATH", "images in one folder per class; unreadable files are skipped and named")
def _folder(request: SourceRequest) -> Source:
    path = request.path
    if not path.is_dir():
        raise InputError(f"There is no folder {path}.")
    classes = sorted(child for child in path.iterdir() if child.is_dir() and not child.name.startswith("."))
    inside = [
        (file, label)
        for label, folder in enumerate(classes)
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    ]
    files = [(file, label) for file, label in inside if is_image(file.name)]
    if not files:
        raise InputError(
            f"{path} has no images; expected are folders, one per class, with {', '.join(sorted(SUFFIXES))}."
        )
    problems = _problems([file for file, _ in files], path, request.progress)
    good = [pair for pair, problem in zip(files, problems, strict=True) if problem is None]
    skipped = [f"{file}: {problem}" for (file, _), problem in zip(files, problems, strict=True) if problem]
    skipped += [f"{file}: {kind}" for file, _ in inside if (kind := unread_kind(file.name)) is not None]
    loose = sorted(file for file in path.iterdir() if file.is_file() and is_image(file.name))
    skipped += [f"{file}: it lies in no folder of a class" for file in loose]
    if not good:
        raise InputError(
            f"None of the {len(files)} images below {path} can be read; the first: {skipped[0]}."
        )
    present, labels = torch.unique(torch.tensor([label for _, label in good]), return_inverse=True)
    return Source(
        name=request.name,
        labels=labels,
        label_names=[classes[label].name for label in present.tolist()],
        paths=[file for file, _ in good],
        skipped=skipped,
    )


def _problems(paths: list[Path], folder: Path, progress: Progress | None) -> list[str | None]:
    """Why each file cannot be read, None where it can."""
    with ThreadPoolExecutor() as pool:  # Pillow decodes outside the interpreter lock
        checks: Iterable[str | None] = pool.map(readable, paths)
        if progress is not None:
            checks = progress(checks, f"checking {folder.name}", len(paths))
        return list(checks)


@source_kind("npz:PATH", "arrays x_train y_train x_test y_test, or x y")
def _npz(request: SourceRequest) -> Source:
    return _arrays(request.name, request.path)


def _arrays(name: str, path: Path) -> Source:
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    with reading(path, ".npz file of images"):
        return _source_of_arrays(name, path)


def _source_of_arrays(name: str, path: Path) -> Source:
    with np.load(path, allow_pickle=False) as file:
        arrays = {key: file[key] for key in file.files if key[:1] in "xy"}
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


@source_kind("torchvision:NAME", "FashionMNIST, MNIST, CIFAR10, SVHN or Omniglot below data.root")
def _torchvision(request: SourceRequest) -> Source:
    from torchvision import datasets

    dataset, root = request.rest, request.root
    known = ["FashionMNIST", "MNIST", "CIFAR10", "SVHN", "Omniglot"]
    if dataset not in known:
        raise InputError(f"There is no source torchvision:{dataset}{nearest(dataset, known)}")
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
    return tensor_source(request.name, torch.cat(images), torch.cat(labels), given_split=part)


def _torchvision_arrays(dataset: Any) -> tuple[Tensor, Tensor]:
    """Images (n, …) and labels (n,) of a torchvision data set, whatever it calls them."""
    if not hasattr(dataset, "data"):  # Omniglot: files, 105×105
        pairs = [(np.asarray(image.resize((28, 28))), label) for image, label in dataset]
        images, labels = zip(*pairs, strict=True)
        return torch.from_numpy(np.stack(images)), torch.tensor(labels)
    labels = dataset.targets if hasattr(dataset, "targets") else dataset.labels
    return torch.as_tensor(dataset.data), torch.as_tensor(labels).long()


@source_kind(
    "module:PACKAGE.FUNCTION", "what a function of yours returns: a Source, a Dataset or a list of pairs"
)
def _module(request: SourceRequest) -> Source:
    return as_source(call_import_path(request.name), name=request.name)


def _paper(paper: Paper) -> Callable[[SourceRequest], Source]:
    def read(request: SourceRequest) -> Source:
        with reading(request.path, f"data set {paper.form.partition(':')[0]}"):
            return paper.read(request.path).source(request.name)

    return read


for _published in PAPERS.values():
    source_kind(_published.form, _published.what)(_paper(_published))
