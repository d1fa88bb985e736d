"""`doubtless list`, `show` and `relabel`: what a gallery holds, item by item."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doubtless.cli.ask import conditions
from doubtless.cli.create import AsJson
from doubtless.cli.place import GalleryPlace
from doubtless.cli.records import AsCsv, print_record, refuse_both
from doubtless.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from doubtless.gallery import Item

Where = Annotated[
    list[str] | None,
    typer.Option(help="key=value an item must have: label=cat, or metadata; repeated keys: any of them."),
]
FILE = Annotated[Path | None, typer.Option("--from", help="File with one id per line.")]


def list_items(
    place: GalleryPlace,
    where: Where = None,
    start: Annotated[int, typer.Option(min=0, help="Number of the first item that is shown.")] = 0,
    limit: Annotated[int, typer.Option(min=1, help="Items that are shown; files hold all.")] = 20,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Write all of them into this CSV file; -: print.")
    ] = None,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", help="Write all of them into this parquet file.")
    ] = None,
    json: AsJson = False,
) -> None:
    """List items with their labels and metadata, page by page, or write all of them into a file.

    Example: doubtless list shop --where label=garlic

    Example: doubtless list shop --start 20 --limit 20 --json

    Example: doubtless list shop --csv shop.csv
    """
    from doubtless.cli.tables import print_json
    from doubtless.gallery import Gallery

    if sum((csv is not None, parquet is not None, json)) > 1:
        raise InputError(
            "Items are shown, printed by --json, or written by --csv or --parquet: give one of them."
        )
    with Gallery.open(place) as gallery:
        condition = conditions(where or [])
        if csv is not None or parquet is not None:
            count = _export(csv, parquet, gallery.walk(condition))
            if str(csv) != "-":
                typer.echo(f"{count:,} items: {csv or parquet}")
            return
        total, items = gallery.count(condition), gallery.items(condition, start=start, count=limit)
    if json:
        rows = [_plain(item) for item in items]
        print_json({"index": str(place), "total": total, "start": start, "items": rows})
        return
    _print_items(items, str(place))
    end = start + len(items)
    more = f"; more with --start {end}" if end < total else ""
    typer.echo(f"{start + 1 if items else 0}–{end} of {total:,} items{more}")


def show(
    place: GalleryPlace,
    id: Annotated[str, typer.Argument(metavar="ID", help="The item.")],
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="Neighbours that are shown.")] = 5,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Show one item: its label, its metadata, its neighbours, and what the gallery would say of it.

    Example: doubtless show shop garlic/0001.jpg
    """
    from doubtless.cli.ask import print_answer
    from doubtless.errors import nearest_few
    from doubtless.gallery import Gallery

    refuse_both(json, csv)
    with Gallery.open(place) as gallery:
        item = gallery.item(id)
        if item is None:
            raise InputError(f"{place} has no item {id!r}{nearest_few(id, gallery.index.ids())}")
        answer = gallery.neighbours(id, k)
    if json or csv:
        print_record({**_plain(item), "among_the_others": answer.to_json()}, csv=csv)
        return
    facts = {"label": item.label, "image": item.path, **item.metadata}
    for name, value in facts.items():
        typer.echo(f"{name:<12} {'' if value is None else value}")
    print_answer(f"{id} among the others", answer)


def relabel(
    place: GalleryPlace,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Items.")] = None,
    label: Annotated[str | None, typer.Option(help="What they show.")] = None,
    unlabelled: Annotated[bool, typer.Option("--no-label", help="Nobody says what they show.")] = False,
    where: Where = None,
    file: FILE = None,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Say of items that they show something else; what was embedded stays. Calibrate again afterwards.

    Example: doubtless relabel shop IMG_0001.jpg IMG_0002.jpg --label garlic

    Example: doubtless relabel shop --where label=garlick --label garlic
    """
    from doubtless.gallery import Gallery

    refuse_both(json, csv)
    if (label is None) != unlabelled:
        raise InputError("Give the label with --label, or take it away with --no-label.")
    condition = conditions(where or [])
    wanted = named_items(ids, file)
    if bool(wanted) == bool(condition):
        raise InputError("Name the items, by their ids, --from FILE or --where key=value.")
    with Gallery.open(place, writable=True) as gallery:
        names = wanted or [item.id for item in gallery.walk(condition)]
        gallery.relabel(names, label)
    if json or csv:
        print_record({"index": str(place), "relabelled": len(names), "label": label}, csv=csv)
        return
    typer.echo(
        f"{len(names):,} items have {'no label' if label is None else f'the label {label!r}'}: {place}"
    )


def named_items(ids: list[str] | None, file: Path | None) -> list[str]:
    """Ids that were named, and those that a file lists, one per line."""
    wanted = [*(ids or [])]
    if file is not None:
        if not file.is_file():
            raise InputError(f"There is no file {file}.")
        try:
            wanted += [line for line in file.read_text().splitlines() if line]
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file} cannot be read as text, an id a line: {error}.") from error
    return wanted


def _plain(item: Item) -> dict[str, Any]:
    return {"id": item.id, "label": item.label, "image": item.path, "metadata": item.metadata}


def _print_items(items: list[Item], title: str) -> None:
    from rich.table import Table

    from doubtless.terminal import Terminal

    keys = list(dict.fromkeys(key for item in items for key in item.metadata))
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in ("id", "label", *keys):
        table.add_column(name, overflow="fold")
    for item in items:
        values = [item.id, item.label, *(item.metadata.get(key) for key in keys)]
        table.add_row(*("" if value is None else str(value) for value in values))
    Terminal().print(table)


def _export(csv: Path | None, parquet: Path | None, items: Iterable[Item]) -> int:
    """Writes items into a file, metadata as columns; their number."""
    from doubtless.cli.tables import csv_text
    from doubtless.files import write_text

    listed = list(items)
    keys = list(dict.fromkeys(key for item in listed for key in item.metadata))
    heading = ["id", "label", "path", *keys]
    rows = [[item.id, item.label, item.path, *(item.metadata.get(key) for key in keys)] for item in listed]
    if parquet is not None:
        _write_parquet(parquet, heading, rows)
    elif str(csv) == "-":
        typer.echo(csv_text(heading, rows), nl=False, color=True)  # as stored: typer would strip ids
    else:
        assert csv is not None
        write_text(csv, csv_text(heading, rows))
    return len(listed)


def _write_parquet(path: Path, heading: list[str], rows: list[list[Any]]) -> None:
    import io

    from doubtless.files import write_bytes
    from doubtless.parquet import arrow_and_parquet

    arrow, parquet = arrow_and_parquet()
    columns = {name: _column([row[place] for row in rows]) for place, name in enumerate(heading)}
    file = io.BytesIO()
    parquet.write_table(arrow.table(columns), file)
    write_bytes(path, file.getvalue())


def _column(values: list[Any]) -> list[Any]:
    """Values of one kind as they are; of several kinds as words, for a column has one type."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1 or kinds == {int, float}:
        return [float(value) if value is not None and kinds == {int, float} else value for value in values]
    return [None if value is None else str(value) for value in values]
