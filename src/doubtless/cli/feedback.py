"""`doubtless feedback`: says that an answer was right, wrong, or what it should have been; shows and exports it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from doubtless.cli.place import GalleryPlace
from doubtless.cli.records import AsCsv, records_csv, refuse_both
from doubtless.errors import InputError

if TYPE_CHECKING:
    from doubtless.gallery import Feedback

CSV_COLUMNS = ("number", "time", "verdict", "label", "truth", "who")


def feedback(
    gallery: GalleryPlace,
    images: Annotated[
        list[Path] | None, typer.Argument(help="Pictures that were asked; what they are told now is judged.")
    ] = None,
    answer: Annotated[
        list[str] | None, typer.Option(help="Instead: the id of an answer that was kept.")
    ] = None,
    right: Annotated[bool, typer.Option("--right", help="What was answered is right.")] = False,
    wrong: Annotated[bool, typer.Option("--wrong", help="It is wrong.")] = False,
    label: Annotated[str | None, typer.Option(help="What the picture shows.")] = None,
    at_random: Annotated[
        bool,
        typer.Option(
            "--at-random",
            help="These were chosen whatever was answered, by chance or because all are judged: only then it "
            "counts that they are right.",
        ),
    ] = False,
    who: Annotated[str | None, typer.Option(help="Whoever says so.")] = None,
    export: Annotated[
        Path | None, typer.Option(help="Write all that was said to FILE.csv or FILE.jsonl.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Run whose model embeds, if it was moved.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the entries as JSON.")] = False,
    csv: AsCsv = False,
) -> None:
    """Keep what someone says of answers beside the gallery; an entry that was acknowledged is on the disk.

    It may be called while the gallery is served. Without a picture or an answer, what was said is shown.

    Example: doubtless feedback shop photo.jpg --label Ginger

    Example: doubtless feedback shop --answer 5b0f2c7d9e1a3c44 --wrong

    Example: doubtless feedback shop --export said.csv
    """
    from doubtless.cli.tables import print_json
    from doubtless.gallery import Gallery

    refuse_both(json, csv)
    said = [word for word, given in (("right", right), ("wrong", wrong)) if given]
    with Gallery.open(gallery, model=model) as opened:
        if export is not None:
            count = opened.judgements.export(export)
            typer.echo(f"{count:,} entries written to {export}.")
            return
        if not images and not answer:
            if said or label is not None:
                raise InputError("Name what is judged: pictures that were asked, or --answer ID.")
            entries = opened.judgements.entries()
        else:
            if len(said) > 1:
                raise InputError("An answer is --right or --wrong, and not both.")
            told = [*(opened.ask(images) if images else []), *(answer or [])]
            entries = [
                opened.feedback(one, *said, label=label, who=who, at_random=at_random)  # type: ignore[arg-type]
                for one in told
            ]
    if json:
        print_json([entry.to_json() for entry in entries])
        return
    if csv:
        typer.echo(records_csv([entry.to_json() for entry in entries], CSV_COLUMNS), nl=False)
        return
    for entry in entries:
        typer.echo(told_of(entry))


def told_of(entry: Feedback) -> str:
    """One entry in a line."""
    from doubtless.gallery.feedback.store import moment

    shown = entry.shown
    answered = shown.label if shown.decision == "answer" else shown.decision
    shows = "" if entry.truth is None else f", it shows {entry.truth}"
    judged = entry.verdict or "judged"
    return f"{entry.number}  {moment(entry.time)}  answer {shown.id} ({answered}): {judged}{shows}"
