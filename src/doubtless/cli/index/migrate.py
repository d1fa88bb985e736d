"""`doubtless index migrate`: an index copied to another place, and compared with what it was copied from."""

from __future__ import annotations

from typing import Annotated

import typer


def migrate(
    source: Annotated[
        str, typer.Argument(metavar="A", help="Index to copy: a folder, or an address as of Milvus.")
    ],
    target: Annotated[str, typer.Argument(metavar="B", help="Where to: a folder, or an address as of Milvus.")],
    restart: Annotated[
        bool, typer.Option("--restart", help="Throw away what a migration to B that was stopped has copied.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Copy an index with its calibration, from one backend to another; stopped, the same command goes on.

    Nothing is ever overwritten; B is there when count and checksum of both are equal. A stays as it is.

    Example: doubtless index migrate gallery milvus:http://localhost:19530/gallery

    Example: doubtless index migrate milvus:gallery.db gallery
    """
    from dataclasses import asdict

    from doubtless.cli.tables import print_json
    from doubtless.index import migration as migrating
    from doubtless.progress import spinner

    with spinner(f"copying {source}"):
        done = migrating.migrate(source, target, restart=restart)
    if json:
        print_json(asdict(done))
        return
    before = done.items - done.copied
    resumed = f" ({before:,} were there already)" if before else ""
    attachments = f", with {', '.join(done.attachments)}" if done.attachments else ""
    typer.echo(f"{done.items:,} items{resumed}{attachments}: {target}")
    typer.echo(f"Count and checksum {done.checksum[:16]}… are equal on both sides")
