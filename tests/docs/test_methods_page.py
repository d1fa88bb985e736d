"""docs/methods.md lists every registered method, and only those; its figures are those that were measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

from doubtless.methods import all_methods

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "methods.md").read_text()


def test_every_method_has_its_row() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \|", PAGE, re.M)
    assert sorted(rows) == sorted(all_methods())


def test_the_table_of_second_heads_is_what_was_measured() -> None:
    sets = json.loads((ROOT / "benchmarks/results/second-heads/second-heads.json").read_text())["sets"]
    columns = [f"pfe {factor}" for factor in (1, 3, 10, 30, 100)]
    columns += [f"loss train {temperature}" for temperature in (0.03, 0.1, 0.3)]
    columns += ["loss validation 0.1", "loss auto 0.1"]
    for name, beginning in (("fashion", "| 12,000 of FashionMNIST"), ("omniglot", "| 700 of Omniglot")):
        (line,) = (line for line in PAGE.splitlines() if line.startswith(beginning))
        shown = [float(entry.strip(" *")) for entry in line.split("|")[2:-1]]
        assert shown == [round(sets[name][column]["error_auroc"], 3) for column in columns]
