"""docs/metrics.md lists every metric of ours, in the table of its group, with its direction."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from doubtless.metrics import METRICS, Metric

PAGE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
ARROWS = {True: "↑", False: "↓", None: ""}


def _is_ours(metric: Metric[Any]) -> bool:
    return metric.measure.__module__.startswith("doubtless.")


def test_every_metric_has_its_row() -> None:
    listed = {
        name: (section.splitlines()[0], arrow)
        for section in PAGE.split("\n## ")[1:]
        for name, arrow in re.findall(r"^\| `([\w@]+)` \| ?(\S?) ?\|", section, re.M)
    }
    ours = {
        name: metric for name, metric in METRICS.items() if _is_ours(metric) and not re.search(r"@\d", name)
    }
    # recall@1 stands with its family
    assert listed == {name: (metric.group, ARROWS[metric.higher]) for name, metric in ours.items()}
