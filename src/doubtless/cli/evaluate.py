"""`doubtless evaluate`: measures a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    run: Annotated[Path, typer.Argument(help="Run folder made by `doubtless train`.")],
    data: Annotated[
        str | None, typer.Option(help="Another source to measure on than the run's test part.")
    ] = None,
    ood: Annotated[
        list[str] | None, typer.Option(help="Out-of-distribution source; several times for several.")
    ] = None,
    gallery: Annotated[
        str | None, typer.Option(help="What is searched: train, or a source. Default: leave-one-out.")
    ] = None,
    bootstrap: Annotated[
        int, typer.Option(min=0, help="Replicates behind the intervals; 0: no intervals.")
    ] = 1000,
    json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Measure a run on its test part, or on other data, and write metrics.json and report.html.

    Example: doubtless evaluate runs/first --ood digits --gallery train
    """
    from doubtless.cli.tables import print_evaluation, print_json
    from doubtless.progress import bar
    from doubtless.training import Run
    from doubtless.training.run_evaluation import RunEvaluation

    work = RunEvaluation(Run.open(run), data=data, ood=ood, gallery=gallery, progress=bar)
    found = work.measure(bootstrap=bootstrap)
    if json:
        print_json(found.to_json())
    else:
        print_evaluation(found, f"{work.config.method} on {data or work.config.data.source}")
        typer.echo(f"report: {work.folder / 'report.html'}")
