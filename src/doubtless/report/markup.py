"""Small pieces of HTML: escaped text, numbers, tables and figures. Every string from outside passes `text`."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MISSING = "–"


def text(value: object) -> str:
    """Escapes a value for HTML text and for quoted attributes; broken surrogates (odd file names) become ``?``.

    >>> text('<b title="x">')
    '&lt;b title=&quot;x&quot;&gt;'
    """
    return html.escape(str(value).encode("utf-8", "replace").decode(), quote=True)


def number(value: float | None, *, digits: int = 3) -> str:
    """A measured number with fixed digits; a dash where there is none.

    >>> number(0.81249), number(None), number(float("nan"))
    ('0.812', '–', '–')
    """
    if value is None or not math.isfinite(value):
        return MISSING
    rounded = f"{value:.{digits}f}"
    return rounded.replace("-", "−") if float(rounded) else f"{0:.{digits}f}"


def interval(low: float | None, high: float | None) -> str:
    """``0.801 – 0.823``, or nothing where a bound is missing."""
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"{number(low)} – {number(high)}"


def json_block(value: Any, *, identifier: str) -> str:
    """A JSON data block that no content can close early: ``<``, ``>`` and ``&`` are written as escapes."""
    data = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        data = data.replace(character, f"\\u{ord(character):04x}")
    return f'<script type="application/json" id="{text(identifier)}">{data}</script>'


@dataclass(frozen=True)
class Column:
    """A table column: its heading (HTML) and how its cells are set."""

    heading: str
    numeric: bool = False
    kind: str = ""  # further CSS classes


def table(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, label: str) -> str:
    """A table inside a box that scrolls by itself. Cells are HTML; the first of each row is its header."""
    head = "".join(f'<th scope="col"{_classes(column)}>{column.heading}</th>' for column in columns)
    body = "".join(f"<tr>{_cells(columns, row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{text(label)}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _cells(columns: Sequence[Column], row: Sequence[str]) -> str:
    first, *others = zip(columns, row, strict=True)
    header = f'<th scope="row"{_classes(first[0])}>{first[1]}</th>'
    return header + "".join(f"<td{_classes(column)}>{cell}</td>" for column, cell in others)


def _classes(column: Column) -> str:
    names = " ".join(name for name in ("number" if column.numeric else "", column.kind) if name)
    return f' class="{names}"' if names else ""


def figure(title: str, body: str, *, note: str = "", kind: str = "chart") -> str:
    """A figure with its caption above: a title, a sentence that says how to read it, then the drawing (HTML)."""
    sentence = f"<span>{text(note)}</span>" if note else ""
    return f'<figure class="{kind}"><figcaption><b>{text(title)}</b>{sentence}</figcaption>{body}</figure>'


def definitions(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values (HTML) side by side."""
    items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in pairs)
    return f'<dl class="facts">{items}</dl>' if items else ""
