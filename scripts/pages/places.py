"""Where files of the repository stand in the site, and links that lead to them.

Pages link as they do in the repository: `../benchmarks/one_photo.py`, `CONTRIBUTING.md`. In the site Markdown
becomes a page, what a browser shows by itself is copied, everything else is a page that shows its text. Only
what some page links to, or names as a file in code type, is in the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from scripts.pages.text import FENCED, outside_fences

ROOT = Path(__file__).parents[2]
MOVED = {
    "docs/start.md": "index.md",
    "docs/index.md": "galleries.md",
    "CONTRIBUTING.md": "development/contributing.md",
    "CHANGELOG.md": "development/changelog.md",
    "SECURITY.md": "development/security.md",
    "examples/notebooks/README.md": "notebooks/index.md",
}
"""Files that stand elsewhere in the site than their folder says. The start is the site's first page."""

COPIED = {".html", ".json", ".png", ".svg", ".csv", ".jpg"}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)\s#]+)(#[^)\s]*)?(?=\))")
NAMED = re.compile(
    r"(?<![\[`])`((?:src|tests|benchmarks|examples|configs|scripts|deploy)/[\w./-]+)`(?![\]`])"
)


def place_of(path: str) -> str:
    """The place in the site of a file of the repository.

    >>> place_of("docs/answers.md"), place_of("SECURITY.md"), place_of("benchmarks/one_photo.py")
    ('answers.md', 'development/security.md', 'repository/benchmarks/one_photo.py.md')
    """
    if path in MOVED:
        return MOVED[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.endswith(".ipynb"):
        return f"notebooks/{Path(path).stem}.md"
    if path.startswith("examples/notebooks/") and path.endswith(tuple(COPIED)):
        return f"notebooks/{Path(path).name}"  # a picture that a cell has drawn
    plain = f"repository/{path}"
    return plain if Path(path).suffix in {".md", *COPIED} else f"{plain}.md"


def target_of(link: str, page: str) -> str:
    """The file of the repository that a link of a page means.

    >>> target_of("../benchmarks/speed/scale.py", "docs/scale.md")
    'benchmarks/speed/scale.py'
    """
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def relinked(text: str, page: str) -> str:
    """A page's text with links as the site needs them; files that are named in code type become links.

    >>> relinked("[all](results.md), `scripts/house.py`", "CONTRIBUTING.md")
    '[all](../repository/results.md), [`scripts/house.py`](../repository/scripts/house.py.md)'
    """
    folder = posixpath.dirname(place_of(page))

    def away(path: str) -> str:
        return posixpath.relpath(place_of(path), folder or ".")

    def change(plain: str) -> str:
        plain = LINK.sub(lambda link: away(target_of(link[1], page)) + (link[2] or ""), plain)
        return NAMED.sub(
            lambda name: f"[{name[0]}]({away(name[1])})" if (ROOT / name[1]).is_file() else name[0], plain
        )

    return outside_fences(text, change)


def leads_to(text: str, page: str) -> Iterator[str]:
    """Files of the repository that a page's text links to or names."""
    plain = FENCED.sub("", text)
    yield from (target_of(link[1], page) for link in LINK.finditer(plain))
    yield from (name[1] for name in NAMED.finditer(plain))


def linked_files(pages: list[str]) -> list[str]:
    """What lies outside of docs/ and is linked to by these pages, or by pages that these link to; in order."""
    seen, waiting = set(pages), list(pages)
    while waiting:
        page = waiting.pop()
        for path in leads_to((ROOT / page).read_text(), page):
            if path in seen or path.startswith("docs/") or not (ROOT / path).is_file():
                continue
            seen.add(path)
            if path.endswith(".md"):
                waiting.append(path)
    return sorted(path for path in seen if not path.startswith("docs/"))
