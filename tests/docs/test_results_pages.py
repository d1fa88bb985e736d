"""The results pages: drawn from the JSON, bold over all rows of a track, claims that name true cells."""

from __future__ import annotations

import json
import re
import statistics
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from benchmarks.results_page import budgets, claims, drawing
from benchmarks.results_page.measured import GALLERY, PICTURE, Measured
from benchmarks.results_page.pages import FRONT, PAGES, RESULTS, ROOT, Page

README = ROOT / "README.md"
PICTURE_SOURCES = {"own", "norm"}
RUN = [(page, suite) for page in PAGES for suite in page.suites if (RESULTS / f"{suite}.json").exists()]
METRICS = {
    "Errors: error AUROC": "error_auroc",
    "Errors: AUSC": "ausc",
    "R@1": "recall@1",
    **{f"R@{k}": f"recall@{k}" for k in (2, 4, 8)},
    **{f"mAP@{k}": f"map@{k}" for k in (5, 10)},
    "mAP@R": "map@r",
    "NMI": "nmi",
    "F1": "f1",
    "ECE as is": "ece",
    "its floor": "ece_floor",
    "ECE tuned": "ece_tuned",
    "the tuned one's floor": "ece_tuned_floor",
    "error AUROC": "error_auroc",  # of an ablation, whose own measures are in one table
    "AUSC": "ausc",
}


def by_hand(suite: str, method: str, source: str, metric: str) -> tuple[float, float] | None:
    """Mean and deviation straight from the JSON, with nothing of the generator."""
    runs = [run for run in parsed(suite)["runs"] if run["method"] == method]
    places: list[dict[str, Any]] = [
        run["measures"] if source == "own" else {**run["baselines"], **run["doubts"]}.get(source, {})
        for run in runs
    ]
    if not runs or any(place.get(metric, {}).get("value") is None for place in places):
        return None
    values = [place[metric]["value"] for place in places]
    return sum(values) / len(values), statistics.stdev(values) if len(values) > 1 else 0.0


