"""`doubtless check`, `backup`, `restore` and `salvage`: is a gallery whole, and how does it stay so?"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from doubtless.cli.create import AsJson
from doubtless.cli.place import GalleryPlace
from doubtless.cli.records import AsCsv, print_record, refuse_both

NewFolder = Annotated[str, typer.Argument(metavar="NEW", help="Folder to make; there must be nothing yet.")]
DAMAGED = 1
"""Exit code of a check that has found something."""


def check(
    place: GalleryPlace,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Look at every item, number, key and picture.")
    ] = False,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Look whether a gallery is what was written into it; nothing is changed. Exit code 1 where it is not.

    Example: doubtless check gallery

    Example: doubtless check gallery --thorough --json
    """
    from doubtless.gallery import safekeeping

    refuse_both(json, csv)
    found = safekeeping.check(place, thorough=thorough)
    if json or csv:
        print_record({**asdict(found), "whole": found.is_whole}, csv=csv)
    else:
        for sentence in found.damage:
            typer.echo(f"damage: {sentence}")
        for sentence in found.cache:
            typer.echo(f"cache: {sentence}")
        looked = "every item was looked at" if thorough else "a quick look; --thorough looks at every item"
        if found.is_whole:
            typer.echo(f"{found.items:,} items, whole ({looked}): {place}")
        elif found.damage:
            typer.echo(
                f"Restore {place} from a copy, or save what can be read: doubtless salvage {place} NEW"
            )
    if found.damage:
        raise typer.Exit(DAMAGED)


def backup(place: GalleryPlace, to: NewFolder, json: AsJson = False, csv: AsCsv = False) -> None:
    """Copy a gallery as it is at one moment, also while a server writes to it; the copy is checked.

    What was added last lies in a log beside the database until it is closed: cp may miss it, this does not.

    Example: doubtless backup gallery backups/gallery-monday
    """
    from doubtless.gallery import safekeeping

    refuse_both(json, csv)
    items = safekeeping.backup(place, to)
    if json or csv:
        print_record({"index": place, "copy": to, "items": items}, csv=csv)
        return
    typer.echo(f"{items:,} items copied and checked: {to}")


def restore(
    copy: Annotated[str, typer.Argument(metavar="COPY", help="What `doubtless backup` has made.")],
    to: NewFolder,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Put a copy in the place of a gallery that is gone; every item of it is looked at.

    Example: doubtless restore backups/gallery-monday gallery
    """
    from doubtless.gallery import safekeeping

    refuse_both(json, csv)
    items = safekeeping.restore(copy, to)
    if json or csv:
        print_record({"copy": copy, "index": to, "items": items}, csv=csv)
        return
    typer.echo(f"{items:,} items restored and checked: {to}")


def salvage(
    place: Annotated[str, typer.Argument(metavar="GALLERY", help="Folder of a damaged gallery.")],
    to: NewFolder,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Save what can still be read of a damaged gallery into a new one; the old one stays as it is.

    Example: doubtless salvage gallery gallery-saved
    """
    from doubtless.gallery import safekeeping

    refuse_both(json, csv)
    saved = safekeeping.salvage(place, to)
    if json or csv:
        print_record({"index": place, "saved": to, **saved.record()}, csv=csv)
        return
    kept = f", with {', '.join(saved.attachments)}" if saved.attachments else ""
    typer.echo(f"{saved.items:,} items saved, {saved.lost:,} lost{kept}: {to}")
    if saved.without_label:
        typer.echo(f"{saved.without_label:,} of them have lost their label")
