"""Labeled Faces in the Wild: 13,233 pictures of 5,749 people. Huang, Ramesh, Berg and Learned-Miller, 2007.

A folder a person, and the people of the development split: peopleDevTrain.txt and peopleDevTest.txt, which share
nobody. All of a person's pictures are used, so positives are drawn from all of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from doubtless.data.images import SUFFIXES
from doubtless.data.papers.layout import Layout, Paper
from doubtless.data.source import TEST, TRAIN
from doubtless.errors import InputError

LISTS = {"peopleDevTrain.txt": TRAIN, "peopleDevTest.txt": TEST}
UNPACKED = ("lfw", "lfw-deepfunneled", "lfw_funneled", "lfw-funneled")


def recognises(path: Path) -> bool:
    """Whether a folder is, or holds, Labeled Faces in the Wild, or has its lists."""
    names = [path.name, *(folder for folder in UNPACKED if (path / folder).is_dir())]
    return any(name in UNPACKED for name in names) or any((path / name).is_file() for name in LISTS)


def read(path: Path) -> Layout:
    """Its faces by person; who trains and who tests is said by the two lists, where they are there."""
    if not path.is_dir():
        raise InputError(f"There is no folder {path}.")
    folder = next((path / name for name in UNPACKED if (path / name).is_dir()), path)
    people = sorted(child.name for child in os.scandir(folder) if child.is_dir() and child.name[0] != ".")
    found = [
        (f"{person}/{file}", label)
        for label, person in enumerate(people)
        for file in sorted(os.listdir(folder / person))
        if Path(file).suffix.lower() in SUFFIXES
    ]
    if not found:
        raise InputError(f"{folder} has no pictures; expected is a folder a person, such as Ann_Veneman/.")
    labels = torch.tensor([label for _, label in found])
    part, missing = _parts(path, folder, people, labels)
    if part is not None and bool((part < 0).any()):  # people that are in neither list
        kept = part >= 0
        missing.append(f"{int((~kept).sum())} pictures are of people in neither list; they are left out.")
        found = [pair for pair, keep in zip(found, kept.tolist(), strict=True) if keep]
        labels, part = labels[kept], part[kept]
    present, labels = labels.unique(return_inverse=True)
    names = [people[label].replace("_", " ") for label in present.tolist()]
    return Layout(folder, [name for name, _ in found], labels, names, part, missing=missing)


def _parts(path: Path, folder: Path, people: list[str], labels: Tensor) -> tuple[Tensor | None, list[str]]:
    """The part of each picture (n,), −1 where its person is in neither list; and what is missing."""
    lists = {name: _find(name, path, folder) for name in LISTS}
    absent = [name for name, file in lists.items() if file is None]
    if absent:
        return None, [
            f"{' and '.join(absent)} cannot be found in {path}: there is no standard split; put them there, or "
            "use `split: open`, which trains on the first half of the names."
        ]
    place = {person: label for label, person in enumerate(people)}
    pictures = torch.bincount(labels, minlength=len(people)).tolist()
    subset_of = torch.full((len(people),), -1)
    missing = []
    for name, file in lists.items():
        assert file is not None
        listed = _listed(file)
        for person in listed.keys() & place.keys():
            if subset_of[place[person]] >= 0:
                raise InputError(f"{person} is in both peopleDevTrain.txt and peopleDevTest.txt.")
            subset_of[place[person]] = LISTS[name]
        here = {person: pictures[place[person]] if person in place else 0 for person in listed}
        if other := [person for person, count in listed.items() if here[person] != count]:
            first = f"{other[0]} has {here[other[0]]} of {listed[other[0]]}"
            missing.append(f"{len(other)} people of {name} have not the pictures it says; {first}.")
    return subset_of[labels], missing


def _find(name: str, path: Path, folder: Path) -> Path | None:
    """A list beside the people's folders, in them, or where the folder was unpacked."""
    return next((place / name for place in (path, folder, path.parent) if (place / name).is_file()), None)


def _listed(file: Path) -> dict[str, int]:
    """Person → number of pictures; the first line of the published lists is the number of people."""
    try:
        lines = [line.split() for line in file.read_text().splitlines() if line.strip()]
        return {person: int(count) for person, count in (line for line in lines if len(line) != 1)}
    except (OSError, ValueError) as error:
        raise InputError(
            f"{file} must have a person and a number of pictures in each line: {error}."
        ) from error


LFW = Paper(
    form="lfw:PATH",
    what="Labeled Faces in the Wild: a folder a person, peopleDevTrain.txt, peopleDevTest.txt",
    recognises=recognises,
    read=read,
    standard={
        "training images": 9525,
        "training classes": 4038,
        "test images": 3708,
        "test classes": 1711,
    },
)
