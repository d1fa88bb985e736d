"""What mkdocs asks while it builds the site: further files, and what markers in pages stand for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from doubtless.metrics import METRICS
from scripts.pages import commands, configuration, http_api, names, notebooks, places, source, text


def meaning_of(name: str) -> str:
    """What a metric says of itself, and which direction is better."""
    metric = METRICS.get(name)
    title, sentence = (text.replace("{k}", "k") for text in (metric.title, metric.sentence))
    better = {
        True: "↑ Higher is better.",
        False: "↓ Lower is better.",
        None: "A reference: neither is better.",
    }
    return f"**{title}.** {sentence} {better[metric.higher]}"


MARKERS: dict[str, Callable[[str], str]] = {
    "configuration": lambda _: configuration.as_markdown(),
    "options": commands.options,
    "routes": lambda _: http_api.as_markdown(),
    "names": names.entries,
    "code": source.block,
    "metric": meaning_of,
}
MARKER = re.compile(rf"^<!-- ({'|'.join(MARKERS)})(?:: (.+?))? -->$", re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
DRAWING = re.compile(r"^!\[[^\]]*\]\(([^)]+\.svg)\)$", re.MULTILINE)
HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"
LANGUAGES = {
    ".py": "python",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "toml",
    ".js": "javascript",
    ".css": "css",
}
FILES: dict[str, str] = {}
"""Place in the site → file of the repository."""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds what lies outside of docs/ and moves what stands elsewhere in the site."""
    FILES.clear()
    inside = [f"docs/{file.src_uri}" for file in files if file.src_uri.endswith(".md")]
    for path in inside:
        FILES[places.place_of(path)] = path
        if path in places.MOVED:
            moved = files.get_file_from_path(path.removeprefix("docs/"))
            assert moved is not None
            files.remove(moved)
    for path in [path for path in places.MOVED if path in inside]:
        files.append(_file(config, path, (places.ROOT / path).read_text()))
    written = sorted(str(path.relative_to(places.ROOT)) for path in notebooks.NOTEBOOKS.glob("*.ipynb"))
    outside = [path for path in places.MOVED if path not in inside]
    for path in dict.fromkeys([*outside, *written, *places.linked_files([*inside, *outside])]):
        _add(files, config, path)
    return files


def _add(files: Files, config: MkDocsConfig, path: str) -> None:
    """A file from outside of docs/: as a page, or as it is."""
    own, place = places.ROOT / path, places.place_of(path)
    if path.endswith(".ipynb"):
        drawn = notebooks.drawn(own)
        files.append(_file(config, path, drawn.text))
        for name, content in drawn.pictures.items():
            files.append(File.generated(config, f"notebooks/{name}", content=content))
    elif own.suffix in places.COPIED:
        files.append(File.generated(config, place, abs_src_path=str(own)))
    elif own.suffix == ".md":
        files.append(_file(config, path, own.read_text()))
    else:
        files.append(_file(config, path, as_code(own, path)))


def _file(config: MkDocsConfig, path: str, content: str) -> File:
    place = places.place_of(path)
    FILES[place] = path
    hidden = InclusionLevel.NOT_IN_NAV if place.startswith("repository/") else InclusionLevel.UNDEFINED
    return File.generated(config, place, content=content, inclusion=hidden)


def as_code(file: Path, path: str) -> str:
    """A page that shows a file; searches do not find it."""
    return f"{HIDDEN}# `{path}`\n\n``````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text()}\n``````\n"


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Markers become what they stand for, links lead where things stand in the site, other comments go."""
    path = FILES.get(page.file.src_uri, "")
    if not path.endswith((".md", ".ipynb")):
        return markdown
    if path.startswith("docs/results/"):
        page.meta["hide"] = ["toc"]  # tables of ten columns need its place more
    drawn = MARKER.sub(lambda marker: MARKERS[marker[1]](marker[2] or ""), markdown)
    drawn = drawn if text.HEADING.search(markdown) else drawn.replace("heading_level: 3", "heading_level: 2")
    linked = places.relinked(drawn, path)
    finished = text.escaped(text.outside_fences(linked, lambda words: names.linked(COMMENT.sub("", words))))
    return DRAWING.sub(lambda image: inlined(image[1], path) or image[0], finished)


def on_post_page(output: str, **_: Any) -> str:
    """What the theme leaves without a name gets one."""
    return text.accessible(output)


def inlined(link: str, page: str) -> str | None:
    """A drawing that takes the colours of the page it is in, which it can only within the page."""
    file = places.ROOT / places.target_of(link, page)
    drawing = file.read_text() if file.is_file() else ""
    return f"<figure>{drawing.strip()}</figure>" if 'class="figure"' in drawing else None
