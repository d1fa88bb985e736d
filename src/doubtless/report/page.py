"""The HTML page around the sections: one file, its style inside, nothing loaded from anywhere.

Also the small pieces that pages are made of: escaped text, numbers, tables and figures. Every string from
outside passes `text`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePath
from typing import Any

MISSING = "–"
MOST_LINES = 60  # of a configuration: a longer one, as of a suite, is folded


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


def figure(title: str, body: str, *, note: str = "", kind: str = "chart", of: str = "") -> str:
    """A figure with its caption above: a title, a sentence that says how to read it, then the drawing (HTML).

    `of` says whose it is, for a page's script.
    """
    sentence = f"<span>{text(note)}</span>" if note else ""
    whose = f' data-of="{text(of)}"' if of else ""
    return f'<figure class="{kind}"{whose}><figcaption><b>{text(title)}</b>{sentence}</figcaption>{body}</figure>'


def definitions(pairs: Sequence[tuple[str, str]]) -> str:
    """Names and values (HTML) side by side."""
    items = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in pairs)
    return f'<dl class="facts">{items}</dl>' if items else ""


# The browser itself refuses whatever might slip through: pictures from data: addresses, inline style, and of
# scripts only the page's own, known by its hash.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Section:
    """A part of the page. One without a body is left out."""

    identifier: str
    title: str
    body: str


def read_sections(document: str) -> list[Section]:
    """The sections of a page that `page` wrote, to draw some of them anew and keep the rest.

    >>> kept = Section("examples", "Most & least", "<p>…</p>")
    >>> read_sections(page(title="t", lead="", sections=[kept], data="")) == [kept]
    True
    """
    found = re.findall(r'<section id="([^"]*)"><h2>(.*?)</h2>(.*?)</section>', document, re.DOTALL)
    return [Section(identifier, html.unescape(title), body) for identifier, title, body in found]


def page(*, title: str, lead: str, sections: Sequence[Section], data: str, own: str = "") -> str:
    """The whole document. `lead` is plain text, `data` the JSON block.

    A page with a style and a script of its own names their files by their stem, `own`.
    """
    shown = [section for section in sections if section.body]
    links = "".join(f'<a href="#{section.identifier}">{text(section.title)}</a>' for section in shown)
    body = "".join(
        f'<section id="{section.identifier}"><h2>{text(section.title)}</h2>{section.body}</section>'
        for section in shown
    )
    style = "".join(_file(f"{name}.css") for name in ("tokens", "style", own) if name)
    script = _file(f"{own}.js") if own else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}{_allowed(script)}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="generator" content="doubtless">\n'
        f'<link rel="icon" href="data:,">\n<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n'
        "<body>\n"
        f'<header><p class="brand">doubtless</p><h1>{text(title)}</h1><p class="lead">{text(lead)}</p></header>\n'
        f'<nav aria-label="Sections">{links}</nav>\n<main>\n{body}\n</main>\n{data}\n'
        f"{f'<script>{script}</script>' if script else ''}</body>\n</html>\n"
    )


def _allowed(script: str) -> str:
    """What the policy says of this script: that it runs, and no other."""
    if not script:
        return ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"; script-src 'sha256-{digest}'"


def _file(name: str) -> str:
    """A file of this room, as text."""
    return resources.files("doubtless.report").joinpath(name).read_text(encoding="utf-8")


def gallery(figures: Sequence[str]) -> str:
    """Figures side by side where there is room, one below the other where there is not."""
    return f'<div class="figures">{"".join(figures)}</div>' if figures else ""


def provenance(*, config: Mapping[str, Any], versions: Mapping[str, str], command: str | None) -> str:
    """How to make this page again: the command, the configuration as YAML, the versions."""
    import yaml

    parts = []
    if command:
        parts.append(f'<h3>Command</h3><pre class="command"><code>{text(command)}</code></pre>')
    if config:
        dumped = yaml.safe_dump(_plain(config), sort_keys=False, allow_unicode=True, width=90)
        lines = f'<pre tabindex="0"><code>{text(dumped.rstrip())}</code></pre>'
        parts.append(
            f"<details><summary>Configuration</summary>{lines}</details>"
            if dumped.count("\n") > MOST_LINES
            else f"<h3>Configuration</h3>{lines}"
        )
    if versions:
        parts.append(
            "<h3>Versions</h3>"
            + definitions([(text(name), text(version)) for name, version in versions.items()])
        )
    return "".join(parts)


def _plain(value: Any) -> Any:
    """What YAML can say: mappings, lists and scalars; everything else becomes its text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(item) for item in value]
    if value is None or type(value) in (bool, int, float, str):
        return value
    return str(value) if not isinstance(value, PurePath) else value.as_posix()
