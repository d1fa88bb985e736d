"""docs/results.md has the numbers of the JSON files it is made of, and says what they reached."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
RESULTS, PAGE = ROOT / "benchmarks" / "results", ROOT / "docs" / "results.md"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    path = ROOT / "benchmarks" / "results_page.py"
    spec = importlib.util.spec_from_file_location("results_page", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where its dataclasses look for their own types
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def omniglot() -> dict[str, Any]:
    """A result of another suite, with a paper's numbers put beside it."""
    result: dict[str, Any] = json.loads((RESULTS / "baselines-omniglot.json").read_text())
    result["published"] = {
        "source": "a paper",
        "methods": {"lam-online": {"recall@1": 0.5, "ausc": 0.7, "ood_auprc/fashion-sample": 0.3}},
        "not_comparable": {"ausc": "it is another area", "ood_auprc/fashion-sample": "other set sizes"},
    }
    return result


def row_of(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
    return [cell.strip() for cell in line.split("|")[3:-1]]  # after the name and the number of seeds


def test_the_page_is_what_the_script_makes_of_the_results(script: ModuleType) -> None:
    measured = [table.suite for table in script.TABLES if (RESULTS / f"{table.suite}.json").exists()]
    assert PAGE.exists() == bool(measured)
    if PAGE.exists():
        assert script.refreshed(PAGE.read_text(), RESULTS) == PAGE.read_text()


def test_what_is_written_by_hand_stays(script: ModuleType, omniglot: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "open-omniglot.json").write_text(json.dumps(omniglot))
    page = script.BEGUN.replace("## Omniglot, open set", "## Omniglot, open set\n\nWhat was tried: nothing.")
    once = script.refreshed(page, tmp_path)
    assert "What was tried: nothing." in once
    assert once.count("`lam-online`") == 1
    assert script.refreshed(once, tmp_path) == once
    assert script.refreshed(once, tmp_path / "empty") == page
    with pytest.raises(SystemExit, match="grocery-lite0"):
        script.refreshed(page.replace("<!-- grocery-lite0 -->", ""), tmp_path)


def test_cells_are_means_spreads_and_the_papers_numbers(script: ModuleType, omniglot: dict[str, Any]) -> None:
    text = script.written(script.Table("open-omniglot", "fashion-sample"), omniglot)
    runs = [run["measures"] for run in omniglot["runs"] if run["method"] == "lam-online"]
    recall = [run["recall@1"]["value"] for run in runs]
    mean = sum(recall) / len(recall)
    spread = (sum((value - mean) ** 2 for value in recall) / (len(recall) - 1)) ** 0.5
    shown = row_of(text, "`lam-online`")
    assert shown[0] == f"{mean:.3f} ± {spread:.3f} [0.50]".replace("0.", ".")
    assert re.fullmatch(r"\.\d{3} ± \.\d{3} \[\.30\\\*\]", shown[4])
    assert re.fullmatch(r"\.\d{3} ± \.\d{3} \[\.70\\\*\]", shown[5])
    assert re.fullmatch(r"\*\.\d{3}\*", row_of(text, "`deterministic`")[3])  # the best free one
    assert row_of(text, "`deterministic`")[6] == ""  # points have no draws, and so no consensus
    assert "\\* AUSC: it is another area." in text
    assert "13,180 queries of 659 classes, 1,000 of fashion-sample" in text
    assert f"| `lam-online` | {len(runs)} |" in text


def test_the_best_of_a_column_is_bold_and_only_that(script: ModuleType, omniglot: dict[str, Any]) -> None:
    text = script.written(script.Table("open-omniglot", "fashion-sample"), omniglot)
    cells = omniglot["table"]["cells"]
    for place, metric, best in ((0, "recall@1", max), (6, "ece", min)):
        means = {name: cell["mean"] for name in cells if (cell := cells[name].get(metric)) and cell["mean"]}
        bold = {name for name in means if row_of(text, f"`{name}`")[place].startswith("**")}
        assert bold == {best(means, key=lambda name: means[name])}


def test_goals_say_by_how_much_they_are_missed(script: ModuleType, omniglot: dict[str, Any]) -> None:
    cells = omniglot["table"]["cells"]
    cells["lam-online + doubt"] = {"ausc": {**cells["lam-online"]["ausc"], "mean": 0.9}}
    for metric, mean in (("recall@1", 0.8), ("ece", 0.013), ("ausc", 0.5)):
        cells["lam-online"][metric]["mean"] = mean
    bounds = {"R@1": 0.81, "AUSC": 0.89, "ECE": 0.01, "OOD AUPRC": 0.5}
    alone, together = (script.Goal("lam-online", bounds, with_doubt=doubt) for doubt in (False, True))
    table = script.Table("open-omniglot", "fashion-sample", 2.5, (alone, together))
    said = script.goals_of(table, omniglot).splitlines()
    assert "- R@1 ≥ .81: .800, missed by .010" in said
    assert "- AUSC ≥ .89: .500, missed by .390" in said
    assert "- AUSC ≥ .89: .900, **reached**" in said
    assert "- ECE ≤ .01: .013, missed by .003" in said
    cells["lam-online"]["ece"]["mean"] = 0.0104
    assert "- ECE ≤ .01: .0104, missed by .0004" in script.goals_of(table, omniglot)
    assert any(
        re.search(r"OOD AUPRC at 1 : 1 ≥ \.50: \.\d+, not at the paper's 2\.5 : 1", line) for line in said
    )


def test_precision_at_the_papers_ratio_is_taken_where_it_was_measured(
    script: ModuleType, omniglot: dict[str, Any]
) -> None:
    name = "ood_auprc_reweighted/fashion-sample"
    omniglot["table"]["metrics"].append(name)
    cell = omniglot["table"]["cells"]["lam-online"]["recall@1"]
    omniglot["table"]["cells"]["lam-online"][name] = {**cell, "mean": 0.6, "std": 0.01, "best": False}
    text = script.written(script.Table("open-omniglot", "fashion-sample", 2.5), omniglot)
    assert "OOD AUPRC at 2.5 : 1" in text
    assert row_of(text, "`lam-online`")[4] == "**.600 ± .010** [.30]"
