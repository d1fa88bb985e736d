"""`doubtless status`: what a gallery holds, what it promises, and whether that still holds."""

from __future__ import annotations

from typing import Annotated

import typer

from doubtless.cli.place import GalleryPlace
from doubtless.cli.records import AsCsv, print_record, refuse_both


def status(
    gallery: GalleryPlace,
    json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
    csv: AsCsv = False,
) -> None:
    """Say what a gallery holds and promises and, from what people said of its answers, whether that still holds.

    Example: doubtless status shop
    """
    from doubtless.gallery import Gallery

    refuse_both(json, csv)
    with Gallery.open(gallery) as opened:
        found = opened.status()
    if json or csv:
        print_record(found, csv=csv)
        return
    typer.echo(f"{gallery}: {found['items']:,} items of {found['labels']:,} labels.")
    promise = found["promise"]
    typer.echo("Nothing was calibrated." if promise is None else promise["sentence"])
    typer.echo(found["watch"]["sentence"])
