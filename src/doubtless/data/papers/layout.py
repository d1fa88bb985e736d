"""What the files of a published data set say, before any image is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from doubtless.data.source import TEST, TRAIN, Places, Source
from doubtless.errors import InputError


class FilesBelow(Sequence[Path]):
    """Paths below a folder, made when asked for: a million `Path` objects would be a gigabyte.

    >>> FilesBelow(Path("birds"), ["a/1.jpg", "a/2.jpg"])[1].name
    '2.jpg'
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Path:  # type: ignore[override]
        return self.folder / self.names[index]


@dataclass(frozen=True)
class Layout:
    """A data set as its own lists describe it: n images, named, labelled and divided."""

    folder: Path
    names: list[str]
    """Of the image files, below the folder."""
    labels: Tensor  # (n,) positions in label_names
    label_names: list[str]
    given_split: Tensor | None  # (n,) the standard split
    places: Places | None = None
    missing: list[str] = field(default_factory=list)
    """What the standard has and this copy has not, one sentence for each; the rest can be used without it."""

    def source(self, name: str) -> Source:
        """The source; nothing is opened, so a missing image shows when it is read or checked."""
        return Source(
            name=name,
            labels=self.labels,
            label_names=self.label_names,
            paths=FilesBelow(self.folder, self.names),
            given_split=self.given_split,
            places=self.places,
        )


@dataclass(frozen=True)
class Paper:
    """A published data set: how it is recognised and read, and what its standard split counts."""

    form: str
    what: str
    recognises: Callable[[Path], bool]
    read: Callable[[Path], Layout]
    standard: Mapping[str, int]
    """Names of `count_parts` → the number everyone reports."""


def count_parts(layout: Layout) -> dict[str, int]:
    """Images, classes and, for places, regions, queries and database of both parts of the standard split."""
    counts = {"images": len(layout.names), "classes": len(layout.labels.unique())}
    if layout.given_split is None:
        return counts
    for name, number in (("training", TRAIN), ("test", TEST)):
        rows = torch.nonzero(layout.given_split == number)[:, 0]
        counts[f"{name} images"] = len(rows)
        if layout.places is None:
            counts[f"{name} classes"] = len(layout.labels[rows].unique())
            continue
        places = layout.places[rows]
        counts[f"{name} regions"] = len(places.region.unique())
        counts[f"{name} queries"] = int(places.query.sum())
        counts[f"{name} database images"] = int((~places.query).sum())
    return counts


def first_half(numbers: Tensor, classes: int) -> Tensor:
    """The zero-shot split by class number (n,), counted from 1: the first half of the classes trains."""
    return torch.where(numbers <= classes // 2, TRAIN, TEST)


def find_folder(path: Path, needed: str, *, inside: str | None = None) -> Path:
    """`path`, or the folder `inside` it that archives unpack to, whichever holds the file `needed`."""
    places = [path, *([path / inside] if inside else [])]
    for place in places:
        if (place / needed).exists():
            return place
    raise InputError(f"There is no {needed} in {' or '.join(str(place) for place in places)}.")


def read_table(path: Path, columns: int) -> list[list[str]]:
    """The lines of a text file, each cut at white space into so many columns; the last may hold spaces."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        raise InputError(f"There is no file {path}.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error
    rows = [line.split(maxsplit=columns - 1) for line in lines if line.strip()]
    for number, row in enumerate(rows, 1):
        if len(row) != columns:
            raise InputError(f"Line {number} of {path} has {len(row)} columns, expected are {columns}.")
    return rows


def whole_numbers(values: Sequence[str], path: Path) -> Tensor:
    """A column of whole numbers (n,)."""
    try:
        return torch.tensor([int(value) for value in values], dtype=torch.long)
    except ValueError as error:
        raise InputError(f"{path} has something else where a whole number should be: {error}.") from error
