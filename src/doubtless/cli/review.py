"""`doubtless review`: what is worth a person's minute, and what was said to it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from doubtless.cli.place import GalleryPlace
from doubtless.cli.records import AsCsv, records_csv, refuse_both
from doubtless.errors import InputError

if TYPE_CHECKING:
    from doubtless.gallery import Gallery
    from doubtless.gallery.feedback.review import Review

CSV_COLUMNS = ("id", "kind", "tells", "question", "label", "options", "other")


def review(
    gallery: GalleryPlace,
    most: Annotated[int, typer.Option(min=1, help="Questions that are listed.")] = 20,
    kind: Annotated[
        list[str] | None, typer.Option(help="Only these: answer, pair, label, duplicate; may be repeated.")
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(
            help="What was said to a question, ID=LABEL: answer:ID=right, answer:ID=wrong, answer:ID=LABEL, "
            "pair:ID=same, pair:ID=different, pair:ID=cannot-tell or item:ID=LABEL; may be repeated."
        ),
    ] = None,
    pictures: Annotated[
        Path | None, typer.Option(help="Write the pictures that were kept with answers into this folder.")
    ] = None,
    who: Annotated[str | None, typer.Option(help="Whoever says so.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the questions as JSON.")] = False,
    csv: AsCsv = False,
) -> None:
    """List what is worth a person's minute, the most telling first, or take what was said to it.

    Answers that were drawn to be judged, pairs of items of a gallery that was calibrated without labels, labels of
    items that are probably wrong, pictures that are there twice. What is said of an answer or a pair becomes
    feedback, what is said of an item its label.

    Example: doubtless review shop --most 10

    Example: doubtless review shop --answer item:garlic-7=Ginger --answer answer:5b0f2c7d9e1a3c44=right
    """
    from doubtless.cli.tables import print_json
    from doubtless.gallery import Gallery

    refuse_both(json, csv)
    replies = [_parted(one) for one in answer or []]
    writes = any(id.startswith("item:") for id, _ in replies)
    with Gallery.open(gallery, writable=writes) as opened:
        if replies:
            for id, label in replies:
                typer.echo(opened.accept(id, label, who=who))
            return
        found = opened.review(most, kinds=kind)
        if pictures is not None:
            _write_pictures(found, opened, pictures)
    if json:
        print_json(found.to_json())
    elif csv:
        typer.echo(records_csv(found.to_json()["questions"], CSV_COLUMNS), nl=False)
    else:
        print_review(found)


def _write_pictures(found: Review, gallery: Gallery, folder: Path) -> None:
    """What was asked, a file per answer, called by its id."""
    from doubtless.data.images import open_image
    from doubtless.files import write_bytes

    for one in found:
        kind, _, id = one.id.partition(":")
        data = gallery.judgements.picture(id) if kind == "answer" else None
        if data is not None:
            with open_image(data) as image:
                suffix = (image.format or "image").lower()
            write_bytes(folder / f"{id}.{suffix}", data)


def _parted(reply: str) -> tuple[str, str]:
    id, equals, label = reply.rpartition("=")
    if not equals or not label:
        raise InputError(f"--answer takes ID=LABEL, such as item:garlic-7=Ginger, got {reply!r}.")
    return id, label


def print_review(found: Review) -> None:
    """The questions as a table, then how many there are."""
    from rich.table import Table

    from doubtless.terminal import Terminal

    console, table = Terminal(), Table(title_justify="left")
    for column in ("id", "kind", "tells", "question"):
        table.add_column(column, justify="right" if column == "tells" else "left", overflow="fold")
    for one in found:
        table.add_row(one.id, one.kind, f"{one.tells:.2f}", one.question)
    if len(found):
        console.print(table)
    counts = ", ".join(f"{count:,} of kind {kind}" for kind, count in found.found.items())
    console.print(f"Worth looking at: {counts}.", highlight=False)
    for note in found.notes:
        console.print(f"• {note}", highlight=False)
