"""The table of a comparison in Chromium: sorted, filtered, narrowed, downloaded, with the numbers of the JSON."""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.report.example import methods, write_benchmark

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.browser
NAMES = ["deterministic", "pfe", "lam-online", "mc-dropout"]


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("comparison") / "page.html"
    write_benchmark(path)
    return path.as_uri()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """The page, which must not complain or ask for anything whatever a test does with it."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    opened = context.new_page()
    complaints: list[str] = []
    opened.on("console", lambda message: complaints.append(message.text))
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("request", lambda request: complaints.append(request.url))
    opened.goto(address)
    yield opened
    context.close()
    assert [one for one in complaints if one != address and not one.startswith(("data:", "blob:"))] == []


def shown(page: Page) -> list[str]:
    return page.locator("#comparison tbody tr:visible").evaluate_all(
        "rows => rows.map(r => r.dataset.method)"
    )


def columns(page: Page) -> list[str]:
    return page.locator("#comparison th[data-metric]:visible").evaluate_all(
        "ths => ths.map(t => t.dataset.metric)"
    )


def heading(page: Page, metric: str) -> Any:
    return page.locator(f'#comparison th[data-metric="{metric}"]')


def downloaded(page: Page, kind: str) -> str:
    with page.expect_download() as waiting:
        page.locator(f"[data-download={kind}]").click()
    assert waiting.value.suggested_filename == f"benchmark-demo.{kind}"
    return Path(waiting.value.path()).read_text()


def means(page: Page) -> dict[str, dict[str, Any]]:
    cells: dict[str, dict[str, Any]] = json.loads(page.locator("#doubtless-comparison").text_content() or "")[
        "table"
    ]["cells"]
    return cells


@pytest.mark.parametrize(("metric", "first"), [("recall@1", "descending"), ("ece", "ascending")])
def test_a_heading_sorts_best_first_then_worst_first_then_as_it_was(
    page: Page, metric: str, first: str
) -> None:
    cells = means(page)
    button = heading(page, metric).get_by_role("button")
    button.focus()
    other = {"descending": "ascending", "ascending": "descending"}[first]
    for state in (first, other):
        page.keyboard.press("Enter")
        assert heading(page, metric).get_attribute("aria-sort") == state
        names = shown(page)
        assert sorted(names) == sorted(NAMES)
        values = [cells[name][metric]["mean"] for name in names if metric in cells[name]]
        assert len(set(values)) > 1
        assert values == sorted(values, reverse=state == "descending")
        assert all(metric in cells[name] for name in names[: len(values)])  # what has no number stays below
    page.keyboard.press("Enter")
    assert shown(page) == NAMES
    assert heading(page, metric).get_attribute("aria-sort") == "none"


def test_what_has_no_number_stays_below(page: Page) -> None:
    for _ in range(2):
        heading(page, "error_auroc").get_by_role("button").click()
        assert shown(page)[-1] == "deterministic"  # points: only a free score, which is no number of its own


def test_text_and_boxes_choose_methods_and_the_best_is_of_those_shown(page: Page) -> None:
    page.get_by_label("Filter").fill("LAM drop -online")
    assert shown(page) == ["mc-dropout"]
    row = methods()[1].cells["mc-dropout"]
    ranked = [metric for metric, cell in row.items() if cell.rank is not None]
    assert page.locator("#comparison td.first").count() == len(ranked)  # alone, it is the best of all it has
    assert any(not row[metric].best for metric in ranked)
    assert page.locator("#figures svg [data-of=pfe]:visible").count() == 0
    page.get_by_label("Filter").fill("")
    page.locator("summary", has_text="Methods").click()
    page.get_by_label("lam-online", exact=True).uncheck()
    assert shown(page) == [name for name in NAMES if name != "lam-online"]
    assert page.get_by_role("status").inner_text().startswith("3 of 4 methods")


def test_groups_and_single_columns_are_chosen(page: Page) -> None:
    page.locator("summary", has_text="Columns").click()
    page.get_by_role("button", name="all", exact=True).locator("visible=true").click()
    everything = columns(page)
    page.get_by_label("Calibration", exact=True).uncheck()
    left = columns(page)
    assert {"ece", "ece@5", "match_ece"} <= set(everything) - set(left)
    page.locator("[data-shows-column=ece]").check()
    assert set(columns(page)) - set(left) == {"ece"}
    assert page.locator("[data-shows-group=Calibration]").evaluate("box => box.indeterminate")
    spans = page.locator("#comparison .groups th:visible").evaluate_all("ths => ths.map(t => t.colSpan)")
    assert sum(spans) == len(left) + 1


def test_csv_holds_the_numbers_of_the_json(page: Page) -> None:
    page.get_by_label("Filter").fill("lam pfe")
    heading(page, "recall@1").get_by_role("button").click()
    lines = list(csv.DictReader(downloaded(page, "csv").splitlines()))
    assert [line["method"] for line in lines] == ["lam-online", "pfe"]
    table = methods()[1]
    for line in lines:
        for metric in columns(page):
            cell = table.cells[line["method"]][metric]
            assert float(line[metric]) == cell.mean
            assert float(line[f"{metric} std"]) == cell.std
    assert set(lines[0]) == {"method", *(name + kind for name in columns(page) for kind in ("", " std"))}


def test_latex_has_the_cells_of_the_page(page: Page) -> None:
    source = downloaded(page, "tex")
    body = source.split("\\midrule\n")[1].split("\\bottomrule")[0].strip().splitlines()
    table = methods()[1]
    assert "\\caption{Benchmark: demo}" in source
    assert source.count("\\cmidrule") == source.count("\\multicolumn") > 1
    for line, name in zip(body, NAMES, strict=True):
        first, *cells = line.removesuffix(" \\\\").split(" & ")
        assert first == name
        for text, metric in zip(cells, columns(page), strict=True):
            cell = table.cells[name].get(metric)
            if cell is None or math.isnan(cell.mean):
                assert text == "" or text.startswith(("\\textit{", "--"))
                continue
            value = f"{cell.mean:.3f}"
            value = f"\\textbf{{{value}}}" if cell.best else value
            assert text == f"{value} $\\pm$ {cell.std:.3f}"


def test_without_script_the_whole_table_is_there(browser: Browser, address: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator("#comparison tbody tr").count() == len(NAMES)
    assert not page.locator(".controls").is_visible()
    assert page.locator("#comparison thead th[data-metric]").last.is_visible()
    assert re.search("#1", page.locator("#comparison").inner_text())  # small print too
    context.close()
