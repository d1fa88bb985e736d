"""One run of a benchmark in a process of its own: trained (or taken up again), measured, written down.

python -m doubtless.bench.worker CONFIG.yaml FOLDER [--train-only]
"""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path

from safetensors.torch import load_file, save

from doubtless.config import load_config
from doubtless.errors import DoubtlessError
from doubtless.evaluation import QueryRecord
from doubtless.files import write_bytes, write_json
from doubtless.training import Run, train_run
from doubtless.training.run_evaluation import RunEvaluation


def make_run(config_path: Path, folder: Path, *, train_only: bool = False) -> None:
    """Leaves a finished run in `folder`, whatever state it was found in."""
    began = time.perf_counter()
    config = load_config(config_path)
    run = Run(folder)
    if not run.is_finished:
        resumable = run.checkpoint.exists() and (folder / "config.yaml").exists()
        if folder.exists() and not resumable:
            shutil.rmtree(folder)  # stopped before its first epoch was over
        train_run(config, folder, resume=resumable, quiet=True)
        write_json(folder / "timing.json", {"train_seconds": round(time.perf_counter() - began, 2)})
    if train_only:
        return
    found = RunEvaluation(run).measure(report=False)
    assert found.queries is not None
    write_bytes(folder / "queries.safetensors", save(as_tensors(found.queries)))  # last: the run is done


def as_tensors(record: QueryRecord) -> dict:
    """A query record as flat tensors."""
    tensors = {
        "index": record.index,
        "neighbor": record.neighbor,
        "correct": record.correct,
        **{f"values/{name}": value for name, value in record.values.items()},
    }
    if record.uncertainty is not None:
        tensors["uncertainty"] = record.uncertainty
    return {name: value.cpu().contiguous() for name, value in tensors.items()}


def read_queries(path: Path) -> QueryRecord:
    tensors = load_file(path)
    prefix = "values/"
    return QueryRecord(
        index=tensors["index"],
        neighbor=tensors["neighbor"],
        correct=tensors["correct"],
        uncertainty=tensors.get("uncertainty"),
        values={
            name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)
        },
    )


if __name__ == "__main__":
    try:
        make_run(Path(sys.argv[1]), Path(sys.argv[2]), train_only="--train-only" in sys.argv[3:])
    except DoubtlessError as error:
        sys.exit(f"doubtless: {error}")
