"""How often test or out-of-distribution figures had been seen when settings were chosen: a record kept by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from benchmarks.results_page.pages import PAGES, SUITES

RECORD = SUITES / "tuned" / "looks.yaml"


def looks(path: Path = RECORD) -> dict[str, list[dict[str, Any]]]:
    """Suite → every look: when, what was seen, what was chosen after it."""
    found: dict[str, list[dict[str, Any]]] = yaml.safe_load(path.read_text())
    return found


def counted(record: dict[str, list[dict[str, Any]]]) -> str:
    """A list per data set: how many looks, and each of them."""
    parts = []
    for page in PAGES:
        for suite in page.suites:
            if suite in record:
                parts.append(_of_suite(page.title, suite, record[suite]))
    return "\n\n".join(parts)


def _of_suite(title: str, suite: str, entries: list[dict[str, Any]]) -> str:
    choosing = [entry for entry in entries if entry["chosen"] != "nothing"]
    lines = [
        f"**{title}**, `{suite}`: seen {len(entries)} times; settings were changed after {len(choosing)} of them.",
        "",
    ]
    for entry in entries:
        lines.append(f"1. {entry['when']}: {entry['seen']}. Chosen after it: {entry['chosen']}.")
    return "\n".join(lines)
