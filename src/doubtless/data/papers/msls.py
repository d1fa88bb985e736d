"""Mapillary Street-level Sequences: 1.6 million images of 30 cities. Warburg et al., 2020.

<city>/{query,database}/{postprocessed.csv, raw.csv, images/KEY.jpg}, the cities below PATH or below
PATH/train_val. Two images show the same place when they were taken within 25 m of each other (UTM easting and
northing). Panoramas are left out; day and night stay in, as in the standard evaluation of everything against
everything (the column `all` of subtask_index.csv, where there is one). 22 cities train. Positions of the six
test cities are not public, so the test part is what the papers call the validation set: Copenhagen and San
Francisco, 740 queries against 18,871 images.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from doubtless.data.papers.layout import Layout, Paper
from doubtless.data.source import TEST, TRAIN, Places
from doubtless.errors import InputError

TRAINING = [
    "amman", "amsterdam", "austin", "bangkok", "berlin", "boston", "budapest", "goa", "helsinki", "london",
    "manila", "melbourne", "moscow", "nairobi", "ottawa", "paris", "phoenix", "saopaulo", "tokyo", "toronto",
    "trondheim", "zurich",
]  # fmt: skip
HELD_OUT = ["cph", "sf"]
ROLES = ("query", "database")


@dataclass(frozen=True)
class Taken:
    """The usable images of one folder, in the order of its lists."""

    names: list[str]
    position: Tensor  # (n, 2) UTM easting and northing


def recognises(path: Path) -> bool:
    """Whether a folder has cities with queries or a database."""
    return any((city / role).is_dir() for city in _cities(path).values() for role in ROLES)


def read(path: Path) -> Layout:
    """Its usable images by city, with their positions; the held-out cities are the test part."""
    found = _cities(path)
    known = [city for city in (*TRAINING, *HELD_OUT) if city in found]
    if not known:
        raise InputError(
            f"There is no city of MSLS in {path} or {path / 'train_val'}; expected are folders such as "
            f"amman/{{query,database}}/postprocessed.csv."
        )
    missing = [f"The training city {city} is not there." for city in TRAINING if city not in found]
    missing += [f"The test city {city} is not there." for city in HELD_OUT if city not in found]
    names: list[str] = []
    positions, regions, queries, parts = [], [], [], []
    for region, city in enumerate(sorted(known)):
        for role in ROLES:
            taken = _read_folder(found[city] / role, held_out=city in HELD_OUT)
            names += [f"{city}/{role}/images/{name}.jpg" for name in taken.names]
            count = len(taken.names)
            positions.append(taken.position)
            regions.append(torch.full((count,), region))
            queries.append(torch.full((count,), role == "query"))
            parts.append(torch.full((count,), TEST if city in HELD_OUT else TRAIN))
    if not names:
        raise InputError(f"The lists of {', '.join(known)} in {path} name no image that is not a panorama.")
    places = Places.of_regions(torch.cat(positions), torch.cat(regions), query=torch.cat(queries))
    labels = places.cells()
    return Layout(
        folder=next(iter(found.values())).parent,
        names=names,
        labels=labels,
        label_names=_cell_names(labels, [name.split("/", 1)[0] for name in names], torch.cat(positions)),
        given_split=torch.cat(parts),
        places=places,
        missing=missing,
    )


def _cities(path: Path) -> dict[str, Path]:
    """Folders of cities by name."""
    folder = path / "train_val" if (path / "train_val").is_dir() else path
    wanted = (*TRAINING, *HELD_OUT)
    return {city: folder / city for city in wanted if (folder / city).is_dir()}


def _read_folder(folder: Path, *, held_out: bool) -> Taken:
    """What is left of one folder's lists without panoramas and, when held out, outside the standard task."""
    taken = _rows(folder / "postprocessed.csv", ("key", "easting", "northing"))
    panorama = {row["key"] for row in _rows(folder / "raw.csv", ("key", "pano")) if _true(row["pano"])}
    kept = [row for row in taken if row["key"] not in panorama]
    task = folder / "subtask_index.csv"
    if held_out and task.is_file():
        wanted = {row["key"] for row in _rows(task, ("key", "all")) if _true(row["all"])}
        kept = [row for row in kept if row["key"] in wanted]
    try:
        position = [(float(row["easting"]), float(row["northing"])) for row in kept]
    except ValueError as error:
        raise InputError(
            f"{folder / 'postprocessed.csv'} has something else where a position should be: {error}."
        ) from error
    return Taken([row["key"] for row in kept], torch.tensor(position, dtype=torch.double).reshape(-1, 2))


def _rows(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    try:
        with path.open(newline="") as file:
            reader = csv.DictReader(file)
            if absent := set(columns) - set(reader.fieldnames or ()):
                raise InputError(f"{path} has no column {', '.join(sorted(absent))}.")
            return [{column: row[column] or "" for column in columns} for row in reader]
    except FileNotFoundError:
        raise InputError(f"There is no file {path}.") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read: {error}.") from error


def _true(word: str) -> bool:
    return word.strip().lower() in {"true", "1"}


def _cell_names(labels: Tensor, cities: list[str], position: Tensor) -> list[str]:
    """City, and easting and northing of the first image of each cell."""
    first = torch.full((int(labels.max()) + 1,), len(labels)).scatter_reduce_(
        0, labels, torch.arange(len(labels)), "amin"
    )
    return [
        f"{cities[row]} {east:.0f} {north:.0f}"
        for row, (east, north) in zip(first.tolist(), position[first].tolist(), strict=True)
    ]


MSLS = Paper(
    form="msls:PATH",
    what="Mapillary Street-level Sequences: <city>/{query,database}/*.csv; the same place is within 25 m",
    recognises=recognises,
    read=read,
    standard={
        "training regions": 22,
        "test regions": 2,
        "test queries": 740,
        "test database images": 18871,
    },
)
