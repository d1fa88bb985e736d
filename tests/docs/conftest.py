"""What pages and examples may find in their folder: a trained run, pictures, vectors and an index of them."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tarfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.docs.built import Site, build
from tests.docs.pages import Furnish

PHOTOS, MORE = 16, 2
"""Pictures of every class in photos/ and in more/."""


def write_pictures(folder: Path) -> None:
    """photos/ and more/ (a folder per class), shards/more.tar, and single pictures, all of fashion-sample."""
    from doubtless.data import open_source

    source = open_source("fashion-sample")
    labels = np.asarray(source.labels)
    for code, name in enumerate(source.label_names):
        rows = np.flatnonzero(labels == code)
        for place, row in enumerate(rows[-PHOTOS - MORE :]):
            path = folder / ("photos" if place < PHOTOS else "more") / name.replace("/", " ") / f"{row}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.asarray(source.pixels[int(row)]).squeeze()).save(path)
    (folder / "shards").mkdir()
    with tarfile.open(folder / "shards" / "more.tar", "w") as shard:
        for path in sorted((folder / "more").rglob("*.png")):
            shard.add(path, arcname=path.name)
    sneakers, bags = (sorted((folder / "more" / name).glob("*.png")) for name in ("Sneaker", "Bag"))
    singles = {"photo": sneakers[0], "shoe": sneakers[1], "a": sneakers[0], "b": bags[0], "new": bags[1]}
    for name, path in singles.items():
        Image.open(path).save(folder / f"{name}.jpg")


def write_vectors(folder: Path) -> None:
    """vectors.npy of ten clusters with labels.csv, queries.npy like them, and FAISS's my.index of the same."""
    import faiss

    rng = np.random.default_rng(0)
    labels = np.arange(400) % 10
    vectors = (2 * rng.normal(size=(10, 16))[labels] + rng.normal(size=(400, 16))).astype(np.float32)
    np.save(folder / "vectors.npy", vectors[:390])
    np.save(folder / "queries.npy", vectors[390:])
    rows = (
        f"item-{row},{'Sneaker' if label == 7 else f'class {label}'}"
        for row, label in enumerate(labels[:390])
    )
    (folder / "labels.csv").write_text("id,label\n" + "\n".join(rows) + "\n")
    index = faiss.IndexFlatL2(16)
    index.add(vectors[:390])
    faiss.write_index(index, str(folder / "my.index"))


@pytest.fixture(scope="session")
def furniture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of it, made once."""
    import doubtless

    folder = tmp_path_factory.mktemp("furniture")
    write_pictures(folder)
    write_vectors(folder)
    config = {
        "method": "deterministic",
        "data": {"source": "fashion-sample", "validation": 0.2},
        "model": {"backbone": "conv-fashion", "dim": 16},
        "training": {"epochs": 1, "batch_size": 128, "accelerator": "cpu"},
    }
    run = doubtless.train(config, folder / "runs" / "first", quiet=True)
    with doubtless.Gallery.create(folder / "gallery", folder / "photos", model=run.path) as gallery:
        gallery.calibrate()
    return folder


@pytest.fixture
def furnish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Furnish:
    """Moves into a folder of its own; called with names of furniture, it has these in it."""
    monkeypatch.chdir(tmp_path)

    def place(names: Iterable[str]) -> None:
        for name in names:
            source = request.getfixturevalue("furniture") / name
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)

    return place


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    """The site, built once for all processes that test."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    with (shared / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        result = shared / "site.json"
        if not result.exists():
            built = build(shared / "site")
            result.write_text(json.dumps([built.printed, built.code]))
    printed, code = json.loads(result.read_text())
    return Site(shared / "site", printed, code)
