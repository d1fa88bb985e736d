"""Tables of some rows over all data sets, for the pages of methods and the guides.

    <!-- measured: pfe contrastive|deterministic --> … <!-- end -->

draws one line per data set and row, as far as a suite has it; of `a|b` the first that it has. Means over seeds: the
deviations are on the pages of the data sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.results_page import claims
from benchmarks.results_page.measured import OWN, Measured, read
from benchmarks.results_page.pages import PAGES, RESULTS, ROOT
from benchmarks.results_page.writing import number, table

MARK = re.compile(r"(<!-- measured: ([^>]+?) -->).*?(<!-- end -->)", re.DOTALL)
COLUMNS = {
    "recall@1": (OWN, "recall@1"),
    "ECE as is": (OWN, "ece"),
    "errors: ◧ own": (OWN, "error_auroc"),
    "▦ distance": ("distance", "error_auroc"),
    "▦ doubt": ("doubt", "error_auroc"),
    "strangers: ◧ own": (OWN, "ood_auroc"),
    "◧ norm": ("norm", "ood_auroc"),
    "▦ doubt&nbsp;": ("doubt", "ood_auroc"),
}
"""Heading → source and measure; that of strangers is against the first of a suite's out-of-distribution sets."""


def texts() -> list[Path]:
    """Pages with figures of their own: those of methods, the guides, the README."""
    folders = [ROOT / "docs" / name for name in ("methods", "guides")]
    written = [path for folder in folders for path in sorted(folder.glob("*.md"))]
    return [ROOT / "README.md", *written]


def draw_text(text: str, results: Path = RESULTS) -> str:
    """The text with its tables and its figures as the results have them now."""
    drawn = MARK.sub(
        lambda mark: f"{mark[1]}\n\n{measured_table(mark[2].split(), results)}\n\n{mark[3]}", text
    )
    return claims.refreshed(drawn, claims.Results(results))


def measured_table(wanted: list[str], results: Path = RESULTS) -> str:
    """One line per data set and row."""
    drawn = table(["data, strangers", "row", *COLUMNS], list(_lines(wanted, results)))
    return drawn.replace("| --- | ---: |", "| --- | --- |", 1)  # names of rows stand to the left, too


def _lines(wanted: list[str], results: Path) -> Iterator[list[str]]:
    for page in PAGES:
        measured = read(results / f"{page.suites[0]}.json")
        if measured is None:
            continue
        name = f"[{page.title.partition(',')[0]}](../results/{page.name}.md), {measured.ood[0]}"
        for alternatives in wanted:
            row = next((row for row in alternatives.split("|") if row in measured.runs), None)
            if row is not None:
                yield [name, f"`{row}`", *_cells(measured, row)]
                name = ""


def _cells(measured: Measured, row: str) -> Iterator[str]:
    for source, metric in COLUMNS.values():
        full = f"ood_auroc/{measured.ood[0]}" if metric == "ood_auroc" else metric
        found = measured.value(row, source, full)
        yield "" if found is None else number(found.mean)
