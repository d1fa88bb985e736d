"""Results as records for the next program: `--json` as they are, `--csv` with nested ones as flat columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from doubtless.cli.tables import csv_text, print_json
from doubtless.errors import InputError

AsCsv = Annotated[bool, typer.Option("--csv", help="The same as CSV, one line per record.")]


def refuse_both(as_json: bool, csv: bool) -> None:
    """Refuses --json beside --csv; to be asked before anything is done."""
    if as_json and csv:
        raise InputError("Give --json or --csv, and not both.")


def print_record(record: Mapping[str, Any], *, csv: bool) -> None:
    """Prints one record as CSV, a heading and a line, or else as JSON."""
    if csv:
        typer.echo(records_csv([record]), nl=False)
    else:
        print_json(record)


def records_csv(records: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> str:
    """A heading and a line per record; `columns` come first, and are there without any record too.

    >>> records_csv([{"id": "a", "shown": {"label": "leek"}}, {"id": "b", "who": ["Ada", "Eve"]}])
    'id,shown.label,who\\na,leek,\\nb,,Ada; Eve\\n'
    >>> records_csv([], ["id", "kind"])
    'id,kind\\n'
    """
    lines = [flat(record) for record in records]
    heading = list(dict.fromkeys([*columns, *(name for line in lines for name in line)]))
    return csv_text(heading, [[line.get(name) for name in heading] for line in lines])


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """Nested records as columns, lists of plain values as one text, other lists as JSON.

    >>> flat({"items": 3, "abstention": {"bound": 0.05, "at": {"k": 1}}, "kept": ["a", "b"], "hits": [{"id": "c"}]})
    {'items': 3, 'abstention.bound': 0.05, 'abstention.at.k': 1, 'kept': 'a; b', 'hits': '[{"id": "c"}]'}
    """
    columns: dict[str, Any] = {}
    for name, value in record.items():
        if isinstance(value, Mapping):
            columns |= {f"{name}.{inner}": found for inner, found in flat(value).items()}
        elif isinstance(value, list | tuple):
            plain = not any(isinstance(one, list | tuple | Mapping) for one in value)
            columns[name] = "; ".join(map(str, value)) if plain else json.dumps(value, ensure_ascii=False)
        else:
            columns[name] = value
    return columns
