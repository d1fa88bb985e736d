"""How much every row was given: settings tried, epochs, batch, augmentation, and what most rows share."""

from __future__ import annotations

from collections import Counter
from typing import Any

from benchmarks.results_page.measured import Measured
from benchmarks.results_page.pages import SUITES
from benchmarks.results_page.writing import table
from doubtless.bench.budgets import Budget, budgets_of
from doubtless.bench.suite import load_suite


def budgets(measured: Measured) -> dict[str, Budget]:
    """As the results say; results from before they did: as the suite does, for its rows that were run."""
    result = measured.result
    if "budgets" in result:
        return {name: Budget(**entry) for name, entry in result["budgets"].items()}
    path = SUITES / f"{result['suite']}.yaml"
    found = budgets_of(load_suite(path)) if path.exists() else {}
    return {name: found[name] for name in measured.runs if name in found}


def written(measured: Measured) -> str:
    """The common recipe in a sentence, then a table of trials, of what differs, and of seeds where these differ."""
    found = budgets(measured)
    recipes = [recipe(entry) for entry in found.values() if entry.epochs]
    if not recipes:
        return ""
    common = dict(Counter(key_value for entry in recipes for key_value in entry.items()).most_common())
    usual = {
        key: max((count, value) for (name, value), count in common.items() if name == key)[1]
        for key in recipes[0]
    }
    seeds = {name: str(len(measured.runs[name])) for name in found}
    ragged = len(set(seeds.values())) > 1
    rows = []
    for name, entry in found.items():
        own = recipe(entry)
        shown = [
            ("as usual" if own[key] == usual[key] else own[key]) if entry.epochs else "" for key in usual
        ]
        rows.append([f"`{name}`", *([seeds[name]] if ragged else []), str(entry.trials), *shown])
    said = ", ".join(f"{key} {value}" for key, value in usual.items())
    allowed = measured.result.get("trials")
    most = f" No row may have more than {allowed} trials." if allowed is not None else ""
    return f"Usual recipe: {said}.{most}\n\n" + table(
        ["", *(["seeds"] if ragged else []), "trials", *usual], rows
    )


def recipe(entry: Budget) -> dict[str, str]:
    """What a reader compares."""
    return {
        "epochs": str(entry.epochs),
        "batch": str(entry.batch),
        "augmentation": ", ".join(entry.augmentation) or "none",
    }


def most(measured: Measured) -> dict[str, Any]:
    """Row → trials, where any were counted."""
    return {name: entry.trials for name, entry in budgets(measured).items()}
