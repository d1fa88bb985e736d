"""`doubtless methods`: what there is to choose from, and how such lists are shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer


def methods(json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """List the methods that a configuration can name.

    Example: doubtless methods
    """
    from doubtless.methods import all_methods

    rows = [(name, f"v{kind.version}", kind.summary) for name, kind in all_methods().items()]
    show(("method", "version", "what it is"), rows, json)


def show(names: tuple[str, ...], rows: Sequence[tuple[str, ...]], json: bool) -> None:
    """Rows as a table for the eye, or as JSON."""
    from rich.console import Console
    from rich.table import Table

    from doubtless.cli.tables import print_json

    if json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    table = Table(*names)
    for row in rows:
        table.add_row(*row)
    Console().print(table)
