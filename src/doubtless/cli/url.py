"""`doubtless evaluate --protocol url`: a run beside the published means of the URL benchmark."""

from __future__ import annotations

from pathlib import Path

import typer

TITLES = {
    "recall": "recall@1",
    "r_auroc": "R-AUROC",
    "r_auroc_norm": "R-AUROC of the norm, which is free",
    "cropped": "surer than a crop of it",
    "human_spearman": "rank correlation with people's entropy",
    "human_auroc": "AUROC for people's doubt",
}


def print_url(run: Path, data: str | None, human_labels: Path | None, *, json: bool) -> None:
    """Measures a run by URL's protocol and prints it, with what differs."""
    from rich.table import Table

    from doubtless.cli.tables import print_json
    from doubtless.evaluation.url import PUBLISHED
    from doubtless.progress import bar
    from doubtless.runs.url import measure_url
    from doubtless.terminal import Terminal

    figures, notes, path = measure_url(run, data=data, human_labels=human_labels, progress=bar)
    if json:
        print_json({"figures": figures.to_json(), "published": PUBLISHED, "differences": notes})
        return
    table = Table("figure", "this run", *PUBLISHED, title=f"URL's protocol, {figures.images:,} images")
    for name, value in figures.to_json().items():
        if name in TITLES and value is not None:
            beside = [f"{row[name]:.3f}" if name in row else "" for row in PUBLISHED.values()]
            table.add_row(TITLES[name], f"{value:.3f}", *beside)
    console = Terminal()
    console.print(table)
    for note in notes:
        console.print(f"• {note}", highlight=False)
    typer.echo(f"url:    {path}")
