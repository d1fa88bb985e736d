"""Markdown that mkdocs reads otherwise than GitHub, and HTML that readers of screens need otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable

FENCED = re.compile(r"^( *)(```+|~~~+)[^\n]*\n.*?^\1\2[ \t]*$", re.MULTILINE | re.DOTALL)
IN_CODE = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", re.DOTALL)
ELEMENT = r"(?:a|br|code|details|div|em|figure|img|input|label|li|output|p|span|strong|sub|summary|sup|ul)"
NO_TAG = re.compile(rf"<(?!!--|/?{ELEMENT}(?:\s[^<>]*)?/?>|https?:)")
HEADING = re.compile(r"^## ", re.MULTILINE)
SECTION = re.compile(
    r'<label class="md-nav__title" for="(?P<id>\w+)">\s*'
    r'<span class="md-nav__icon md-icon"></span>(?P<name>.*?)</label>',
    re.DOTALL,
)


def outside(pattern: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    """The text with everything changed but what the pattern finds."""
    pieces, end = [], 0
    for found in pattern.finditer(text):
        pieces += [change(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*pieces, change(text[end:])])


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """The text with everything but its fenced blocks changed."""
    return outside(FENCED, text, change)


def escaped(text: str) -> str:
    """The text with every `<` that opens no element as an entity; mkdocs takes `Σ_{i<j} …>` for a tag and drops it.

    >>> escaped("x <y, y> z, `a<b>`, <br>, a <!-- note -->")
    'x &lt;y, y> z, `a<b>`, <br>, a <!-- note -->'
    """
    return outside_fences(
        text, lambda plain: outside(IN_CODE, plain, lambda words: NO_TAG.sub("&lt;", words))
    )


def accessible(html: str) -> str:
    """A built page with names for what has none: the search, sections of the navigation, empty heads of tables.

    >>> accessible('<th></th><th>a</th>')
    '<td></td><th>a</th>'
    """
    named = {found["id"]: " ".join(found["name"].split()) for found in SECTION.finditer(html)}

    def name(found: re.Match[str]) -> str:
        return f'aria-label="{named[found[1]]}"' if found[1] in named else found[0]

    html = re.sub(r'aria-labelledby="(\w+)_label"', name, html)
    html = re.sub(r"<th(?P<style>[^>]*)></th>", r"<td\g<style>></td>", html)
    search = 'data-md-component="search" role="dialog"'
    return html.replace(search, f'{search} aria-label="Search"')
