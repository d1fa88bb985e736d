"""Cars196: 16,185 cars of 196 models. Krause, Stark, Deng and Fei-Fei, 2013.

Either cars_annos.mat beside car_ims/, or the devkit: cars_train_annos.mat and cars_test_annos_withlabels.mat (in
devkit/ or beside it) with cars_train/ and cars_test/. The set's own division is one for classification; for
retrieval the classes 1 to 98 train and 99 to 196 test. (A published reader has class 98 in neither.)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from doubtless.data.papers.layout import Layout, Paper, first_half
from doubtless.errors import InputError

WHOLE = "cars_annos.mat"
HALVES = {"cars_train": "cars_train_annos.mat", "cars_test": "cars_test_annos_withlabels.mat"}
NAMES = "cars_meta.mat"


def recognises(path: Path) -> bool:
    """Whether a folder has the annotations of Cars196."""
    return (path / WHOLE).is_file() or any(_find(path, file) for file in HALVES.values())


def read(path: Path) -> Layout:
    """Its cars by class, the first half of the classes for training."""
    if (path / WHOLE).is_file():
        file = path / WHOLE
        content = _load(file)
        rows = _column(content, "annotations", file)
        files = [str(row["relative_im_path"]) for row in rows]
        numbers = [int(row["class"]) for row in rows]
        names = [str(name) for name in _column(content, "class_names", file)]
    else:
        files, numbers, names = _devkit(path)
    labels = torch.tensor(numbers, dtype=torch.long)
    if not len(labels) or int(labels.min()) < 1 or int(labels.max()) > len(names):
        raise InputError(f"The cars below {path} have classes outside 1 to {len(names)}, the named ones.")
    return Layout(path, files, labels - 1, names, first_half(labels, len(names)))


def _devkit(path: Path) -> tuple[list[str], list[int], list[str]]:
    files: list[str] = []
    numbers: list[int] = []
    for folder, name in HALVES.items():
        file = _find(path, name)
        if file is None:
            raise InputError(
                f"There is neither {WHOLE} in {path} nor {name} in it or its devkit; the labels of both halves "
                "are needed, because retrieval splits the cars by class."
            )
        for row in _column(_load(file), "annotations", file):
            if "class" not in (row.dtype.names or ()):
                raise InputError(
                    f"{file} has no classes; cars_test_annos_withlabels.mat is the one that has."
                )
            files.append(f"{folder}/{row['fname']}")
            numbers.append(int(row["class"]))
    meta = _find(path, NAMES)
    if meta is None:
        raise InputError(f"There is no {NAMES} in {path} or its devkit; it names the classes.")
    return files, numbers, [str(name) for name in _column(_load(meta), "class_names", meta)]


def _find(path: Path, name: str) -> Path | None:
    return next((place for place in (path / name, path / "devkit" / name) if place.is_file()), None)


def _load(path: Path) -> dict[str, Any]:
    from scipy.io import loadmat

    try:
        return loadmat(path, squeeze_me=True)
    except Exception as error:  # scipy raises a dozen kinds for a damaged file
        raise InputError(f"{path} is no readable .mat file: {error}.") from error


def _column(content: dict[str, Any], name: str, path: Path) -> Sequence[Any]:
    if name not in content:
        raise InputError(f"{path} has no {name}.")
    return np.atleast_1d(content[name])  # type: ignore[return-value]


CARS196 = Paper(
    form="cars196:PATH",
    what="Cars196 as published: cars_annos.mat, or the devkit's two annotation files",
    recognises=recognises,
    read=read,
    standard={
        "training images": 8054,
        "training classes": 98,
        "test images": 8131,
        "test classes": 98,
    },
)
