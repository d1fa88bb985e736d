"""Pages from results: what stands between their marks is written anew, and every figure that names its cell."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.results_page import budgets, claims, looks
from benchmarks.results_page.measured import Measured, read
from benchmarks.results_page.pages import ABLATIONS, PAGES, RESULTS, Page
from benchmarks.results_page.summary import summary
from benchmarks.results_page.tables import Tables


def draw_page(page: Page, text: str, results: Path = RESULTS) -> str:
    """The page of a data set, with the tables of its suites that have been run."""
    parts = []
    for place, suite in enumerate(page.suites):
        measured = read(results / f"{suite}.json")
        if measured is not None:
            parts.append(
                "\n\n".join(section for section in sections(page, measured, first=place == 0) if section)
            )
    drawn = between(text, "tables", "\n\n".join(parts))
    return claims.refreshed(drawn, claims.Results(results))


def draw_front(text: str, results: Path = RESULTS) -> str:
    """The front page: one table over all data sets, and the looks."""
    found = [(page, read(results / f"{page.suites[0]}.json")) for page in PAGES]
    drawn = between(text, "summary", summary([(page, measured) for page, measured in found if measured]))
    drawn = between(drawn, "looks", looks.counted(looks.looks()))
    return claims.refreshed(drawn, claims.Results(results))


def between(text: str, mark: str, written: str) -> str:
    """The text with something else between `<!-- MARK -->` and `<!-- end -->`.

    >>> between("a <!-- here -->old<!-- end --> b", "here", "new")
    'a <!-- here -->\\n\\nnew\\n\\n<!-- end --> b'
    """
    parts = re.compile(rf"(<!-- {mark} -->).*?(<!-- end -->)", re.DOTALL).split(text)
    if len(parts) != 4:  # before, the two marks, after
        raise ValueError(f"A page must have one place `<!-- {mark} -->` … `<!-- end -->`.")
    before, begin, end, after = parts
    return f"{before}{begin}\n\n{written}\n\n{end}{after}" if written else f"{before}{begin}\n{end}{after}"


def sections(page: Page, measured: Measured, *, first: bool) -> Iterator[str]:
    """All that is written of one suite."""
    tables = Tables(page, measured)
    suite = measured.result["suite"]
    level = "##" if first else "###"
    if not first:
        yield f"## `{suite}`: {measured.result['title']}"
    if suite.startswith(ABLATIONS):
        yield tables.compact()
        yield made_by(measured)
        return
    yield f"{level} Retrieval"
    yield tables.retrieval()
    if calibration := tables.calibration():
        yield f"{level} Calibration"
        yield calibration
    for heading, metric in tables.doubt_metrics().items():
        yield f"{level} {heading}"
        yield tables.by_source(metric)
    yield notes(tables)
    if recipes := budgets.written(measured):
        yield f"{level} Budgets and recipes"
        yield recipes
    yield f"{level} How it was made"
    yield made_by(measured)


def notes(tables: Tables) -> str:
    """The paper, and every reason behind an asterisk once, with the measures it is of."""
    if not tables.published["methods"]:
        return ""
    shown = [*tables.page.columns.values(), "ece", *tables.doubt_metrics().values()]
    reasons: dict[str, list[str]] = {}
    for metric in shown:
        for method in tables.published["methods"]:
            if tables.paper(method, metric) and (reason := tables.reason(method, metric)):
                names = reasons.setdefault(reason, [])
                names += [metric] if metric not in names else []
    lines = [f"In brackets: {tables.published['source']}."]
    lines += [
        f"\\* {', '.join(f'`{name}`' for name in names)}: {reason}." for reason, names in reasons.items()
    ]
    return "  \n".join(lines)


def made_by(measured: Measured) -> str:
    """Command, commit, versions, device and set sizes."""
    result, counts = measured.result, measured.result["runs"][0]["counts"]
    seeds = {len(runs) for runs in measured.runs.values()}
    sizes = [f"{counts['queries']:,} queries of {counts['classes']:,} classes"]
    if counts.get("without_positive"):
        sizes.append(f"{counts['without_positive']:,} of them without a right answer, which are left out")
    sizes += [f"{counts[f'ood/{name}']:,} of {name}" for name in measured.ood]
    versions = result["versions"]
    device = f" on {versions['device']}" if "device" in versions else ""
    untouched = result.get("untouched_ood")
    return " ".join(
        [
            f"`{result['command']}`{device}, torch {versions['torch']}; {_span(seeds)} seeds per row;",
            f"{', '.join(sizes)}.",
            _frozen(result),
            f"Nothing was ever chosen on {untouched}."
            if untouched
            else "No out-of-distribution set is named on which nothing was ever chosen.",
            f"[JSON](../../benchmarks/results/{result['suite']}.json),",
            f"[page](../../benchmarks/results/{result['suite']}.html).",
        ]
    )


def _span(numbers: set[int]) -> str:
    return str(min(numbers)) if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"


def _frozen(result: dict[str, Any]) -> str:
    """Whether settings were in a commit before the run; results from before this was recorded say nothing.

    A table that grew over several benches names each one's commit, with the number of its runs.
    """
    last = result.get("frozen")
    said = Counter(_how_frozen(run.get("frozen", last)) for run in result["runs"])
    if len(said) == 1:
        return f"{next(iter(said))}."
    return "; ".join(f"{how} ({count} run{'s' * (count > 1)})" for how, count in said.items()) + "."


def _how_frozen(frozen: dict[str, object] | None) -> str:
    if frozen is None:
        return "The commit its settings were in was not recorded yet"
    how = "frozen in" if frozen["clean"] else "changed after"
    return f"Settings {how} commit `{str(frozen['commit'])[:10]}`"
