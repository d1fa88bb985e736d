"""The table of the demo is what was measured, and ten lines are ten; test_pages.py runs the blocks."""

from __future__ import annotations

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GUIDES = ROOT / "docs" / "guides"


def test_ten_lines_are_ten() -> None:
    first = re.findall(r"```python\n(.*?)```", (GUIDES / "python.md").read_text(), re.DOTALL)[0]
    assert len([line for line in first.splitlines() if line]) == 10


def test_table_is_what_the_benchmark_measured() -> None:
    measured = json.loads((ROOT / "benchmarks/results/demo.json").read_text())["table"]["cells"]
    rows = (GUIDES / "comparing.md").read_text().split("<!-- demo table -->")[1].split("\n\n")[0]
    shown = re.findall(
        r"^\| \**([\w-]+)\** \| \**\.(\d{3}) ± \.(\d{3})\** \| \**\.(\d{3})", rows, re.MULTILINE
    )
    names = {"ProxyAnchor": "proxy-anchor"}
    assert len(shown) == 3
    for name, recall, spread, precision in shown:
        cells = measured[names.get(name, name)]
        assert f"{cells['recall@1']['mean']:.3f}" == f"0.{recall}"
        assert f"{cells['recall@1']['std']:.3f}" == f"0.{spread}"
        assert f"{cells['map@r']['mean']:.3f}" == f"0.{precision}"
