"""CUB-200-2011: 11,788 birds of 200 species. Wah, Branson, Welinder, Perona and Belongie, 2011.

CUB_200_2011/{images.txt, image_class_labels.txt, classes.txt, images/}. Classes 1 to 100 train, 101 to 200 test.
"""

from __future__ import annotations

from pathlib import Path

from doubtless.data.papers.layout import Layout, Paper, find_folder, first_half, read_table, whole_numbers
from doubtless.errors import InputError

UNPACKED = "CUB_200_2011"


def recognises(path: Path) -> bool:
    """Whether a folder, or the one unpacked in it, has the lists of CUB-200-2011."""
    return any((place / "image_class_labels.txt").is_file() for place in (path, path / UNPACKED))


def read(path: Path) -> Layout:
    """Its birds by species, the first half of the species for training."""
    folder = find_folder(path, "images.txt", inside=UNPACKED)
    files = dict(_pairs(folder / "images.txt"))
    classes = dict(_pairs(folder / "image_class_labels.txt"))
    species = dict(_pairs(folder / "classes.txt"))
    if set(files) != set(classes):
        odd = sorted(set(files) ^ set(classes))
        raise InputError(
            f"images.txt and image_class_labels.txt of {folder} disagree on {len(odd)} images, the first is "
            f"number {odd[0]}."
        )
    if unknown := set(classes.values()) - set(species):
        raise InputError(
            f"{folder / 'classes.txt'} does not name the class {sorted(unknown)[0]} that images have."
        )
    numbers = whole_numbers([classes[key] for key in files], folder / "image_class_labels.txt")
    order = sorted(species, key=int)
    place = {key: position for position, key in enumerate(order)}
    labels = numbers.new_tensor([place[classes[key]] for key in files])
    return Layout(
        folder=folder / "images",
        names=list(files.values()),
        labels=labels,
        label_names=[species[key].split(".", 1)[-1].replace("_", " ") for key in order],
        given_split=first_half(labels + 1, len(order)),
    )


def _pairs(path: Path) -> list[tuple[str, str]]:
    rows = read_table(path, 2)
    whole_numbers([row[0] for row in rows], path)
    return [(row[0], row[1]) for row in rows]


CUB200 = Paper(
    form="cub200:PATH",
    what="CUB-200-2011 as published: images.txt, image_class_labels.txt, images/",
    recognises=recognises,
    read=read,
    standard={
        "training images": 5864,
        "training classes": 100,
        "test images": 5924,
        "test classes": 100,
    },
)
