"""The HTML page around the sections: one file, its style inside, nothing loaded from anywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePath
from typing import Any

from doubtless.report.markup import definitions, text

# The browser itself refuses whatever might slip through: pictures from data: addresses, inline style, nothing else.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Section:
    """A part of the page. One without a body is left out."""

    identifier: str
    title: str
    body: str


def page(*, title: str, lead: str, sections: Sequence[Section], data: str) -> str:
    """The whole document. `lead` is plain text, `data` the JSON block."""
    shown = [section for section in sections if section.body]
    links = "".join(f'<a href="#{section.identifier}">{text(section.title)}</a>' for section in shown)
    body = "".join(
        f'<section id="{section.identifier}"><h2>{text(section.title)}</h2>{section.body}</section>'
        for section in shown
    )
    style = resources.files("doubtless.report").joinpath("style.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="generator" content="doubtless">\n'
        f'<link rel="icon" href="data:,">\n<title>{text(title)}</title>\n<style>\n{style}</style>\n</head>\n'
        "<body>\n"
        f'<header><p class="brand">doubtless</p><h1>{text(title)}</h1><p class="lead">{text(lead)}</p></header>\n'
        f'<nav aria-label="Sections">{links}</nav>\n<main>\n{body}\n</main>\n{data}\n</body>\n</html>\n'
    )


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
        parts.append(f'<h3>Configuration</h3><pre tabindex="0"><code>{text(dumped.rstrip())}</code></pre>')
    if versions:
        parts.append(
            "<h3>Versions</h3>" + definitions([(text(name), text(found)) for name, found in versions.items()])
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
