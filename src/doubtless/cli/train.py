"""`doubtless train`: a configuration in, a finished, measured run out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    config: Annotated[Path, typer.Argument(help="YAML configuration of the run.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder; runs/DATA-METHOD-SEED by default.")
    ] = None,
    set_: Annotated[list[str], typer.Option("--set", "-s", help="Override, such as training.epochs=3.")] = [],  # noqa: B006
    resume: Annotated[
        bool, typer.Option(help="Continue a run that was stopped, from its last whole epoch.")
    ] = False,
    evaluate: Annotated[bool, typer.Option(help="Measure the test part and write the report.")] = True,
    json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Train a method, measure it, write its report.

    Example: doubtless train configs/fashion-sample/deterministic.yaml --out runs/first --set seed=1
    """
    from doubtless.cli.tables import print_evaluation, print_json, recorded_command
    from doubtless.distributed import is_main
    from doubtless.methods.configuration import load_config
    from doubtless.progress import bar
    from doubtless.runs.evaluation import RunEvaluation
    from doubtless.training import train_run

    checked = load_config(config, overrides=set_)
    source = checked.data.source.replace(":", "-").replace("/", "-")
    folder = out or Path("runs") / f"{source}-{checked.method}-{checked.seed}"
    run = train_run(checked, folder, resume=resume, progress=bar)
    if not is_main():
        return
    if not evaluate:
        typer.echo(f"run: {run.path}")
        return
    evaluation = RunEvaluation(run, progress=bar).measure(command=recorded_command())
    if json:
        print_json({"run": str(run.path), **evaluation.to_json()})
    else:
        print_evaluation(evaluation, f"{checked.method} on {checked.data.source}")
        typer.echo(f"run:    {run.path}\nreport: {run.path / 'report.html'}")
