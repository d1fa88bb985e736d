"""Tables that say who items are: a CSV or parquet file with a heading, one row per item.

The column `label` is its label, `id` (or `path`, `image`, …) says who it is, `path` where its image lies, any other
column is metadata: numbers and truth values where every cell is one.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from doubtless.data.streams.records import plain_metadata
from doubtless.errors import InputError, listed

LABEL_NAMES = ("label", "labels", "class", "cls", "category", "fine_label")
FILE_NAMES = ("path", "image", "file", "filename", "file_name", "image_path", "filepath")
"""Columns that may name an image's file."""
TABLE_SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")


@dataclass(frozen=True)
class LabelTable:
    """One entry per row."""

    path: Path
    ids: list[str]
    labels: list[str | None]
    paths: list[str | None]
    metadata: list[dict[str, Any]]

    @cached_property
    def row_of(self) -> dict[str, int]:
        """Id → row."""
        return {name: row for row, name in enumerate(self.ids)}

    @cached_property
    def row_of_file(self) -> dict[str, int | None]:
        """What a file may be called, its path's last part with or without its ending → row; None for several."""
        rows: dict[str, int | None] = {}
        for row, name in enumerate(self.ids):
            for word in {Path(name).name, Path(name).stem}:
                rows[word] = None if word in rows else row
        return rows

    def find(self, name: str) -> int | None:
        """The row of an image by its id: as it stands there, or else as its file is called.

        >>> table = LabelTable(Path("labels.csv"), ["1.jpg", "2"], ["cat", "dog"], [None, None], [{}, {}])
        >>> table.find("1.jpg"), table.find("photos/2.png"), table.find("3.jpg")
        (0, 1, None)
        """
        if (row := self.row_of.get(name)) is not None:
            return row
        found = self.row_of_file.get(Path(name).name)
        return found if found is not None else self.row_of_file.get(Path(name).stem)


def read_labels(
    path: str | Path,
    *,
    named_by: Sequence[str] = ("id", *FILE_NAMES),
    label: str | None = None,
    labelled: bool = True,
) -> LabelTable:
    """A table with a heading: id, label, and where there are any path and metadata.

    named_by   columns that may say who a row is: the first of them that is there becomes its id
    label      the column of labels, where it is not called by one of the usual names
    labelled   whether it must have one
    """
    path = Path(path)
    columns, typed = _columns(path)
    name, labels_in = _chosen_columns(path, list(columns), named_by, label, labelled=labelled)
    count = len(columns[name])
    ids = [_word(value) for value in columns.pop(name)]
    labels, paths = (columns.pop(column, [None] * count) for column in (labels_in, "path"))
    check_ids(path, ids)
    about = columns if typed else {key: _typed(cells) for key, cells in columns.items()}
    metadata = [plain_metadata({key: cells[row] for key, cells in about.items()}) for row in range(count)]
    return LabelTable(
        path, ids, [_word(cell) or None for cell in labels], [_word(cell) or None for cell in paths], metadata
    )


def check_ids(path: Path | str, ids: Sequence[str]) -> None:
    """Refuses ids that are empty, or that come twice."""
    if not all(ids):
        raise InputError(f"{path} has an empty id in row {list(ids).index('') + 1}.")
    if len(set(ids)) != len(ids):
        seen: set[str] = set()
        twice = list(dict.fromkeys(name for name in ids if name in seen or seen.add(name)))  # type: ignore[func-returns-value]
        raise InputError(f"{path} has the ids {listed(twice)} more than once.")


def _word(value: Any) -> str:
    return "" if value is None else str(value)


def _columns(path: Path) -> tuple[dict[str, list[Any]], bool]:
    """Column by column, and whether cells are values already and not words."""
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    if path.suffix.lower() in (".parquet", ".pq"):
        from doubtless.data.streams.parquet import read_plain_columns

        return read_plain_columns(path), True
    try:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            separator = "\t" if path.suffix.lower() == ".tsv" else ","
            heading, *rows = [row for row in csv.reader(lines, delimiter=separator) if row] or [[]]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is no readable CSV file: {error}.") from error
    heading = [name.strip() for name in heading]
    if len(set(heading)) != len(heading):
        raise InputError(f"{path} names a column twice: {', '.join(heading)}.")
    for number, row in enumerate(rows, start=2):
        if len(row) != len(heading):
            raise InputError(f"Line {number} of {path} has {len(row)} cells, its heading {len(heading)}.")
    return {name: [row[place] for row in rows] for place, name in enumerate(heading)}, False


def _chosen_columns(
    path: Path, heading: Sequence[str], named_by: Sequence[str], label: str | None, *, labelled: bool
) -> tuple[str, str]:
    """The columns that say who a row is, and what it shows, of a heading that has all it needs."""
    found = [name for name in named_by if name in heading]
    labels = [name for name in ([label] if label is not None else LABEL_NAMES) if name in heading]
    wanted = [("label" if label is None else label, labels)] if labelled or label is not None else []
    for name, there in [(named_by[0], found), *wanted]:
        if not there:
            raise InputError(
                f"{path} has no column {name!r}; its first line must name the columns "
                f"{' or '.join(named_by[:3])}, label and any others, got {', '.join(heading[:6]) or 'nothing'}."
            )
    return found[0], labels[0] if labels else "label"


def _typed(cells: Sequence[str]) -> list[Any]:
    """A column as whole numbers, floats or truth values where every cell is one, else as text; None where empty.

    >>> _typed(["1", "", "-7"]), _typed(["1", "2.5"]), _typed(["007", "8"]), _typed(["true", "false"])
    ([1, None, -7], [1.0, 2.5], ['007', '8'], [True, False])
    """
    given = [cell for cell in cells if cell]
    if all(re.fullmatch(r"0|-?[1-9]\d{0,17}", cell) for cell in given):
        return [int(cell) if cell else None for cell in cells]
    if all(re.fullmatch(r"-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", cell) for cell in given) and all(
        math.isfinite(float(cell)) for cell in given
    ):
        return [float(cell) if cell else None for cell in cells]
    if all(cell in ("true", "false") for cell in given):
        return [cell == "true" if cell else None for cell in cells]
    return [cell or None for cell in cells]
