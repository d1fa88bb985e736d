"""Docstrings as Markdown: examples become blocks of code, aligned lists of parameters tables."""

from __future__ import annotations

import re
from typing import Any

import griffe

from scripts.pages.text import escaped

ENTRY = re.compile(r"^([\w@*/, -]*?\w) {2,}(\S.*)$")


class Fenced(griffe.Extension):
    """Rewrites every docstring when it has been collected."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(docstring: str) -> str:
    """A docstring of ours as Markdown.

    >>> print(as_markdown('One.\\n\\n>>> 1 + 1\\n2'))
    One.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    paragraphs = re.split(r"\n[ \t]*\n", docstring.strip("\n"))
    return escaped("\n\n".join(_example(text) or _table(text) or text for text in paragraphs))


def _example(paragraph: str) -> str | None:
    """The paragraph from its first `>>>` on as a block of code."""
    before, prompt, after = paragraph.partition(">>> ")
    if not prompt or (before and not before.endswith("\n")):
        return None
    return f"{before}\n```pycon\n{prompt}{after}\n```"


def _table(paragraph: str) -> str | None:
    """Lines of a name and what it means, side by side, continued by deeper ones."""
    rows: list[list[str]] = []
    for line in paragraph.splitlines():
        entry = ENTRY.match(line)
        if entry is not None:
            rows.append([entry[1], entry[2]])
        elif rows and line.startswith("  "):
            rows[-1][1] += f" {line.strip()}"
        else:
            return None
    if len(rows) < 2:
        return None
    cells = "\n".join(f"| `{name}` | {meaning.replace('|', chr(92) + '|')} |" for name, meaning in rows)
    return f"| | |\n|---|---|\n{cells}"
