"""`doubtless methods` and `doubtless sources`: what there is to choose from, and whether a source is whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from doubtless.cli.records import print_record, refuse_both

if TYPE_CHECKING:
    from doubtless.data.check import SourceCheck


def methods(
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="As CSV.")] = False,
) -> None:
    """List the methods that a configuration can name.

    Example: doubtless methods
    """
    from doubtless.methods import all_methods

    rows = [(name, f"v{kind.version}", kind.summary) for name, kind in all_methods().items()]
    show(("method", "version", "what it is"), rows, json, csv=csv)


def show(names: tuple[str, ...], rows: Sequence[tuple[str, ...]], json: bool, *, csv: bool = False) -> None:
    """Rows as a table for the eye, as JSON or as CSV."""
    from rich.table import Table

    from doubtless.cli.tables import csv_text, print_json
    from doubtless.terminal import Terminal

    refuse_both(json, csv)
    if json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    if csv:
        typer.echo(csv_text(names, rows), nl=False)
        return
    table = Table(*names)
    for row in rows:
        table.add_row(*row)
    Terminal().print(table)


app = typer.Typer(rich_markup_mode=None)
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
AsCsv = Annotated[bool, typer.Option("--csv", help="As CSV.")]


@app.callback(invoke_without_command=True)
def sources(context: typer.Context, json: AsJson = False, csv: AsCsv = False) -> None:
    """List the data sources that a configuration can name, or check one.

    Example: doubtless sources

    Example: doubtless sources check cub200:CUB_200_2011
    """
    if context.invoked_subcommand is None:
        list_sources(json, csv)


@app.command("list")
def list_sources(json: AsJson = False, csv: AsCsv = False) -> None:
    """List the data sources that a configuration can name.

    Example: doubtless sources list
    """
    from doubtless.data import SOURCES

    show(("source", "what it is"), [(kind.form, kind.what) for _, kind in SOURCES.items()], json, csv=csv)


@app.command("check")
def check(
    source: Annotated[str, typer.Argument(help="A source, or a folder whose layout says what it is.")],
    data: Annotated[
        str | None, typer.Option(help="Folder with the data sets; $DOUBTLESS_DATA by default.")
    ] = None,
    decode: Annotated[bool, typer.Option(help="Read every image to its end.")] = False,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Say what a source holds, what its standard split should hold, and what is missing.

    Leaves with 1 when something is.

    Example: doubtless sources check /data/CUB_200_2011

    Example: doubtless sources check msls:msls --data /data --decode
    """
    from doubtless.data.check import check_source
    from doubtless.progress import bar

    refuse_both(json, csv)
    found = check_source(source, root=data, decode=decode, progress=bar)
    if json or csv:
        print_record(asdict(found), csv=csv)
    else:
        _print(found)
    if found.problems:
        raise typer.Exit(1)


def _print(found: SourceCheck) -> None:
    typer.echo(found.source)
    for name, count in found.counts.items():
        expected = found.standard.get(name)
        standard = "" if expected is None else f"  (standard: {expected:,})"
        typer.echo(f"  {name:<24} {count:>9,}{standard}")
    for problem in found.problems:
        typer.echo(f"• {problem}")
    if not found.problems:
        typer.echo("Nothing is missing.")
