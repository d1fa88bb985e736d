"""Where a run's time went: `timing.json`, which training, measuring and the report all write to.

    {"seconds": 41.2, "train_seconds": 21.7, "phases": {"start": 4.1, "training": 9.8, "tuning": 3.0, …}}

`train_seconds` are those until the model was there. The phases add up to `seconds`; one that is gone through again,
such as measuring, is written anew.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from doubtless.distributed import is_main
from doubtless.errors import FileError
from doubtless.files import read_json, reading, write_json
from doubtless.progress import Stopwatch, measuring, running

NAME = "timing.json"


@contextlib.contextmanager
def recorded(folder: Path, *, before: float = 0.0, trained: bool = False) -> Iterator[Stopwatch]:
    """Measures what is done within and leaves it in the folder; within another one it adds to that.

    before   seconds that had passed already, such as `doubtless.progress.process_age`
    trained  whether all of it is for the model, which is there at the end
    """
    outer = running()
    if outer is not None:
        yield outer
        return
    with measuring(Stopwatch(before=before)) as watch:
        yield watch
    if is_main():
        write_timing(folder, watch, trained=trained)


def write_timing(folder: Path, watch: Stopwatch, *, trained: bool = False) -> None:
    """Writes what the stopwatch shows now into the folder; `trained`: all of it was for the model there."""
    total = watch.total
    kept = read_timing(folder)
    phases = {**kept.get("phases", {}), **{name: round(part, 3) for name, part in watch.seconds.items()}}
    values = {**kept, "seconds": round(sum(phases.values()), 3)}
    if trained:
        values["train_seconds"] = round(total, 2)
    write_json(folder / NAME, {**values, "phases": phases})


def read_timing(folder: Path) -> dict[str, Any]:
    """What is written there; {} where nothing is, or nothing that can be read."""
    file = folder / NAME
    if not file.is_file():
        return {}
    with reading(file, "file of times", kind=FileError):
        return dict(read_json(file))


def phases_of(folder: Path) -> Mapping[str, float]:
    """Phase → seconds, of a folder where they are written; those of older runs have none."""
    with reading(folder / NAME, "file of times", kind=FileError):
        return {name: float(seconds) for name, seconds in read_timing(folder).get("phases", {}).items()}
