"""The tables in benchmarks/results/README.md are what the JSON files beside it hold."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"
PAGE = (RESULTS / "README.md").read_text()

# section → table row → method of the suite
TABLES = {
    "baselines": {
        "deterministic (free: distance)": "deterministic",
        "LAM post-hoc": "lam-posthoc",
        "LAM online": "lam-online",
        "MC dropout": "mc-dropout",
        "ensemble, aligned": "ensemble",
        "ensemble, unaligned": "ensemble-unaligned",
        "PFE": "pfe",
        "HIB": "hib",
        "loss prediction": "loss-prediction",
    },
    "proxies": {
        "EL-nivMF": "el-nivmf",
        "EL-vMF": "el-vmf",
        "B-nivMF": "b-nivmf",
        "B-vMF": "b-vmf",
        "KL-nivMF": "kl-nivmf",
        "KL-vMF": "kl-vmf",
        "nivMF (log-likelihood)": "nivmf",
        "vMF (log-likelihood)": "vmf",
        "cosine (ProxyNCA++)": "cosine",
        "L2": "l2",
    },
    "triplets": {
        "triplet": "triplet",
        "triplet regression": "triplet-regression",
        "MC dropout, 50 samples": "mc-dropout",
        "Bayes triplet, by direction": "bayes-triplet",
        "Bayes triplet vMF, by direction": "bayes-triplet-vmf",
    },
}
# section → columns of fashion-sample, then of Omniglot; None: not looked up by name
COLUMNS: dict[str, tuple[list[str | None], list[str | None]]] = {
    "baselines": (["recall@1", "error_auroc", "ece", "ood_auroc/digits"], ["recall@1", "error_auroc", "ece"]),
    "proxies": (["recall@1", "map@r", "error_auroc"], ["recall@1", "map@r", "error_auroc"]),
    "triplets": (["recall@1", "map@5", None, "error_auroc"], ["recall@1", "map@5", None, "error_auroc"]),
}


def cells_of(suite: str) -> dict[str, Any]:
    return json.loads((RESULTS / f"{suite}.json").read_text())["table"]["cells"]


def row_of(section: str, label: str) -> list[str]:
    body = re.search(rf"^## {section}-.*?(?=^## |\Z)", PAGE, re.M | re.S)
    assert body is not None
    rows = [line.split("|")[1:-1] for line in body[0].splitlines() if line.startswith(f"| {label} |")]
    assert len(rows) == 1
    return [cell.strip().replace("*", "") for cell in rows[0][1:]]


@pytest.mark.parametrize("section", TABLES)
def test_table_is_what_was_measured(section: str) -> None:
    data = [cells_of(f"{section}-fashion-sample"), cells_of(f"{section}-omniglot")]
    compared = 0
    for label, method in TABLES[section].items():
        shown = iter(row_of(section, label))
        for cells, columns in zip(data, COLUMNS[section], strict=True):
            for metric in columns:
                cell = next(shown, "")
                found = re.match(r"\.(\d{3})(?: ± \.(\d{3}))?$", cell)
                measured = None if metric is None else cells[method].get(metric)
                if found is None or measured is None or measured["mean"] is None:
                    continue  # a free baseline, or a column of several numbers
                assert f"{measured['mean']:.3f}" == f"0.{found[1]}", (label, metric)
                if found[2]:
                    assert f"{measured['std']:.3f}" == f"0.{found[2]}", (label, metric)
                compared += 1
    assert compared >= 4 * len(TABLES[section])


def test_every_suite_that_was_run_has_its_page() -> None:
    for path in RESULTS.glob("*.json"):
        assert path.with_suffix(".html").exists()
        assert re.search(rf"\b{re.escape(path.stem)}\b", PAGE), path.stem
