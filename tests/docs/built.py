"""The site as `make docs` builds it, and what is in its pages: anchors, links, what is fetched."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

from tests.docs.pages import ROOT

BUILD = ["-m", "mkdocs", "build", "--strict"]
"""What `make docs` has Python do."""

FETCHED = {
    "script": ["src"],
    "img": ["src", "srcset"],
    "source": ["src", "srcset"],
    "iframe": ["src"],
    "video": ["src", "poster"],
    "audio": ["src"],
    "object": ["data"],
    "embed": ["src"],
    "use": ["href", "xlink:href"],
    "image": ["href", "xlink:href"],
    "form": ["action"],
}
"""What a browser asks for by itself; a `link` depends on what it is to the page."""
HINTS = {"next", "prev", "canonical", "license", "author"}
"""Kinds of `link` that nothing is fetched for."""
IN_STYLES = re.compile(r"""url\(\s*['"]?([^'")]+)|@import\s+['"]([^'"]+)""")


@dataclass
class Read(HTMLParser):
    """One page: its anchors, where it leads, what it fetches."""

    anchors: set[str] = field(default_factory=lambda: {"", "top"})
    tags: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.add(tag)
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        if tag == "link" and not set(given.get("rel", "").split()) <= HINTS:
            self.fetched.append(given["href"])
        for name in FETCHED.get(tag, []):
            parts = given.get(name, "").split(",") if name == "srcset" else [given.get(name, "")]
            self.fetched += [part.split()[0] for part in parts if part.strip()]
        self.fetched += [found[1] or found[2] for found in IN_STYLES.finditer(given.get("style", ""))]


@dataclass(frozen=True)
class Site:
    folder: Path
    printed: str
    code: int

    @cached_property
    def pages(self) -> dict[Path, Read]:
        """Every page, read."""
        found = {}
        for path in sorted(self.folder.rglob("*.html")):
            found[path] = Read()
            found[path].feed(path.read_text())
        return found

    def page(self, name: str) -> Read:
        return self.pages[self.folder / name]

    def text(self, name: str) -> str:
        return (self.folder / name).read_text()


def build(folder: Path) -> Site:
    """Builds the site into a folder."""
    done = subprocess.run(
        [sys.executable, *BUILD, "--site-dir", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    return Site(folder, done.stdout + done.stderr, done.returncode)


def broken(pages: dict[Path, Read]) -> Iterator[str]:
    """Links and files that lead nowhere within the site, each as a line."""
    for path, page in pages.items():
        for link in [*page.links, *page.fetched]:
            if re.match(r"[a-z][a-z+.-]*:", link):
                continue
            if (
                path.name == "404.html"
            ):  # a server's, shown wherever somebody went astray: its links begin at the root
                link = link.removeprefix("/")
            address, _, anchor = link.partition("#")
            target = (path.parent / unquote(address.partition("?")[0])).resolve() if address else path
            known = pages.get(target)
            if not target.is_file() or link.startswith("/"):
                yield f"{path.name}: there is no {link}"
            elif anchor and known is not None and unquote(anchor) not in known.anchors:
                yield f"{path.name}: {link} has no such place"


def outside(pages: dict[Path, Read], folder: Path) -> Iterator[str]:
    """What pages or their styles would fetch from elsewhere, each as a line."""
    for path, page in pages.items():
        yield from (f"{path.name}: {one}" for one in page.fetched if re.match(r"(?:https?:)?//", one))
    for path in sorted(folder.rglob("*.css")):
        for found in IN_STYLES.finditer(path.read_text()):
            address = found[1] or found[2]
            if re.match(r"(?:https?:)?//", address):
                yield f"{path.name}: {address}"
