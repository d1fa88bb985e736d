"""`doubtless report`: measures a run again and writes its report anew."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(help="Run folder made by `doubtless train`.")],
    json: Annotated[bool, typer.Option("--json", help="Print the path and the metrics as JSON.")] = False,
) -> None:
    """Measure a run again on its own test part and write its report anew.

    Example: doubtless report runs/first
    """
    from doubtless.cli.tables import print_json
    from doubtless.progress import bar
    from doubtless.training import Run
    from doubtless.training.run_evaluation import RunEvaluation

    work = RunEvaluation(Run.open(run), progress=bar)
    found = work.measure()
    path = work.folder / "report.html"
    if json:
        print_json({"report": str(path), **found.to_json()})
    else:
        typer.echo(f"report: {path}")
