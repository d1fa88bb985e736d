"""Figures in the text that name the cell they are of, in a comment that nobody sees who reads the page.

    recall@1 .838<!-- fashion/lam-online/recall@1 -->
    error AUROC .82–.89<!-- cifar10/*!lam-online-as-printed[doubt]/error_auroc -->
    it is the best<!-- best: fashion/recommended/recall@1 --> of its column
    better than the norm<!-- holds: fashion/a[doubt]/ausc > fashion/a[norm]/ausc -->
    8.5 s<!-- from: benchmarks/results/speed.md -->

A cell is SUITE/METHOD[SOURCE]/MEASURE, the source being the method's own uncertainty where none is named. `*` is
every method of the suite but those behind `!`; such a figure is the range from the smallest to the largest mean.
The generator writes the figures; whether they and the other notes are true is checked by the tests with code of
their own: tests/docs/test_results_pages.py.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from benchmarks.results_page.measured import OWN, Measured, read
from benchmarks.results_page.pages import RESULTS
from benchmarks.results_page.writing import number

FIGURE = r"−?\d*\.\d+"
CLAIM = re.compile(rf"(?P<low>{FIGURE})(?:–(?P<high>{FIGURE}))?<!-- (?P<cell>[^:>]+?) -->")


@dataclass(frozen=True)
class Cells:
    """What a claim names."""

    suite: str
    methods: tuple[str, ...]
    source: str
    metric: str


class Results:
    """Suites by their name, read once."""

    def __init__(self, folder: Path = RESULTS) -> None:
        self.folder = folder
        self._read: dict[str, Measured] = {}

    def of(self, suite: str) -> Measured:
        """The suite's results; a claim about a suite that was not run cannot stand."""
        if suite not in self._read:
            measured = read(self.folder / f"{suite}.json")
            if measured is None:
                raise ValueError(f"There are no results of {suite}, which a claim names.")
            self._read[suite] = measured
        return self._read[suite]

    def cells(self, name: str) -> Cells:
        """What SUITE/METHOD[SOURCE]/MEASURE names."""
        found = re.fullmatch(r"((?:posterior/)?[\w-]+)/([^\[/]+)(?:\[(\w+)\])?/(.+)", name)
        if found is None:
            raise ValueError(f"{name!r} names no cell; SUITE/METHOD[SOURCE]/MEASURE does.")
        suite, method, source, metric = found.groups()
        wanted, *without = method.split("!")
        known = list(self.of(suite).runs)
        methods = tuple(row for row in known if row not in without) if wanted == "*" else (wanted,)
        if unknown := {*methods, *without} - set(known):
            raise ValueError(f"{suite} has no row {', '.join(sorted(unknown))}, which a claim names.")
        return Cells(suite, methods, source or OWN, metric)

    def means(self, name: str) -> list[float]:
        """The mean of every cell that is named and measured."""
        cells = self.cells(name)
        values = [self.of(cells.suite).value(row, cells.source, cells.metric) for row in cells.methods]
        means = [value.mean for value in values if value is not None]
        if not means:
            raise ValueError(f"{name} was not measured, and a claim names it.")
        return means


def refreshed(text: str, results: Results) -> str:
    """The text with every figure as the results have it now, as many digits as it had."""

    def figure(claim: re.Match[str]) -> str:
        means, digits = results.means(claim["cell"]), len(claim["low"].partition(".")[2])
        low, high = number(min(means), digits), number(max(means), digits)
        if claim["high"] is None and low != high:
            raise ValueError(f"{claim[0]} names several cells, {low} to {high}; write a range.")
        shown = low if claim["high"] is None else f"{low}–{high}"
        return f"{shown}<!-- {claim['cell']} -->"

    return CLAIM.sub(figure, text)
