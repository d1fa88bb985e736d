"""Small trees in the layouts of the papers' data sets, written file by file, with what they hold said by hand."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

TRAINING_CITIES = ["amman", "boston", "london", "tokyo", "zurich"]


def picture(path: Path, kind: int, seed: int) -> None:
    """20×16 pixels whose colour says the class."""
    rng = np.random.default_rng([kind, seed])
    colour = np.random.default_rng(kind).integers(40, 215, 3)
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = rng.integers(-30, 30, (16, 20, 3))
    Image.fromarray((colour + noise).clip(0, 255).astype(np.uint8)).save(path)


def write_cub200(path: Path, *, classes: int = 12, each: int = 6) -> Path:
    folder = path / "CUB_200_2011"
    images, labels = [], []
    for number in range(1, classes + 1):
        for i in range(each):
            name = f"{number:03d}.Some_Bird_{number}/Some_Bird_{number}_{i:04d}.jpg"
            picture(folder / "images" / name, number, i)
            images.append(f"{len(images) + 1} {name}")
            labels.append(f"{len(labels) + 1} {number}")
    (folder / "images.txt").write_text("\n".join(images) + "\n")
    (folder / "image_class_labels.txt").write_text("\n".join(labels) + "\n")
    species = [f"{number} {number:03d}.Some_Bird_{number}" for number in range(1, classes + 1)]
    (folder / "classes.txt").write_text("\n".join(species) + "\n")
    return folder


def write_cars196(path: Path, *, classes: int = 10, each: int = 6) -> Path:
    rows, file = [], np.dtype([("relative_im_path", object), ("class", object), ("test", object)])
    for number in range(1, classes + 1):
        for i in range(each):
            name = f"car_ims/{len(rows) + 1:06d}.jpg"
            picture(path / name, 100 + number, i)
            rows.append((name, number, i % 2))
    names = np.array([f"Make {number} 2012" for number in range(1, classes + 1)], dtype=object)
    savemat(path / "cars_annos.mat", {"annotations": np.array(rows, dtype=file), "class_names": names})
    return path


def write_cars_devkit(path: Path, *, classes: int = 10, each: int = 6) -> Path:
    kind = np.dtype([("class", object), ("fname", object)])
    halves: dict[str, list[tuple[int, str]]] = {"cars_train": [], "cars_test": []}
    for number in range(1, classes + 1):
        for i in range(each):
            half = ("cars_train", "cars_test")[i % 2]
            name = f"{len(halves[half]) + 1:05d}.jpg"
            picture(path / half / name, 100 + number, i)
            halves[half].append((number, name))
    (path / "devkit").mkdir()
    names = np.array([f"Make {number} 2012" for number in range(1, classes + 1)], dtype=object)
    savemat(path / "devkit" / "cars_meta.mat", {"class_names": names})
    for file, half in (
        ("devkit/cars_train_annos", "cars_train"),
        ("cars_test_annos_withlabels", "cars_test"),
    ):
        savemat(path / f"{file}.mat", {"annotations": np.array(halves[half], dtype=kind)})
    return path


def write_sop(path: Path, *, classes: int = 12, each: int = 5) -> Path:
    folder = path / "Stanford_Online_Products"
    lines: dict[str, list[str]] = {"Ebay_train.txt": [], "Ebay_test.txt": []}
    count = 0
    for number in range(1, classes + 1):
        for i in range(each):
            count += 1
            name = f"bicycle_final/{number:012d}_{i}.JPG"
            picture(folder / name, 200 + number, i)
            which = "Ebay_train.txt" if number <= 7 else "Ebay_test.txt"
            lines[which].append(f"{count} {number} 1 {name}")
    for which, listed in lines.items():
        (folder / which).write_text("\n".join(["image_id class_id super_class_id path", *listed]) + "\n")
    return folder


def write_lfw(path: Path, *, people: int = 12, each: int = 4) -> Path:
    folder = path / "lfw"
    lists: dict[str, list[str]] = {"peopleDevTrain.txt": [], "peopleDevTest.txt": []}
    for number in range(people):
        name, pictures = f"Person_{number:02d}", each if number % 4 else each + 1
        for i in range(pictures):
            picture(folder / name / f"{name}_{i + 1:04d}.jpg", 300 + number, i)
        lists["peopleDevTest.txt" if number % 3 == 0 else "peopleDevTrain.txt"].append(f"{name}\t{pictures}")
    for which, listed in lists.items():
        (folder / which).write_text("\n".join([str(len(listed)), *listed]) + "\n")
    return folder


def write_msls(path: Path, *, stops: int = 8) -> Path:
    """Cities of one street: a stop every 40 m, photographed by a query and by two database images 10 m on.

    Every city has one panorama, standing on the first stop, and all cities share their coordinates.
    """
    for city in (*TRAINING_CITIES, "cph", "sf"):
        for role, offsets in (("query", [0.0]), ("database", [10.0, -10.0])):
            folder = path / "train_val" / city / role
            rows = []
            for stop in range(stops):
                for i, offset in enumerate(offsets):
                    key = f"{city}-{role}-{stop}-{i}"
                    rows.append((key, 500_000 + 40.0 * stop + offset, 6_000_000.0, False))
                    picture(folder / "images" / f"{key}.jpg", 400 + stop, hash_of(city, role, i))
            rows.append((f"{city}-{role}-pano", 500_000.0, 6_000_000.0, True))
            _write_csv(
                folder / "postprocessed.csv",
                [
                    "",
                    "key",
                    "easting",
                    "northing",
                    "unique_cluster",
                    "night",
                    "control_panel",
                    "view_direction",
                ],
                [
                    [i, key, east, north, i, i % 2 == 0, False, "Forward"]
                    for i, (key, east, north, _) in enumerate(rows)
                ],
            )
            _write_csv(
                folder / "raw.csv",
                ["", "key", "lon", "lat", "ca", "captured_at", "pano"],
                [[i, key, 0.1, 0.2, 0.0, "2020-01-01", pano] for i, (key, _, _, pano) in enumerate(rows)],
            )
            if city == "sf":  # the last stop is outside the standard task
                _write_csv(
                    folder / "subtask_index.csv",
                    ["", "key", "all"],
                    [[i, key, f"-{stops - 1}-" not in key] for i, (key, *_) in enumerate(rows)],
                )
    return path


def hash_of(city: str, role: str, number: int) -> int:
    return sum(map(ord, city + role)) + number


def _write_csv(path: Path, header: list[str], rows: list[list[object]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
