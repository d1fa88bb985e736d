"""`doubtless demo`: from nothing to a trained, measured, reported model on shipped data."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

DEMO: dict[str, Any] = {
    "method": "deterministic",
    "seed": 0,
    "data": {"source": "fashion-sample", "split": "closed", "ood": ["digits"]},
    "model": {"backbone": "conv-fashion", "dim": 32},
    "loss": {"name": "triplet", "margin": 0.1},
    "training": {"epochs": 20, "batch_size": 128, "optimizer": "adam", "lr": 1e-3, "lr_decay": 0.9},
}


def demo(
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Run folder; a new one below runs/ by default.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Train on the shipped Fashion-MNIST sample, measure, write the report; about two minutes on two cores.

    Example: doubtless demo
    """
    from doubtless.cli.tables import print_evaluation, print_json
    from doubtless.config import make_config
    from doubtless.progress import bar
    from doubtless.training import train_run
    from doubtless.training.run_evaluation import RunEvaluation

    config = make_config(DEMO)
    run = train_run(config, out or _fresh_folder(), progress=bar)
    found = RunEvaluation(run, progress=bar).measure()
    if json:
        print_json({"run": str(run.path), **found.to_json()})
    else:
        print_evaluation(
            found, "doubtless demo: 1,000 test images of fashion-sample, each searched among the others"
        )
        typer.echo(f"run:    {run.path}\nreport: {(run.path / 'report.html').resolve()}")


def _fresh_folder() -> Path:
    """A folder that no earlier demo has used."""
    Path("runs").mkdir(exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="demo-", dir="runs"))
