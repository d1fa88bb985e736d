"""`doubtless methods` and `doubtless sources`: what there is to choose from."""

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
    _show(("method", "version", "what it is"), rows, json)


def sources(json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """List the data sources that a configuration can name.

    Example: doubtless sources
    """
    from doubtless.data.sources import KINDS

    _show(("source", "what it is"), [(kind.form, kind.what) for kind in KINDS], json)


def _show(names: tuple[str, ...], rows: Sequence[tuple[str, ...]], json: bool) -> None:
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
