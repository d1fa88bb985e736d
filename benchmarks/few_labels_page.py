"""The page of what benchmarks/few_labels.py measured."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean, median
from typing import Any

Record = dict[str, Any]
SETS = {
    "cub": "CUB, 100 test species",
    "lfw": "LFW, 1,711 test people",
    "grocery": "Grocery, 41 test products",
    "omniglot": "Omniglot, 200 test characters",
}
NOTES = """*promised*: divisions in which the target is; *or less*: in which anything is. *bound*: the mean of what
is promised, where anything is: the target or, where 200 answers do not show it, the least that they do, up to .25.
*coverage*: share of the queries accepted under a promise of the target, 0 where there is none. *broken*: divisions
whose promise, whichever it is, is exceeded; among the items every first hit is counted, queries are some hundred
that scatter. *by chance* asks about items in random order with the same bounds. *answers for as much*: medians over
divisions in which anything is promised, of how many answers it takes, by choosing and by chance, until as little
wrong is promised of as many hits as choosing got out of 200; "> 1,000" where more are needed in half of them.

Items of a division are drawn from the same photos as those of the next, so divisions are not independent.
"""


def summary(records: Sequence[Record], target: str) -> Record:
    """What a table says of one set and target.

    >>> said = {"bound": 0.1, "met": True, "coverage": 0.5, "by_items": 0.05, "by_queries": 0.2}
    >>> needs = {"review_needs": 120, "chance_needs": None}
    >>> one = {"0.1": {"review": said, "chance": {**said, "met": False}, "error": 0.1, **needs}}
    >>> told = summary([one], "0.1")
    >>> told["review"]["broken_by_items"], told["review"]["broken_by_queries"], told["chance_needs"]
    (0.0, 1.0, None)
    """
    told = [one[target] for one in records]
    made = [one for one in told if one["review"]["bound"] is not None]
    return {
        "divisions": len(told),
        **{way: _of_way([one[way] for one in told]) for way in ("review", "chance")},
        "error": mean(one["error"] for one in told),
        **{name: _median([one[name] for one in made]) for name in ("review_needs", "chance_needs")},
    }


def summaries(found: dict[str, list[Record]]) -> Record:
    """What the file keeps of every set."""
    return {
        name: {
            **{measure: mean(one[measure] for one in records) for measure in ("right", "expected", "error")},
            **{target: summary(records, target) for target in _targets(records)},
        }
        for name, records in found.items()
    }


def _targets(records: Sequence[Record]) -> list[str]:
    return [name for name in records[0] if name.replace(".", "").isdigit()]


def _median(answers: Sequence[int | None]) -> float | None:
    """None where it lies among those that were not enough."""
    middle = median(float("inf") if one is None else one for one in answers) if answers else float("inf")
    return None if middle == float("inf") else middle


def _of_way(told: Sequence[Record]) -> Record:
    made = [one for one in told if one["bound"] is not None]
    return {
        "made": len(made) / len(told),
        "met": mean(one["met"] for one in told),
        "bound": mean(one["bound"] for one in made) if made else None,
        "coverage": mean(one["coverage"] if one["met"] else 0.0 for one in told),
        "broken_by_items": sum(one["by_items"] > one["bound"] for one in made) / len(told),
        "broken_by_queries": sum(one["by_queries"] > one["bound"] for one in made) / len(told),
    }


def page(result: Record) -> str:
    """Markdown."""
    found = result["sets"]
    targets = _targets(next(iter(found.values())))
    parts = [
        "# Few labels or none",
        f"Made by `{result['command']}`, whose docstring is the protocol; the numbers are in `few-labels.json`.",
        *(_of_target(found, target) for target in targets),
        "## Before anybody answers\n\n" + _of_mixture(found, targets[0]),
        NOTES.strip(),
    ]
    return "\n\n".join(parts) + "\n"


def _of_target(found: dict[str, list[Record]], target: str) -> str:
    rows = []
    for name, records in found.items():
        told = summary(records, target)
        review, chance = told["review"], told["chance"]
        rows.append(
            [
                SETS[name],
                told["divisions"],
                _share(review["met"]),
                _share(review["made"]),
                _share(review["bound"]),
                _share(review["coverage"]),
                _share(review["broken_by_items"]),
                _share(review["broken_by_queries"]),
                _share(chance["met"]),
                _share(chance["made"]),
                _share(chance["bound"]),
                _share(chance["coverage"]),
                f"{_answers(told['review_needs'])}, {_answers(told['chance_needs'])}",
            ]
        )
    head = [
        *("set", "divisions", "promised", "or less", "bound", "coverage", "broken: items", "queries"),
        *("by chance: promised", "or less", "bound", "coverage", "answers for as much: chosen, by chance"),
    ]
    return f"## After 200 answers: at most {float(target):.0%} wrong\n\n{_table(head, rows)}"


def _of_mixture(found: dict[str, list[Record]], target: str) -> str:
    rows = [
        [
            SETS[name],
            _share(mean(one["right"] for one in records)),
            _share(mean(one["expected"] for one in records)),
            _share(mean(one["error"] for one in records)),
            _share(mean(one[target]["error"] for one in records)),
        ]
        for name, records in found.items()
    ]
    head = ["set", "first hits that are right", "expected without labels", "ECE", "ECE after 200 answers"]
    return _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(str(cell) for cell in line)} |" for line in lines)


def _answers(count: float | None) -> str:
    return "> 1,000" if count is None else f"{count:,.0f}"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
