"""`doubtless train`: a configuration in, a finished, measured run out."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from doubtless.config import Config
    from doubtless.evaluation import Evaluation
    from doubtless.progress import Stopwatch


def train(
    config: Annotated[
        Path, typer.Argument(help="YAML configuration of the run; or the name of one that is shipped.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder; runs/DATA-METHOD-SEED by default.")
    ] = None,
    set_: Annotated[list[str], typer.Option("--set", "-s", help="Override, such as training.epochs=3.")] = [],  # noqa: B006
    resume: Annotated[
        bool, typer.Option(help="Continue a run that was stopped, from its last whole epoch.")
    ] = False,
    evaluate: Annotated[bool, typer.Option(help="Measure the test part and write the report.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print measures and intervals as CSV.")] = False,
) -> None:
    """Train a method, measure it, write its report.

    Example: doubtless train configs/fashion-sample/deterministic.yaml --out runs/first --set seed=1

    Example: doubtless train fashion-sample/deterministic --set training.epochs=40 --resume
    """
    from doubtless.cores import limit_threads

    chosen = limit_threads()  # before torch is loaded
    from doubtless.cli.records import refuse_both
    from doubtless.cli.tables import evaluation_csv, print_evaluation, print_json
    from doubtless.distributed import is_main
    from doubtless.methods.configuration import load_config
    from doubtless.progress import describe_phases, process_age
    from doubtless.runs.timing import recorded

    refuse_both(json, csv)
    checked = load_config(config, overrides=set_)
    if chosen and checked.training.accelerator == "cpu":
        _use_all_cores()
    source = checked.data.source.replace(":", "-").replace("/", "-")
    folder = out or Path("runs") / f"{source}-{checked.method}-{checked.seed}"
    with recorded(folder, before=process_age()) as watch, _stoppable(folder):
        evaluation = _train_and_measure(checked, folder, watch, resume=resume, evaluate=evaluate)
    if not is_main():
        return
    skipped = _skipped(folder)
    if json and evaluation is not None:
        print_json({"run": str(folder), "skipped": skipped, **evaluation.to_json()})
        return
    if csv and evaluation is not None:
        typer.echo(evaluation_csv(evaluation), nl=False)
        return
    if evaluation is not None:
        print_evaluation(evaluation, f"{checked.method} on {checked.data.source}")
    if skipped:
        typer.echo(f"{len(skipped):,} files skipped, listed in {folder / SKIPPED}:")
        for line in skipped[:SHOWN]:
            typer.echo(f"  {line}")
    typer.echo(f"run:    {folder}")
    if evaluation is not None:
        typer.echo(f"report: {folder / 'report.html'}")
    typer.echo(f"time:   {describe_phases(watch.seconds)}")


SKIPPED = "skipped.txt"
SHOWN = 5
"""Skipped files that are named; all are listed."""


def _skipped(folder: Path) -> list[str]:
    """Files that could not be trained on, each with the reason."""
    file = folder / SKIPPED
    return file.read_text().splitlines() if file.is_file() else []


@contextlib.contextmanager
def _stoppable(folder: Path) -> Iterator[None]:
    """Ctrl-C says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        from doubtless.cli.stopping import Stopped, resumed

        if not (folder / "config.yaml").is_file():
            raise Stopped("Stopped before anything was begun; start again with the same command.") from None
        since = "from the last whole epoch" if any(folder.rglob("last.ckpt")) else "from its beginning"
        raise Stopped(f"Stopped. Go on {since}: {resumed(sys.argv[1:])}") from None


def _train_and_measure(
    checked: Config, folder: Path, watch: Stopwatch, *, resume: bool, evaluate: bool
) -> Evaluation | None:
    """Leaves the run in its folder; what was measured of it in the main process, if anything was to be."""
    from doubtless.cli.tables import recorded_command
    from doubtless.distributed import is_main
    from doubtless.progress import bar
    from doubtless.runs.evaluation import RunEvaluation
    from doubtless.runs.timing import write_timing
    from doubtless.training import train_run

    run = train_run(checked, folder, resume=resume, progress=bar)
    if not is_main():
        return None
    write_timing(folder, watch, trained=True)
    return RunEvaluation(run, progress=bar).measure(command=recorded_command()) if evaluate else None


def _use_all_cores() -> None:
    """A machine with a GPU was asked for its processor."""
    import torch

    from doubtless.cores import usable_cores

    torch.set_num_threads(usable_cores())
