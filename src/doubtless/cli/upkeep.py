"""`doubtless remove`, `stats`, `compact` and `migrate`: looking after a gallery."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from doubtless.cli.ask import conditions
from doubtless.cli.create import AsJson
from doubtless.cli.items import FILE, Where, named_items
from doubtless.cli.place import ADDRESSES, GalleryPlace
from doubtless.cli.records import AsCsv, print_record, refuse_both
from doubtless.errors import InputError

SHOWN = 10
"""Labels whose items are counted in words; --json counts all."""


def remove(
    place: GalleryPlace,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Items to take out.")] = None,
    file: FILE = None,
    where: Where = None,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Take items out by their ids, all of them or, where one is not there, none; or all that are such.

    Example: doubtless remove gallery shoes/0001.jpg shoes/0002.jpg

    Example: doubtless remove gallery --from sold-out.txt

    Example: doubtless remove gallery --where label=Sneaker --where season=2019
    """
    from doubtless.gallery import Gallery

    refuse_both(json, csv)
    wanted, condition = named_items(ids, file), conditions(where or [])
    if bool(wanted) == bool(condition):
        raise InputError("Name the items to remove: by their ids, by --from FILE, or by --where key=value.")
    with Gallery.open(place, writable=True) as gallery:
        removed = gallery.remove(where=condition) if condition else gallery.remove(wanted)
        left = len(gallery)
    if json or csv:
        print_record({"index": str(place), "removed": len(removed), "items": left}, csv=csv)
        return
    typer.echo(f"{len(removed):,} items removed, {left:,} are left: {place}")


def stats(place: GalleryPlace, json: AsJson = False, csv: AsCsv = False) -> None:
    """What an index holds, how it is searched, and what its calibration is worth.

    Example: doubtless stats gallery --json
    """
    from doubtless.cli.calibrate import print_calibration
    from doubtless.gallery import Gallery

    refuse_both(json, csv)
    with Gallery.open(place) as gallery:
        facts, calibration = gallery.statistics(), gallery.status()["calibration"]
        counts = gallery.label_counts()
    if json or csv:
        print_record({**facts, "label_counts": counts, "calibration": calibration}, csv=csv)
        return
    _print_facts(facts, str(place))
    if counts:
        shown = [f"{label} {count:,}" for label, count in list(counts.items())[:SHOWN]]
        more = f" and {len(counts) - SHOWN:,} more" if len(counts) > SHOWN else ""
        typer.echo(f"items per label: {', '.join(shown)}{more}")
    if calibration:
        print_calibration(calibration, str(place))


def compact(place: GalleryPlace, json: AsJson = False, csv: AsCsv = False) -> None:
    """Give the space of removed and updated items back.

    Example: doubtless compact gallery
    """
    from doubtless.gallery import Gallery

    refuse_both(json, csv)
    with Gallery.open(place, writable=True) as gallery:
        before, after = gallery.compact()
        items = len(gallery)
    if json or csv:
        print_record({"index": place, "items": items, "bytes_before": before, "bytes": after}, csv=csv)
        return
    sizes = "" if after is None else f", {before:,} bytes before, {after:,} now"
    typer.echo(f"{items:,} items{sizes}: {place}")


def _print_facts(facts: dict[str, Any], title: str) -> None:
    from rich.table import Table

    from doubtless.terminal import Terminal

    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    for name, value in facts.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        table.add_row(name, f"{shown:,}" if isinstance(shown, int) else str("" if shown is None else shown))
    Terminal().print(table)


def migrate(
    source: Annotated[str, typer.Argument(metavar="A", help=f"Index to copy: a folder, {ADDRESSES}.")],
    target: Annotated[str, typer.Argument(metavar="B", help=f"Where to: a folder, {ADDRESSES}.")],
    restart: Annotated[
        bool, typer.Option("--restart", help="Throw away what a migration to B that was stopped has copied.")
    ] = False,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Copy an index with its calibration, from one backend to another; stopped, the same command goes on.

    Nothing is ever overwritten; B is there when count and checksum of both are equal. A stays as it is.

    Example: doubtless migrate gallery milvus:http://localhost:19530/gallery

    Example: doubtless migrate milvus:gallery.db gallery
    """
    from dataclasses import asdict

    from doubtless.gallery import content
    from doubtless.progress import spinner

    refuse_both(json, csv)
    with spinner(f"copying {source}"):
        done = content.migrate(source, target, restart=restart)
    if json or csv:
        print_record(asdict(done), csv=csv)
        return
    before = done.items - done.copied
    resumed = f" ({before:,} were there already)" if before else ""
    attachments = f", with {', '.join(done.attachments)}" if done.attachments else ""
    typer.echo(f"{done.items:,} items{resumed}{attachments}: {target}")
    typer.echo(f"Count and checksum {done.checksum[:16]}… are equal on both sides")
