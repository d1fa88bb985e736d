"""Public names: what the package and its rooms export, and where the reference has them."""

from __future__ import annotations

import importlib
import pkgutil
import re
from functools import cache

from scripts.pages.places import ROOT

PAGES = ROOT / "docs" / "reference" / "python"
MARKER = re.compile(r"^<!-- names: ([\w. ]+) -->$", re.MULTILINE)


@cache
def exported() -> dict[str, tuple[str, ...]]:
    """Modules with an `__all__` of names that are theirs to give: the package itself and its rooms."""
    import doubtless

    rooms = [
        f"doubtless.{module.name}" for module in pkgutil.iter_modules(doubtless.__path__) if module.ispkg
    ]
    modules = {name: importlib.import_module(name) for name in ["doubtless", *rooms]}
    return {
        name: tuple(given for given in module.__all__ if not given.startswith("__"))
        for name, module in modules.items()
        if hasattr(module, "__all__") and name != "doubtless.cli"
    }


def described() -> dict[str, tuple[str, ...]]:
    """Module → its names, as the pages of the reference ask for them: `doubtless.metrics`, or a module without
    an `__all__` with the names that are wanted."""
    found: dict[str, tuple[str, ...]] = {}
    for page in sorted(PAGES.glob("*.md")):
        for asked in MARKER.findall(page.read_text()):
            module, *names = asked.split()
            found[module] = found.get(module, ()) + (tuple(names) or exported()[module])
    return found


@cache
def full_names() -> frozenset[str]:
    """Every dotted name that has an entry."""
    return frozenset(f"{module}.{name}" for module, names in described().items() for name in names)


def entries(asked: str) -> str:
    """The directives that make mkdocstrings write the entries of a marker's names.

    What the package itself gives has its members where its room has it.
    """
    module, *names = asked.split()
    return "\n\n".join(_entry(module, name) for name in names or exported()[module])


def _entry(module: str, name: str) -> str:
    directive = f"::: {module}.{name}\n    options:\n      heading_level: 3"
    room = next((room for room, given in exported().items() if room != "doubtless" and name in given), None)
    if module != "doubtless" or room is None:
        return directive
    return f"{directive}\n      members: false\n\n*In full:* [`{room}.{name}`][{room}.{name}]"


def linked(text: str) -> str:
    """Names in code type that have an entry become links to it.

    >>> linked("`doubtless.Gallery` and `doubtless.nothing`")
    '[`doubtless.Gallery`][doubtless.Gallery] and `doubtless.nothing`'
    """

    def link(found: re.Match[str]) -> str:
        return f"[{found[0]}][{found[1]}]" if found[1] in full_names() else found[0]

    return re.sub(r"(?<![\[`])`(doubtless(?:\.\w+)+)(?:\([^`]*\))?`(?![\]`])", link, text)
