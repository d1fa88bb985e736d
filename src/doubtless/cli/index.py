"""`doubtless index`: verbs of a gallery by the names they had once. The same functions, hidden from the help."""

from __future__ import annotations

import typer

from doubtless.cli import create, upkeep

index = typer.Typer(
    help="Make, fill and look after a gallery; the same verbs stand alone: doubtless create, add, remove, ...",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)
index.command("create")(create.create)
index.command("add")(create.add)
index.command("remove")(upkeep.remove)
index.command("stats")(upkeep.stats)
index.command("compact")(upkeep.compact)
index.command("migrate")(upkeep.migrate)
