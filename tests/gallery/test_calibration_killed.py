"""A calibration that is killed at any moment leaves the one before or the new one, whole."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from doubtless.errors import StoreError
from doubtless.gallery import Gallery
from doubtless.gallery.calibration.calibrated import STAMP, Calibrated
from doubtless.index.folder import FolderIndex
from tests.gallery.galleries import gallery as made_up
from tests.reference.calibrating_process import FIRST, SECOND, calibrate

KILLS = 100


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """shop: calibrated at FIRST; other: the same at SECOND; queries of which some show what neither has."""
    folder = tmp_path_factory.mktemp("killed")
    embedding, labels = made_up(180, classes=6, points=True)
    with FolderIndex.create(folder / "shop", family="point", dim=8) as index:
        there = (labels < 5).nonzero().squeeze(1)[:100]
        index.add(embedding[there], [f"i{n}" for n in there], labels=[f"class {labels[n]}" for n in there])
    np.save(folder / "queries.npy", embedding.location[100:].numpy())
    lines = [f"q{n},class {labels[n]}" for n in range(100, 180)]
    (folder / "labels.csv").write_text("\n".join(["id,label", *lines]))
    shutil.copytree(folder / "shop", folder / "other")
    for name, target in (("shop", FIRST), ("other", SECOND)):
        calibrate(str(folder / name), str(folder / "queries.npy"), str(folder / "labels.csv"), target)
    return folder


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.reference.calibrating_process"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    ) as started:
        yield started
        assert started.stdin is not None
        started.stdin.close()
        started.wait(timeout=60)


def kept(path: Path) -> str:
    """All that is attached, but for the word that is another with every calibration."""
    whole = hashlib.sha256()
    with FolderIndex.open(path) as index:
        for name in index.attachments():
            tensors, record = index.attached(name) or ({}, {})
            plain = {key: value for key, value in record.items() if key != STAMP}
            whole.update(json.dumps([name, plain], sort_keys=True).encode())
            for key, tensor in sorted(tensors.items()):
                whole.update(key.encode() + tensor.numpy().tobytes())
    return whole.hexdigest()


def run(process: subprocess.Popen[str], home: Path, path: Path, **order: Any) -> dict[str, Any]:
    """How a calibration of the gallery at `path` has ended."""
    assert process.stdin is not None
    assert process.stdout is not None
    files = {"queries": str(home / "queries.npy"), "labels": str(home / "labels.csv")}
    process.stdin.write(json.dumps({"path": str(path), "statement": -1, "seconds": None, **files, **order}))
    process.stdin.write("\n")
    process.stdin.flush()
    ended: dict[str, Any] = {}
    while "signal" not in ended and "exit" not in ended:
        ended |= json.loads(process.stdout.readline())
    return ended


def look(home: Path, path: Path) -> str:
    """Which calibration there is; fails where it is neither, or cannot be asked."""
    states = {kept(home / "shop"): "old", kept(home / "other"): "new"}
    found = states.get(kept(path), "neither")
    with Gallery.open(path) as gallery:
        assert Calibrated.load(gallery.index).record is not None
        assert gallery.ask(gallery.index.embedding()[:2], k=3).decisions()
    return found


def statements(process: subprocess.Popen[str], home: Path, path: Path) -> int:
    shutil.copytree(home / "shop", path)
    ended = run(process, home, path)
    assert ended["exit"] == 0
    assert look(home, path) == "new"
    return int(ended["statements"])


def test_a_kill_between_any_two_statements(
    home: Path, process: subprocess.Popen[str], tmp_path: Path
) -> None:
    """Where it is written, which is at the end; `slow` tries every statement."""
    count = statements(process, home, tmp_path / "counted")
    found = []
    for statement in [count - 1, count - 2, count - 3, count - 8, count // 2]:
        path = Path(shutil.copytree(home / "shop", tmp_path / f"killed {statement}"))
        assert run(process, home, path, statement=statement)["signal"] == 9
        found.append(look(home, path))
    assert "neither" not in found, found
    assert found[-1] == "old"


@pytest.mark.slow
def test_a_kill_at_any_moment(home: Path, process: subprocess.Popen[str], tmp_path: Path) -> None:
    count, draw = statements(process, home, tmp_path / "counted"), random.Random(0)
    found = []
    for kill in range(KILLS):
        path = Path(shutil.copytree(home / "shop", tmp_path / "killed"))
        late = (
            {"statement": count - 1 - kill} if kill < min(40, count) else {"seconds": draw.uniform(0.01, 2)}
        )
        run(process, home, path, **late)
        found.append(look(home, path))
        shutil.rmtree(path)
    assert set(found) == {"old", "new"}


def test_parts_of_two_calibrations_are_not_taken_for_one(home: Path, tmp_path: Path) -> None:
    """As they lie where a backend keeps one after the other, and was stopped between two."""
    path = Path(shutil.copytree(home / "shop", tmp_path / "mixed"))
    with FolderIndex.open(home / "other") as other, FolderIndex.open(path, writable=True) as index:
        index.attach("promise", *(other.attached("promise") or ({}, {})))
    with FolderIndex.open(path) as index, pytest.raises(StoreError, match="cut off while it was kept"):
        Calibrated.load(index)
