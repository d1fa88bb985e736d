"""Comparison: mean, spread and ranks against numpy and scipy; marks, footnotes, published numbers."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import rankdata

from doubtless.errors import InputError
from doubtless.evaluation.result import Evaluation, Measure
from doubtless.report import Cell, ComparisonTable, MethodResult, compare_methods, write_comparison
from doubtless.report.comparison import with_free
from doubtless.report.comparison_table import Footnotes
from tests.report.example import example, methods, pictures


def method(name: str, values: list[float], metric: str = "recall@1") -> MethodResult:
    return MethodResult(
        name, [Evaluation({metric: Measure(value, value - 0.1, value + 0.1)}) for value in values]
    )


tables = st.lists(
    st.lists(st.sampled_from([0.1, 0.25, 0.5, 0.75]), min_size=1, max_size=4), min_size=1, max_size=6
)


@given(tables, st.sampled_from([("recall@1", -1), ("ece", 1)]))
def test_cells_are_means_deviations_and_ranks(values: list[list[float]], kind: tuple[str, int]) -> None:
    metric, sign = kind
    found = compare_methods([method(str(place), row, metric) for place, row in enumerate(values)])
    cells = [found.cells[str(place)][metric] for place in range(len(values))]
    means = np.array([np.mean(row) for row in values])
    np.testing.assert_allclose([cell.mean for cell in cells], means)
    for cell, row in zip(cells, values, strict=True):
        assert cell.std == (None if len(row) == 1 else pytest.approx(np.std(row, ddof=1)))
        assert (cell.low is None) == (len(row) > 1)  # one seed keeps its bootstrap interval
    assert [cell.rank for cell in cells] == rankdata(
        sign * np.array([cell.mean for cell in cells]), "min"
    ).tolist()
    assert [cell.best for cell in cells] == [cell.rank == 1 for cell in cells]


def test_missing_undefined_and_reference_measures() -> None:
    first = {"recall@1": Measure(0.5), "error_auroc": Measure(math.nan), "ausc_oracle": Measure(0.9)}
    rows = [
        MethodResult("a", [Evaluation(first)]),
        MethodResult("b", [Evaluation({"recall@1": Measure(0.4)})]),
    ]
    cells = compare_methods(rows).cells
    assert math.isnan(cells["a"]["error_auroc"].mean)
    assert cells["a"]["error_auroc"].rank is None
    assert cells["a"]["ausc_oracle"].rank is None  # a bound is no contest
    assert set(cells["b"]) == {"recall@1"}


def test_free_baselines_stand_beside_the_learned_uncertainty() -> None:
    def seed(learned: float | None, distance: float, ratio: float) -> Evaluation:
        return Evaluation(
            {} if learned is None else {"ood_fpr95/x": Measure(learned)},
            baselines={
                "distance": {"ood_fpr95/x": Measure(distance)},
                "ratio": {"ood_fpr95/x": Measure(ratio)},
            },
        )

    rows = [
        MethodResult("points", [seed(None, 0.3, 0.2), seed(None, 0.3, 0.6)]),
        MethodResult("b", [seed(0.5, 0.6, 0.4)]),
    ]
    cells = compare_methods(rows).cells
    assert (cells["points"]["ood_fpr95/x"].free, cells["points"]["ood_fpr95/x"].free_name) == (
        0.3,
        "distance",
    )
    assert math.isnan(cells["points"]["ood_fpr95/x"].mean)
    assert (cells["b"]["ood_fpr95/x"].free, cells["b"]["ood_fpr95/x"].rank) == (0.4, 1)


def test_wrong_names_are_refused() -> None:
    with pytest.raises(InputError, match="more than once"):
        compare_methods([method("a", [0.5]), method("a", [0.5])])
    with pytest.raises(InputError, match="Published numbers name b; the methods are a"):
        compare_methods([method("a", [0.5])], published={"b": {"recall@1": 0.5}})
    with pytest.raises(InputError, match="no evaluation"):
        MethodResult("a", [])
    with pytest.raises(InputError, match="no method to compare"):
        write_comparison("unwritten.html", title="x", rows=[])


def test_page_shows_numbers_marks_and_reasons(tmp_path: Path) -> None:
    rows, table = methods(q=200)
    write_comparison(tmp_path / "c.html", title="Benchmark", rows=rows, table=table)
    html = (tmp_path / "c.html").read_text()
    cell = table.cells["lam-online"]["recall@1"]
    marked = '<sup title="Better than deterministic (paired bootstrap, p = 0.002).">†</sup>'
    spread = f'<span class="spread"> ± {cell.std:.3f}</span>'
    assert f'<td class="number first"><span class="mean">{cell.mean:.3f}</span>{spread}{marked}' in html
    assert html.count("†: more than chance") == 1
    assert f"paper 0.850 ({cell.mean - 0.85:+.3f})".replace("-", "−") in html
    assert re.search(r"paper 0.020 <span class=\"warning\">not comparable<sup>\w</sup>", html)
    assert "Not comparable: the paper&#x27;s ECE drops every query" in html
    assert "ensemble, seed 2 failed" in html
    assert html.count("<details data-of=") == 3  # the fourth method has no pictures
    for figure in (
        "Reliability",
        "Out-of-distribution images found · digits",
        "Sparsification",
        "Risk and coverage",
    ):
        assert html.count(f"<b>{figure}</b>") == 1
    assert html.count(" · digits</b><") >= 3
    assert "deterministic: distance (free)" in html  # points borrow a free score, and say so


def test_learned_uncertainty_that_loses_to_a_free_one_says_so(tmp_path: Path) -> None:
    free = {"distance": {"error_auroc": Measure(0.8)}}
    rows = [MethodResult("a", [Evaluation({"error_auroc": Measure(0.7)}, baselines=free)])]
    write_comparison(tmp_path / "c.html", title="t", rows=rows)
    html = (tmp_path / "c.html").read_text()
    assert "does not beat the best free signal" in html
    assert '<span class="warning">free distance: 0.800</span>' in html  # in the tile too
    rows = [MethodResult("a", [Evaluation({"error_auroc": Measure(0.9)}, baselines=free)])]
    write_comparison(tmp_path / "c.html", title="t", rows=rows)
    assert "does not beat" not in (tmp_path / "c.html").read_text()


def test_parts_of_the_doubt_are_free_and_the_doubt_has_a_row_of_its_own() -> None:
    baselines = {"distance": {"error_auroc": Measure(0.8)}}
    doubts = {"disagreement": {"error_auroc": Measure(0.85)}, "doubt": {"error_auroc": Measure(0.9)}}
    row = MethodResult("a", [Evaluation({"error_auroc": Measure(0.7)}, baselines=baselines, doubts=doubts)])
    table = compare_methods([row])
    cell = table.cells["a"]["error_auroc"]
    assert (cell.free_name, cell.free) == ("disagreement", 0.85)
    older = ComparisonTable(
        table.metrics, {"a": {"error_auroc": replace(cell, free=0.8, free_name="distance", significant="so")}}
    )
    assert with_free(older, [row]).cells["a"]["error_auroc"] == replace(cell, significant="so")


def test_numbers_are_in_the_page_as_json(tmp_path: Path) -> None:
    rows = [MethodResult("</script>", [example(q=60), example(q=60, seed=1)], pictures(60))]
    write_comparison(tmp_path / "c.html", title="t", rows=rows)
    html = (tmp_path / "c.html").read_text()
    (block,) = re.findall(r'<script type="application/json" id="doubtless-comparison">(.*?)</script>', html)
    data = json.loads(block)
    assert data["table"] == json.loads(json.dumps(compare_methods(rows).to_json()))
    for written, evaluation in zip(data["methods"]["</script>"], rows[0].evaluations, strict=True):
        assert Evaluation.from_json(written).measures == evaluation.measures


def test_table_from_outside_is_shown_as_it_is(tmp_path: Path) -> None:
    table = ComparisonTable(["recall@1"], {"a": {"recall@1": Cell(0.5, low=0.4, high=0.6, rank=7)}})
    write_comparison(tmp_path / "c.html", title="t", rows=[method("a", [0.9])], table=table)
    html = (tmp_path / "c.html").read_text()
    assert "#7 · 0.400 – 0.600" in html
    assert "0.900" not in html.split("<script")[0]


def test_a_doubt_is_no_method_of_its_own(tmp_path: Path) -> None:
    rows = [method("a", [0.5]), method("a + doubt", [0.6]), method("b", [0.7])]
    write_comparison(tmp_path / "c.html", title="t", rows=rows)
    html = (tmp_path / "c.html").read_text()
    assert "2 methods, 1 seed each" in html
    assert "Rows “+ doubt” have the combined doubt for uncertainty." in html
    assert "more than chance" not in html  # nothing was tested


def test_footnotes_share_letters_and_go_past_z() -> None:
    notes = Footnotes()
    marks = [notes.mark(f"sentence {place % 30}") for place in range(60)]
    assert marks[:30] == marks[30:]
    assert (marks[0], marks[25], marks[26]) == ("<sup>a</sup>", "<sup>z</sup>", "<sup>aa</sup>")
    assert notes.listed().count("<li>") == 30
