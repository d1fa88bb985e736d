"""What stands in the page's head: the report's colours and charts, the page's own rules, a script."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

PACKAGE = "doubtless.server.page"


def page_head() -> str:
    """Styles and script, inline: nothing is requested for them."""
    return f"<style>{_palette()}{_charts()}{read('page.css')}</style><script>{read('map.js')}</script>"


@cache
def read(name: str) -> str:
    return files(PACKAGE).joinpath(name).read_text(encoding="utf-8")


def _report() -> str:
    return files("doubtless.report").joinpath("style.css").read_text(encoding="utf-8")


def _palette() -> str:
    """The report goes by the system's preference, Gradio by the class ``dark``, which follows it."""
    light, dark = re.findall(r":root\s*{([^}]*)}", _report())[:2]
    return f":root{{{light}color-scheme:light}}.dark,:root:has(.dark){{{dark}color-scheme:dark}}"


def _charts() -> str:
    """The report's rules for figures, below ``.charts`` only; rules for whole pages match nothing there.

    Classes that colour series are wanted on the map, too.
    """
    plain = re.sub(r"(?s)@media print.*", "", _report())
    colours = "".join(re.findall(r"\.s\d \{[^}]*\}", plain))
    return f"{colours}.charts{{{plain}}}"