@cache
def parsed(suite: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((RESULTS / f"{suite}.json").read_text())
    return result


def shown(text: str) -> tuple[str, str] | None:
    found = re.match(r"\**(−?\d*\.\d{3})(?: ± (\d*\.\d{3}))?", text)
    return None if found is None else (found[1], found[2] or "")


def tables_of(page: Page, suite: str) -> list[tuple[str, list[str], list[list[str]]]]:
    """Heading above, columns and rows of every table of one suite's part of the page."""
    text = page.path.read_text()
    parts = re.split(r"(?m)^## `", text)
    body = next((part for part in parts[1:] if part.startswith(f"{suite}`")), parts[0])
    tables, heading = [], ""
    lines = body.splitlines()
    for place, line in enumerate(lines):
        heading = line.lstrip("# ") if line.startswith("#") else heading
        if line.startswith("|  |"):
            rows = []
            for row in lines[place + 2 :]:
                if not row.startswith("|"):
                    break
                rows.append([entry.strip() for entry in row.split("|")[1:-1]])
            tables.append((heading, [entry.strip() for entry in line.split("|")[1:-1]], rows))
    return tables


def metric_of(heading: str, column: str) -> tuple[str, str]:
    """Measure and source of a cell, by what the page says above it."""
    if stranger := re.match(r"OOD AUROC, ([\w-]+)", column):
        return f"ood_auroc/{stranger[1]}", "own"
    if not re.match(r"[◧▦] ", column):
        return METRICS[column], "own"
    if auroc := re.match(r"Out of distribution: AUROC, ([\w-]+)", heading):
        return f"ood_auroc/{auroc[1]}", column[2:]
    if auprc := re.match(r"Out of distribution: AUPRC at ([\d.]+) : 1, ([\w-]+)", heading):
        kind = "balanced" if auprc[1] == "1" else "reweighted"
        return f"ood_auprc_{kind}/{auprc[2]}", column[2:]
    return METRICS[heading], column[2:]


@pytest.mark.parametrize(("page", "suite"), RUN, ids=[suite for _, suite in RUN])
def test_every_number_is_in_the_json_and_bold_is_the_best_of_a_track(page: Page, suite: str) -> None:
    compared = 0
    for heading, columns, rows in tables_of(page, suite):
        if "trials" in columns:
            continue
        best: dict[tuple[str, str], float] = {}
        cells = []
        for row in rows:
            for column, entry in zip(columns[1:], row[1:], strict=True):
                metric, source = metric_of(heading, column)
                value = by_hand(suite, row[0].strip("`"), source, metric)
                if value is None:
                    assert shown(entry) is None, (suite, row[0], column)
                    continue
                printed = shown(entry)
                assert printed is not None, (suite, row[0], column)
                assert float(printed[0].replace("−", "-")) == pytest.approx(value[0], abs=0.00051)
                assert not printed[1] or float(printed[1]) == pytest.approx(value[1], abs=0.00051)
                group = (metric, PICTURE if source in PICTURE_SOURCES else GALLERY)
                sign = -1 if metric.startswith("ece") else 1
                best[group] = max(best.get(group, -9), sign * value[0])
                cells.append((entry, group, sign * value[0], metric))
                compared += 1
        for entry, group, value, metric in cells:
            is_best = value >= best[group] - 1e-12 and "floor" not in metric
            assert entry.startswith("**") == is_best, (suite, heading, entry)
            overall = max(top for (name, _), top in best.items() if name == metric)
            if heading.startswith(("Errors", "Out")):
                assert ("★" in entry) == (value >= overall - 1e-12), (suite, heading, entry)
    assert compared > 100 or suite.endswith("searched")


def test_the_pages_are_what_the_generator_draws() -> None:
    for page in PAGES:
        assert drawing.draw_page(page, page.path.read_text()) == page.path.read_text(), page.name
    assert drawing.draw_front(FRONT.read_text()) == FRONT.read_text()


@pytest.mark.parametrize("suite", [suite for _, suite in RUN])
def test_no_row_had_more_trials_than_its_table_allows(suite: str) -> None:
    result = parsed(suite)
    allowed = result.get("trials")
    counted = budgets.budgets(Measured(result))
    assert set(counted) == {run["method"] for run in result["runs"]}
    if allowed is not None:
        assert max(entry.trials for entry in counted.values()) <= allowed


def prose(path: Path) -> str:
    """Without what is drawn, code, tables and links' targets."""
    text = re.sub(r"<!-- (tables|summary|looks) -->.*?<!-- end -->", "", path.read_text(), flags=re.S)
    text = re.sub(r"```.*?```", "", text, flags=re.S)
    text = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    return re.sub(r"`[^`]*`|\]\([^)]*\)", "", text)


def mean_of(name: str, results: claims.Results) -> float:
    cells = results.cells(name)
    (method,) = cells.methods
    value = by_hand(cells.suite, method, cells.source, cells.metric)
    assert value is not None, name
    return value[0]


def is_true(kind: str, said: str, results: claims.Results) -> bool:
    """`A > B`, or that no row has a better value by any source of the same track."""
    if kind == "holds":
        first, second = said.split(" > ")
        return mean_of(first, results) > mean_of(second, results)
    cells, own = results.cells(said), mean_of(said, results)
    run = parsed(cells.suite)["runs"][0]
    alike = (cells.source in PICTURE_SOURCES,)
    sources = [
        name for name in ("own", *run["baselines"], *run["doubts"]) if (name in PICTURE_SOURCES,) == alike
    ]
    methods = {run["method"] for run in parsed(cells.suite)["runs"]}
    found = [by_hand(cells.suite, row, name, cells.metric) for row in methods for name in sources]
    sign = -1 if cells.metric.startswith("ece") else 1
    return all(sign * value[0] <= sign * own for value in found if value is not None)


def test_notes_of_order_are_found_out_where_they_are_untrue() -> None:
    results = claims.Results()
    better, worse = "cub-lite0/ensemble/recall@1", "cub-lite0/raw-features/recall@1"
    assert is_true("holds", f"{better} > {worse}", results)
    assert not is_true("holds", f"{worse} > {better}", results)
    assert not is_true("best", worse, results)
    with pytest.raises(ValueError, match="has no row nobody"):
        results.cells("cub-lite0/nobody/recall@1")


@pytest.mark.parametrize("path", [README, FRONT, *(page.path for page in PAGES)], ids=lambda path: path.stem)
def test_every_figure_of_a_claim_names_its_cells_and_is_theirs(path: Path) -> None:
    text = prose(path)
    results = claims.Results()
    for claim in claims.CLAIM.finditer(text):
        cells = results.cells(claim["cell"])
        found = [by_hand(cells.suite, row, cells.source, cells.metric) for row in cells.methods]
        means = [value[0] for value in found if value is not None]
        printed = [float(part.replace("−", "-")) for part in (claim["low"], claim["high"] or claim["low"])]
        assert printed == pytest.approx([min(means), max(means)], abs=0.00051), claim[0]
    for kind, said in re.findall(r"<!-- (best|holds): (.+?) -->", text):
        assert is_true(kind, said, results), said
    bare = claims.CLAIM.sub("", text)
    for sentence in re.split(r"(?<=[.:!?])\s+(?=[A-Z*\[])", bare):
        source = re.search(r"<!-- from: (\S+) -->", sentence)
        figures = re.findall(r"(?<![\w.-])\d*\.\d+", re.sub(r"<!--.*?-->", "", sentence))
        if not figures:
            continue
        assert source is not None, f"{path.name}: {sentence.strip()!r} has figures and names no cell"
        there = (ROOT / source[1]).read_text()
        assert all(re.search(rf"(?<!\d){re.escape(figure)}(?!\d)", there) for figure in figures), (
            path.name,
            sentence,
            figures,
        )


def test_results_hold_what_is_current() -> None:
    kept = {suite for page in PAGES for suite in page.suites} | {"demo", "ablations"}
    assert {path.stem for path in RESULTS.glob("*.json")} <= kept
    assert {path.stem for path in RESULTS.glob("*.html")} <= kept
