"""What was measured, as a table asks for it: method × source of doubt × measure → mean and deviation over seeds."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from doubtless.files import read_json
from doubtless.metrics.catalogue import better

OWN = "own"
"""A method's own uncertainty, and with it all measures that need none."""
PICTURE, GALLERY = "the picture alone", "the gallery and its labels"
TRACKS = {
    PICTURE: (OWN, "norm"),
    GALLERY: ("distance", "ratio", "spread", "disagreement", "contested", "novelty", "doubt"),
}


def track_of(source: str) -> str:
    """What a source of doubt has to see.

    >>> track_of("norm"), track_of("novelty")
    ('the picture alone', 'the gallery and its labels')
    """
    return PICTURE if source in TRACKS[PICTURE] else GALLERY


@dataclass(frozen=True)
class Value:
    """A cell: the mean over seeds, and their standard deviation where there are several."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class Measured:
    """One suite's JSON."""

    result: dict[str, Any]

    @cached_property
    def runs(self) -> dict[str, list[dict[str, Any]]]:
        """Method → its runs; rows in the order of the suite."""
        found: dict[str, list[dict[str, Any]]] = {}
        for run in sorted(self.result["runs"], key=lambda run: run["seed"]):
            found.setdefault(run["method"], []).append(run)
        order = list(self.result["table"]["cells"])
        return dict(sorted(found.items(), key=lambda item: order.index(item[0])))

    @cached_property
    def sources(self) -> list[str]:
        """Every source of doubt that any run has, in the order of the tracks; those without a name there last."""
        found = {OWN} | {name for run in self.result["runs"] for name in (*run["baselines"], *run["doubts"])}
        order = [name for names in TRACKS.values() for name in names]
        return sorted(found, key=lambda name: (order.index(name) if name in order else len(order), name))

    @cached_property
    def ood(self) -> list[str]:
        """Names of the out-of-distribution sets."""
        counts = self.result["runs"][0]["counts"]
        return [name.removeprefix("ood/") for name in counts if name.startswith("ood/")]

    def value(self, method: str, source: str, metric: str) -> Value | None:
        """None where not every seed has this measure."""
        found = [_measures(run, source).get(metric, {}).get("value") for run in self.runs.get(method, [])]
        numbers = [number for number in found if number is not None]
        if not numbers or len(numbers) < len(found):
            return None
        return Value(statistics.fmean(numbers), statistics.stdev(numbers) if len(numbers) > 1 else None)

    def cells(self, metric: str, sources: list[str]) -> Iterator[tuple[str, str, Value]]:
        """Everything that has this measure, of all methods."""
        for method in self.runs:
            for source in sources:
                value = self.value(method, source, metric)
                if value is not None:
                    yield method, source, value

    def best(self, metric: str, sources: list[str]) -> set[tuple[str, str]]:
        """Method and source of the best mean; several where they are equal."""
        found = list(self.cells(metric, sources))
        return {
            (method, source)
            for method, source, value in found
            if not any(better(metric, other.mean, value.mean) for _, _, other in found)
        }


def _measures(run: dict[str, Any], source: str) -> dict[str, Any]:
    if source == OWN:
        measures: dict[str, Any] = run["measures"]
        return measures
    found: dict[str, Any] = {**run["baselines"], **run["doubts"]}.get(source, {})
    return found


def read(path: Path) -> Measured | None:
    """The results in a JSON file, if there is one."""
    return Measured(read_json(path)) if path.exists() else None
