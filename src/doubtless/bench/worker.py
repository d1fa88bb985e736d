"""One run of a benchmark in a process of its own: trained (or taken up again), measured, written down.

python -m doubtless.bench.worker CONFIG.yaml FOLDER [--train-only | --measure RUN]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save
from torch import Tensor

from doubtless.errors import DoubtlessError
from doubtless.evaluation import Evaluation, QueryRecord
from doubtless.files import write_bytes, write_json, write_text
from doubtless.methods.configuration import load_config
from doubtless.runs import Run
from doubtless.runs.evaluation import RunEvaluation
from doubtless.runs.model import device_name
from doubtless.runs.report import versions
from doubtless.runs.timing import recorded, write_timing
from doubtless.training import train_run

MADE_WITH = "made_with.json"


def make_run(config_path: Path, folder: Path, *, train_only: bool = False) -> None:
    """Leaves a finished run in `folder`, whatever state it was found in."""
    with recorded(folder) as watch:
        config = load_config(config_path)
        run = Run(folder)
        if not run.is_finished:
            begun = (folder / "config.yaml").exists()
            run = train_run(config, folder, resume=begun, quiet=True)
            write_timing(folder, watch, trained=True)
        if not train_only:
            work = RunEvaluation(run)
            _keep(work.measure(report=False), folder, device=work.method.device)


def measure_again(config_path: Path, folder: Path, base: Path) -> None:
    """Leaves in `folder` what is found when the finished run `base` is measured as this configuration says."""
    with recorded(folder) as watch:
        config = load_config(config_path)
        write_text(folder / "config.yaml", config.to_yaml())
        work = RunEvaluation(Run.open(base), options=config.evaluation)
        evaluation = work.measure(report=False, folder=folder)
        write_timing(folder, watch, trained=True)
        _keep(evaluation, folder, device=work.method.device)


def _keep(evaluation: Evaluation, folder: Path, *, device: torch.device) -> None:
    """What measured the run, then its queries: with them the run is done."""
    assert evaluation.queries is not None
    write_json(folder / MADE_WITH, {**versions(), "device": device_name(device)})
    write_bytes(folder / "queries.safetensors", save(as_tensors(evaluation.queries)))


def as_tensors(record: QueryRecord) -> dict[str, Tensor]:
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
    """The query record that `as_tensors` was made from."""
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


def main(arguments: Sequence[str]) -> None:
    """What the module's docstring says; an error that a user can act on is one sentence."""
    config_path, folder, *how = arguments
    try:
        if how[:1] == ["--measure"]:
            measure_again(Path(config_path), Path(folder), Path(how[1]))
        else:
            make_run(Path(config_path), Path(folder), train_only="--train-only" in how)
    except DoubtlessError as error:
        sys.exit(f"doubtless: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
