"""`make docs`: no warning, every link and anchor leads somewhere, nothing comes from elsewhere, nothing is lost."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from scripts.pages.text import escaped
from tests.docs.built import BUILD, Read, Site, broken, outside
from tests.docs.pages import PAGES, ROOT

HTML = [
    "a",
    "article",
    "body",
    "br",
    "button",
    "circle",
    "code",
    "details",
    "div",
    "ellipse",
    "em",
    "figcaption",
    "figure",
    "footer",
    "form",
    "g",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "head",
    "header",
    "hr",
    "html",
    "img",
    "input",
    "label",
    "li",
    "line",
    "link",
    "main",
    "meta",
    "nav",
    "noscript",
    "ol",
    "output",
    "p",
    "path",
    "polygon",
    "polyline",
    "pre",
    "rect",
    "script",
    "section",
    "select",
    "small",
    "span",
    "strong",
    "style",
    "sub",
    "summary",
    "sup",
    "svg",
    "table",
    "tbody",
    "td",
    "text",
    "th",
    "thead",
    "title",
    "tr",
    "ul",
    "defs",
    "marker",
    "clippath",
    "tspan",
    "option",
    "time",
    "dl",
    "dt",
    "dd",
    "blockquote",
    "del",
    "b",
    "i",
    "kbd",
    "use",
    "symbol",
    "datalist",
    "fieldset",
    "legend",
    "aside",
    "textarea",
]
OURS = "repository/benchmarks/results"
"""Pages of benchmarks lie in the site as they are; tests/report looks at them."""


def test_it_is_built_without_a_warning(site: Site) -> None:
    assert site.code == 0, site.printed[-3000:]
    assert re.findall(r"^(?:WARNING|ERROR).*", site.printed, re.MULTILINE) == []


def test_make_docs_and_ci_build_it_the_same_way() -> None:
    done = subprocess.run(["make", "--dry-run", "docs"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert f"python {' '.join(BUILD)}" in done.stdout
    assert re.search(r"^make docs$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


def test_every_link_and_anchor_leads_somewhere(site: Site) -> None:
    assert len(site.pages) > 100
    assert list(broken(site.pages)) == []


def test_every_page_of_docs_is_in_it(site: Site) -> None:
    for page in PAGES:
        if page.name == "README.md":
            continue
        title = re.search(r"^# (.+)$", page.read_text(), re.MULTILINE)
        assert title is not None, page
        words = re.sub(r"[`*\\]", "", title[1])
        assert any(
            words in re.sub(r"<[^>]+>|&\w+;", "", site.text(str(path.relative_to(site.folder))))
            for path in site.pages
        )


def test_nothing_is_fetched_from_elsewhere(site: Site) -> None:
    assert list(outside(site.pages, site.folder)) == []


def test_no_words_are_taken_for_tags(site: Site) -> None:
    for path, page in site.pages.items():
        if not path.is_relative_to(site.folder / OURS):
            assert page.tags <= set(HTML), (path.name, page.tags - set(HTML))
    assert "Σ_{i&lt;j} ½" in site.text("methods/lam.html")


def test_the_checks_see_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "there.html").write_text('<h1 id="here">There</h1>')
    page = tmp_path / "page.html"
    page.write_text(
        '<a href="there.html#here">right</a><a href="there.html#gone">no such place</a><a href="gone.html">gone</a>'
        '<a href="https://example.com">is only a link</a><link rel="next" href="there.html">'
        '<img src="https://example.com/a.png"><script src="//example.com/b.js"></script><j} ½>'
    )
    (tmp_path / "style.css").write_text("@import 'https://example.com/c.css'; a { background: url(d.png) }")
    pages = {}
    for path in sorted(tmp_path.glob("*.html")):
        pages[path] = Read()
        pages[path].feed(path.read_text())
    assert [line.partition(": ")[2] for line in broken(pages)][:2] == [
        "there.html#gone has no such place",
        "there is no gone.html",
    ]
    assert [line.rpartition("/")[2] for line in outside(pages, tmp_path)] == ["a.png", "b.js", "c.css"]
    assert not pages[page].tags <= set(HTML)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Σ_{i<j} ½ > 0", "Σ_{i&lt;j} ½ > 0"),
        ("`a<b>` and <div class='x'>", "`a<b>` and <div class='x'>"),
        ("roc/<ood>", "roc/&lt;ood>"),
        ("```text\nx<y>\n```\n<!-- kept -->", "```text\nx<y>\n```\n<!-- kept -->"),
    ],
)
def test_only_elements_keep_their_angle(text: str, shown: str) -> None:
    assert escaped(text) == shown
