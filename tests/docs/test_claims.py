"""Figures of guides, methods' pages and README, in tables as in sentences: each names its source, and is there."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.results_page import claims
from tests.docs.pages import ROOT
from tests.docs.test_results_pages import by_hand

DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    DOCS / "contents.md",
    *sorted((DOCS / "guides").glob("*.md")),
    *sorted((DOCS / "methods").glob("*.md")),
]
TOLD = [ROOT / "README.md", *sorted((DOCS / "guides").glob("*.md"))]
"""Pages where every figure with a point must say where it is from."""
OPEN_SET = ROOT / "benchmarks" / "results" / "open-set" / "open-set.json"
FIGURE = re.compile(r"(?<![\w.\-/=])\d*\.\d+(?![\w.])")
NO_MEASUREMENT = re.compile(r"dlib's customary threshold of 0\.6|squares of 17\.7 m|RFC 9457")


def passages(text: str) -> list[str]:
    """Sentences and cells of tables, without code."""
    plain = re.sub(r"^( *)```.*?^\1```", "", text, flags=re.DOTALL | re.MULTILINE)
    plain = re.sub(
        r"<!-- demo table -->.*?\n\n", "", plain, flags=re.DOTALL
    )  # tests/docs/test_guides.py has it
    plain = re.sub(r"`[^`]*`|\]\([^)]*\)", "", plain)
    plain = re.sub(r"<!-- (tables|measured[^>]*|given[^>]*|not run[^>]*) -->", "", plain)
    return [part for part in re.split(r"\||(?<=[.:!?])\s+(?=[A-Z*\[])|\n\n", plain) if part.strip()]


def is_at(figure: str, source: str) -> bool:
    """Whether the source has the figure, or it as a share of one: 99.6 for .996."""
    forms = {figure, f"0{figure}" if figure.startswith(".") else figure}
    if "." in figure and float(figure) > 1:
        forms.add(f"{float(figure) / 100:.{len(figure.partition('.')[2]) + 2}f}".removeprefix("0"))
    return any(re.search(rf"(?<![\d.]){re.escape(form)}(?!\d)", source) for form in forms)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_cell_that_is_named_has_that_figure(page: Path) -> None:
    results = claims.Results()
    for claim in claims.CLAIM.finditer(page.read_text()):
        if claim["cell"].startswith("open-set"):
            continue
        cells = results.cells(claim["cell"])
        found = [by_hand(cells.suite, row, cells.source, cells.metric) for row in cells.methods]
        means = [value[0] for value in found if value is not None]
        told = [float(part.replace("−", "-")) for part in (claim["low"], claim["high"] or claim["low"])]
        digits = len(claim["low"].partition(".")[2])
        assert told == pytest.approx([min(means), max(means)], abs=0.51 * 10**-digits), claim[0]


@pytest.mark.parametrize("page", TOLD, ids=lambda page: page.stem)
def test_every_figure_says_where_it_is_from_and_is_there(page: Path) -> None:
    for passage in passages(page.read_text()):
        rest = claims.CLAIM.sub("", passage)
        sources = re.findall(r"<!-- from: (\S+) -->", rest)
        words = NO_MEASUREMENT.sub("", re.sub(r"<!--.*?-->", "", rest)) if "open-set:" not in rest else ""
        for figure in FIGURE.findall(words):
            assert sources, f"{page.name}: {figure} in {passage.strip()!r} names no source"
            there = [(ROOT / source).read_text() for source in sources]
            assert any(is_at(figure, text) for text in there), f"{page.name}: {figure} is not in {sources}"


def test_the_readme_tells_three_figures_and_they_were_measured() -> None:
    readme = (ROOT / "README.md").read_text()
    table = (
        readme.partition("| what it is worth | measured |")[2].partition("\n\n")[0].strip().splitlines()[1:]
    )
    assert len(table) == 3
    assert all("<!-- " in row for row in table)
    low, high, name = re.search(r"([\d.]+)–([\d.]+) %<!-- open-set: (\S+) broken -->", table[0]).groups()  # type: ignore[union-attr]
    sets = json.loads(OPEN_SET.read_text())["sets"]
    assert len(sets) == 8  # four data sets by two kinds of features
    broken = [100 * one["promise"][name]["broken"] for one in sets.values()]
    assert [float(low), float(high)] == pytest.approx([min(broken), max(broken)], abs=0.05)
    assert {one["divisions"] for one in sets.values()} == {200}


def test_the_readme_is_one_screen() -> None:
    readme = (ROOT / "README.md").read_text()
    assert len(readme.splitlines()) < 50
    assert len(re.findall(r"^#", readme, re.MULTILINE)) == 1
    for name in (
        "docs/start.md",
        "docs/guides/choosing.md",
        "docs/reference/commands.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
    ):
        assert f"({name})" in readme


def test_untrue_figures_are_found_out(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Recall is .99<!-- cub-lite0/ensemble/recall@1 -->.\n")
    with pytest.raises(AssertionError):
        test_every_cell_that_is_named_has_that_figure(page)
    assert is_at("8.5", (ROOT / "benchmarks/results/speed.md").read_text())
    page.write_text("| it | takes 1234.5 s<!-- from: benchmarks/results/speed.md --> |\n")
    with pytest.raises(AssertionError, match=r"1234\.5 is not in"):
        test_every_figure_says_where_it_is_from_and_is_there(page)
    page.write_text("It is .123 of all.\n")
    with pytest.raises(AssertionError, match="names no source"):
        test_every_figure_says_where_it_is_from_and_is_there(page)
