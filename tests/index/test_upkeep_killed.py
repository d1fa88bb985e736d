"""Backups, restorations, compactions and background builds that are killed: what was there is there, whole."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery.safekeeping import backup, check, restore
from doubtless.index.folder import FolderIndex

KILLS = 100
"""Of each kind of work."""
COUNT, DIM = 3000, 16


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough for every kind of work to take a while; a third of it was removed again."""
    path = tmp_path_factory.mktemp("upkeep") / "index"
    gallery = Embedding.point(torch.randn(COUNT, DIM, generator=torch.Generator().manual_seed(0)))
    with FolderIndex.create(path, family="point", dim=DIM) as index:
        index.add(gallery, [str(n) for n in range(COUNT)], labels=[f"class {n % 5}" for n in range(COUNT)])
        index.remove([str(n) for n in range(0, COUNT, 3)])
        index.attach("calibrator", {"slope": torch.arange(50.0)}, {"kind": "logistic"})
    (path / "images").mkdir()
    (path / "images" / "picture").write_bytes(bytes(1 << 20))
    return path


@pytest.fixture(scope="module")
def process() -> Iterator[subprocess.Popen[str]]:
    command, root = [sys.executable, "-m", "tests.reference.upkeep_process"], Path(__file__).parents[2]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, cwd=root, **pipes) as started:
        yield started
        assert started.stdin is not None
        started.stdin.close()
        started.wait(timeout=60)


def run(
    process: subprocess.Popen[str], work: str, path: Path, to: Path, seconds: float | None
) -> dict[str, Any]:
    """How it has ended, and what it had acknowledged."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(
        json.dumps({"work": work, "path": str(path), "to": str(to), "seconds": seconds}) + "\n"
    )
    process.stdin.flush()
    added: list[str] = []
    while True:
        said = json.loads(process.stdout.readline())
        if "added" not in said:
            return {**said, "added": added}
        added.append(said["added"])


def told(path: Path) -> list[Any]:
    """All that it says of what was there from the start."""
    with FolderIndex.open(path) as index:
        items = [item for item in index.items(index.rows) if item.label != "late"]
        rows = [
            row for row, item in zip(index.rows, index.items(index.rows), strict=True) if item.label != "late"
        ]
        tensors, record = index.attached("calibrator") or ({}, {})
        return [
            items,
            index.embedding(torch.stack(rows)).location.tolist(),
            record,
            tensors["slope"].tolist(),
            (path / "images" / "picture").stat().st_size,
        ]


def beside(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("work", ["backup", "restore"])
def test_a_copy_is_there_whole_or_not_at_all(
    work: str, whole: Path, process: subprocess.Popen[str], tmp_path: Path
) -> None:
    right, draw, ends = told(whole), random.Random(work), {"nothing": 0, "copy": 0}
    path, to = tmp_path / "index", tmp_path / "copy"
    shutil.copytree(whole, path if work == "backup" else to)
    made = to if work == "backup" else path
    uninterrupted = run(process, work, path, to, None)
    assert uninterrupted["exit"] == 0
    for _ in range(KILLS):
        shutil.rmtree(made, ignore_errors=True)
        ended = run(process, work, path, to, draw.uniform(0.01, 1.1 * uninterrupted["seconds"]))
        ends["copy" if made.exists() else "nothing"] += 1
        if made.exists():
            assert check(made, thorough=True).is_whole
            assert told(made) == right
        else:
            assert "signal" in ended
        source = path if work == "backup" else to
        assert check(source, thorough=True).is_whole
    print(work, ends, f"{uninterrupted['seconds']:.2f} s uninterrupted")
    assert ends["nothing"] > KILLS // 3
    shutil.rmtree(made, ignore_errors=True)
    assert run(process, work, path, to, None)["exit"] == 0
    assert beside(tmp_path) == ["copy", "index"]  # nothing of the killed ones is left
    assert told(path) == told(to) == right


@pytest.mark.slow
@pytest.mark.parametrize("work", ["compact", "build"])
def test_what_is_worked_on_stays_whole(
    work: str, whole: Path, process: subprocess.Popen[str], tmp_path: Path
) -> None:
    right, draw, found = told(whole), random.Random(work), dict[str, int]()
    path = Path(shutil.copytree(whole, tmp_path / "index"))
    uninterrupted = run(process, work, path, path, None)
    assert uninterrupted["exit"] == 0
    killed = 0
    for _ in range(KILLS):
        shutil.rmtree(path)
        shutil.copytree(whole, path)
        ended = run(process, work, path, path, draw.uniform(0.005, 1.1 * uninterrupted["seconds"]))
        killed += "signal" in ended
        assert told(path) == right
        assert check(path, thorough=True).is_whole
        with FolderIndex.open(path) as index:
            assert set(ended["added"]) <= set(index.ids())
            by = str(index.stats()["searched_by"])
            found[by] = found.get(by, 0) + 1
            some = index.rows[:300]
            assert (index.search(index.embedding(some), 1).row[:, 0] == some).float().mean() > 0.97
    print(work, f"{killed} of {KILLS} killed in it", found, f"{uninterrupted['seconds']:.2f} s uninterrupted")
    assert killed > KILLS // 3
    assert run(process, work, path, path, None)["exit"] == 0
    files = [
        file.name for file in (path / "cache").rglob("*") if file.name.startswith(("approximate", "moments"))
    ]
    assert len(files) <= 1  # nothing of the killed ones is left
    assert told(path) == right


def test_what_a_killed_copy_has_left_goes_with_the_next(whole: Path, tmp_path: Path) -> None:
    left = tmp_path / ".copy.copying" / "index"
    left.mkdir(parents=True)
    (left / "index.sqlite").write_bytes(b"half of it")
    assert backup(whole, tmp_path / "copy") == len(told(whole)[0])
    assert beside(tmp_path) == ["copy"]
    (tmp_path / ".back.copying" / "index").mkdir(parents=True)
    restore(tmp_path / "copy", tmp_path / "back")
    assert beside(tmp_path) == ["back", "copy"]
    with pytest.raises(InputError, match="lies in"):
        backup(whole, whole / "inside")
