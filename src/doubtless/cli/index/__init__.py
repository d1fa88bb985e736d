"""`doubtless index`: make an index from images, vectors or a FAISS index; change it; see what is in it."""

from __future__ import annotations

import typer

from doubtless.cli.index import create, upkeep

index = typer.Typer(
    help="Make, fill and look after an index.",
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
