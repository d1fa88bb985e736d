"""Random divisions of a set of photos, and files that keep what was measured of them.

Half-whitened frozen features of a set are its photos; a division says which of them are in a gallery. What is
measured of a division is a line of a file: a benchmark can be stopped and called again, with more divisions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from frozen_features import Features, frozen_features
from numpy.typing import NDArray
from torch import Tensor

from doubtless.files import write_text
from doubtless.laplace import Head, half_whitened

DIM = 512
IN_GALLERY = 0.7
FEATURES = {"cub": "cub", "lfw": "all-lfw", "grocery": "all-grocery", "omniglot": "all-omniglot"}
"""Data set → its file of frozen features."""
Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Photos:
    """Unit vectors (N, D) of test classes and their labels (N,)."""

    vectors: Tensor
    labels: Tensor

    @cached_property
    def similarity(self) -> Tensor:
        """(N, N)"""
        return self.vectors @ self.vectors.T


def of_test(found: Features) -> Tensor:
    """Which features (n,) are of test classes: of the second half of all where a source has no parts of its own."""
    return found["test"] if "test" in found else found["labels"] >= int(found["labels"].max() + 1) // 2


def unit(features: Tensor, head: Head) -> Tensor:
    """Features (n, F) as unit vectors (n, D)."""
    return torch.nn.functional.normalize(features @ head.weight.T + head.bias, dim=1)


def frozen_photos(name: str, cache: Path) -> Photos:
    """Test classes by half-whitened features, the training classes' principal components."""
    found = frozen_features(FEATURES[name], cache)
    test = of_test(found)
    head = half_whitened(found["features"][~test], DIM)
    return Photos(unit(found["features"][test], head), found["labels"][test])


@dataclass(frozen=True, eq=False)
class Division:
    """Rows of the photos: in the gallery, of known queries, of unknown ones."""

    gallery: Tensor
    known: Tensor
    unknown: Tensor


def divide(labels: Tensor, seed: int, share: float = IN_GALLERY) -> Division:
    """Half of the labels are the gallery's; of each, `share` of its photos on average, one at least, are in it."""
    generator = torch.Generator().manual_seed(seed)
    names, code = labels.unique(return_inverse=True)
    in_gallery = torch.randperm(len(names), generator=generator) < len(names) // 2
    order = torch.randperm(len(labels), generator=generator)
    order = order[code[order].argsort(stable=True)]  # photos of a label one after the other, at random
    size = code.bincount()
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order)) - (size.cumsum(0) - size)[code[order]]
    kept = (share * size + torch.rand(len(size), generator=generator)).floor().long().clamp_min(1)
    of_gallery = in_gallery[code]
    first = place < kept[code]
    return Division(
        *(part.nonzero().squeeze(1) for part in (of_gallery & first, of_gallery & ~first, ~of_gallery))
    )


def read(path: Path) -> list[Record]:
    """What a file keeps, one record per division; nothing where there is none."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def kept(path: Path, divisions: int, made: Callable[[range], Iterable[Record]]) -> list[Record]:
    """The divisions 0, 1, … of a file; those that it lacks are made in their order and added one by one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = read(path)
    lacking = range(len(records), divisions)
    for record in made(lacking) if lacking else ():
        with path.open("a") as file:
            file.write(json.dumps(record) + "\n")
        print(f"{path.stem}: division {len(records)}", flush=True)
        records.append(record)
    return records


def measured_by(
    measure: Callable[[Photos, int], Record], photos: Photos, seeds: range, jobs: int
) -> Iterator[Record]:
    """What `measure` finds, in the order of the seeds, by one process or several of one thread each."""
    if jobs == 1 or len(seeds) < 2:
        yield from (measure(photos, seed) for seed in seeds)
        return
    with ProcessPoolExecutor(
        min(jobs, len(seeds)),
        mp_context=get_context("spawn"),
        initializer=_begin,
        initargs=(measure, photos.vectors.numpy(), photos.labels.numpy()),
    ) as pool:
        yield from pool.map(_measure_here, seeds)


_HERE: list[tuple[Callable[[Photos, int], Record], Photos]] = []
"""What a process of a pool measures, and its photos: sent once, not with every division."""


def _begin(
    measure: Callable[[Photos, int], Record], vectors: NDArray[np.float32], labels: NDArray[np.int64]
) -> None:
    torch.set_num_threads(1)
    _HERE.append((measure, Photos(torch.from_numpy(vectors), torch.from_numpy(labels))))


def _measure_here(seed: int) -> Record:
    measure, photos = _HERE[-1]
    return measure(photos, seed)


def arguments(description: str | None, *, divisions: int, results: Path) -> argparse.ArgumentParser:
    """What every one of these commands takes: where features lie, how many divisions, where the page goes."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, default=Path("features"))
    parser.add_argument("--divisions", type=int, default=divisions)
    parser.add_argument("--out", type=Path, default=results)
    return parser


def write_page(out: Path, name: str, result: Record, page: str) -> None:
    """NAME.json and README.md in a folder."""
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / f"{name}.json", json.dumps(result, indent=1) + "\n")
    write_text(out / "README.md", page)
