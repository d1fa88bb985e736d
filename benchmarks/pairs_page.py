"""The page of what benchmarks/pairs.py measured."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from doubtless.files import write_text

Record = dict[str, Any]
KINDS = {
    "true": "two photos of it",
    "near": "a photo and the nearest of another product",
    "any": "photos of any two products",
}
NOTES = """*met*: divisions in which the target can be promised of this decision; *bound*: the mean of what is
promised, the target or the least that can be in its place (1: nothing, and the decision is never made). *made*:
divisions in which the decision is made at all; *broken*: those of them whose errors exceed the bound, as counted.

Half of the pairs of two products that the promise speaks of are nearest ones, and a tenth of all pairs shows what
is not in the gallery: with 65 products .05 can hardly ever be promised of *same*; what is left is *cannot tell*.
"""


def write_results(products: dict[str, list[Record]], faces: dict[str, Record], out: Path) -> None:
    """pairs.json and README.md from divisions of products per kind of features, and rates on published pairs."""
    result = {
        "command": "python benchmarks/pairs.py --cache features",
        "grocery": {name: summary(records) for name, records in products.items()},
        "lfw": faces,
    }
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "pairs.json", json.dumps(result, indent=1) + "\n")
    write_text(out / "README.md", page(result))


def summary(records: Sequence[Record]) -> Record:
    """Means over divisions, and how many there are."""
    return {"divisions": len(records), **_averaged(records)}


def _averaged(values: Sequence[Any]) -> Any:
    """The mean of numbers, leaf by leaf; of what is None in all, None."""
    first = values[0]
    if isinstance(first, dict):
        return {name: _averaged([value[name] for value in values]) for name in first}
    if isinstance(first, list | tuple):
        return [_averaged(list(column)) for column in zip(*values, strict=True)]
    there = [float(value) for value in values if value is not None]
    return round(sum(there) / len(there), 5) if there else None


def page(result: Record) -> str:
    """Markdown."""
    parts = [
        "# Two pictures: same, different, cannot tell",
        "Made by `benchmarks/pairs.py`, whose docstring is the protocol; the numbers are in `pairs.json`.",
        "## Products that look alike\n\nGrocery, 81 products, means over "
        f"{result['grocery']['raw']['divisions']} random divisions. Wanted is that the nearest other product is "
        "called *same* in at most 10 % of cases at a target error of .05; before pairs were calibrated with near "
        "ones it was in all.",
        _said(result["grocery"]),
        "## The promise\n\n" + NOTES.rstrip(),
        _promised(result["grocery"]),
        "## Faces\n\nPublished pairs of LFW, by the cosine of EfficientNet-lite0's features. A face network of "
        "others is [beside them](../faces/README.md).",
        _faces(result["lfw"]),
    ]
    return "\n\n".join(parts) + "\n"


def _said(found: dict[str, Record]) -> str:
    lines = [["features", "target", "pairs", "product", "same", "cannot tell", "different"]]
    for name, record in found.items():
        for target, one in record.items():
            if target == "divisions":
                continue
            for where, kinds in one["said"].items():
                for kind, (same, different) in kinds.items():
                    values = (same, 1 - same - different, different)
                    text = [f"{value:.3f}" for value in values]
                    known = "in the gallery" if where == "known" else "unknown"
                    lines.append([name, target, KINDS[kind], known, *text])
    return table(lines)


def _promised(found: dict[str, Record]) -> str:
    lines = [["features", "target", "decision", "met", "bound", "made", "error where made", "broken"]]
    for name, record in found.items():
        for target, one in record.items():
            if target == "divisions":
                continue
            for side, promise in one["promised"].items():
                count = record["divisions"]
                error = "–" if promise["error"] is None else f"{promise['error']:.4f}"
                made, broken = (f"{round(promise[key] * count)} of {count}" for key in ("made", "broken"))
                met = f"{round(promise['met'] * count)} of {count}"
                lines.append([name, target, side, met, f"{promise['bound']:.3f}", made, error, broken])
    return table(lines)


def _faces(found: dict[str, Record]) -> str:
    rates = [name for name in next(iter(found.values())) if name.startswith("tar@")]
    heads = [f"TAR@FAR {name.removeprefix('tar@')}" for name in rates]
    lines = [["list, features", "pairs", *heads, "EER"]]
    for name, one in found.items():
        values = [f"{one[key]:.3f}" for key in (*rates, "eer")]
        lines.append([name, str(one["pairs"]), *values])
    return table(lines)


def table(lines: Sequence[Sequence[str]]) -> str:
    """Markdown; the first line is the head."""
    whole = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in whole)
