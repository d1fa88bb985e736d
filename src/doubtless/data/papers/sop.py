"""Stanford Online Products: 120,053 pictures of 22,634 things for sale. Song, Xiang, Jegelka and Savarese, 2016.

Stanford_Online_Products/{Ebay_train.txt, Ebay_test.txt, bicycle_final/, …}; the two lists are the standard split.
"""

from __future__ import annotations

from pathlib import Path

import torch

from doubtless.data.papers.layout import Layout, Paper, find_folder, read_table, whole_numbers
from doubtless.data.source import TEST, TRAIN
from doubtless.errors import InputError

LISTS = {"Ebay_train.txt": TRAIN, "Ebay_test.txt": TEST}
UNPACKED = "Stanford_Online_Products"
HEADER = ["image_id", "class_id", "super_class_id", "path"]


def recognises(path: Path) -> bool:
    """Whether a folder, or the one unpacked in it, has a list of Stanford Online Products."""
    return any((place / name).is_file() for name in LISTS for place in (path, path / UNPACKED))


def read(path: Path) -> Layout:
    """Its products by class, in the two parts of its lists."""
    folder = find_folder(path, "Ebay_train.txt", inside=UNPACKED)
    files: list[str] = []
    numbers, parts = [], []
    for name, part in LISTS.items():
        rows = read_table(folder / name, len(HEADER))
        if rows[:1] == [HEADER]:
            rows = rows[1:]
        files += [row[3] for row in rows]
        numbers.append(whole_numbers([row[1] for row in rows], folder / name))
        parts.append(torch.full((len(rows),), part))
    if both := set(numbers[0].tolist()) & set(numbers[1].tolist()):
        raise InputError(f"The lists of {folder} share {len(both)} classes, the first is {min(both)}.")
    present, labels = torch.cat(numbers).unique(return_inverse=True)
    kind = dict(
        zip(labels.tolist(), (file.split("/")[0].removesuffix("_final") for file in files), strict=True)
    )
    names = [f"{kind[label]} {number}" for label, number in enumerate(present.tolist())]
    return Layout(folder, files, labels, names, torch.cat(parts))


SOP = Paper(
    form="sop:PATH",
    what="Stanford Online Products as published: Ebay_train.txt, Ebay_test.txt",
    recognises=recognises,
    read=read,
    standard={
        "training images": 59551,
        "training classes": 11318,
        "test images": 60502,
        "test classes": 11316,
    },
)
