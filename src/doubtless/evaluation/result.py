"""What an evaluation gives: numbers with intervals, curves, what each query got. Plain data, JSON both ways."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from doubtless.errors import FileError, InputError
from doubtless.evaluation.ordered import JointOrder
from doubtless.files import read_json, reading, write_json
from doubtless.metrics.measure import Curve, Measure

SCHEMA = 1
LINES = 10
"""Of an evaluation that is printed."""
SIZES = {"queries": "queries", "gallery": "in the gallery", "classes": "labels"}
FIRST = ("recall@1", "map@r", "top1_by_label", "error_auroc", "ausc", "aurc", "ece", "nmi")
"""What is printed before all else."""


@dataclass(frozen=True)
class QueryRecord:
    """What each query got, tensors of one entry per query that counts (those with a positive in the gallery).

    Kept apart from the JSON: paired comparisons between methods and the figures need it.
    """

    index: Tensor  # (q,) position in the query set
    neighbor: Tensor  # (q,) position of the first hit in the gallery
    correct: Tensor  # (q,) bool: the first hit is right
    uncertainty: Tensor | None  # (q,) None for points
    values: dict[str, Tensor] = field(default_factory=dict)
    """Metric name → (q,) its value for each query; "baseline/<name>" → (q,) a free uncertainty, "doubt/<name>" →
    (q,) one that was given."""


@dataclass(frozen=True)
class Evaluation:
    """All that was measured of one embedding.

    measures    "recall@1" → Measure. OOD metrics carry the set's name: "ood_auroc/digits"
    baselines   free uncertainty ("distance", "ratio", "spread", "norm") → its error_auroc, ausc, ood_auroc/…
    counts      queries, gallery, classes, without_positive, ood/<name>
    protocol    how it was measured: kind ("leave-one-out" | "query-gallery"), samples, bootstrap, seed, notes
    doubts      further doubts by name, such as the combined one of `Doubt` → the same metrics
    curves      figure → line → Curve. Figures: "sparsification" (lines "uncertainty", "oracle", "random",
                free baselines), "risk_coverage", "roc/<ood>", "reliability",
                "oscr", "open_risk" (where labels were left out of the gallery),
                "histogram/<ood>" (lines "id", "ood": x = bin centres, y = share),
                "deciles" (map@r by tenth of each uncertainty), "ranked/<ood>" (share of OOD images by tenth of both
                sets together), "disturbed/<how>" and "crops" (where images were disturbed)
    orders      OOD set → its images and the queries in one order; like `queries` not in the JSON
    """

    measures: dict[str, Measure]
    baselines: dict[str, dict[str, Measure]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, dict[str, Curve]] = field(default_factory=dict)
    queries: QueryRecord | None = None
    doubts: dict[str, dict[str, Measure]] = field(default_factory=dict)
    orders: dict[str, JointOrder] = field(default_factory=dict)

    def __getitem__(self, name: str) -> float:
        """The value of a measure: ``evaluation["recall@1"]``."""
        if name not in self.measures:
            raise InputError(f"There is no measure {name!r}; there are {', '.join(self.measures)}.")
        return self.measures[name].value

    def __str__(self) -> str:
        """A table of ten lines: how it was measured, what matters most with its interval, and what else there is.

        >>> print(Evaluation({"recall@1": Measure(0.8, 0.75, 0.85)}, counts={"queries": 100, "gallery": 100}))
        100 queries, 100 in the gallery
        recall@1                 0.8000    0.7500 – 0.8500
        """
        kind = [str(self.protocol["kind"])] if "kind" in self.protocol else []
        sizes = [f"{self.counts[name]:,} {word}" for name, word in SIZES.items() if name in self.counts]
        known = [name for name in FIRST if name in self.measures]
        named = [*known, *(name for name in self.measures if name not in known)]
        shown = named if len(named) <= LINES - 1 else named[: LINES - 2]
        lines = [", ".join([*sizes, *kind]) or "evaluation"]
        for name in shown:
            measure = self.measures[name]
            whole = measure.low is not None and measure.high is not None
            interval = f"{measure.low:.4f} – {measure.high:.4f}" if whole else ""
            lines.append(f"{name:<24} {measure.value:.4f}    {interval}".rstrip())
        if len(shown) < len(named):
            lines.append(f"{len(named) - len(shown)} more in .measures, baselines in .baselines")
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Everything but `queries` and `orders`. A value that is not finite becomes null."""
        return {
            "schema": SCHEMA,
            "measures": {name: _measure_json(measure) for name, measure in self.measures.items()},
            "baselines": _rows_json(self.baselines),
            "doubts": _rows_json(self.doubts),
            "counts": dict(self.counts),
            "protocol": dict(self.protocol),
            "curves": {
                figure: {line: _curve_json(curve) for line, curve in lines.items()}
                for figure, lines in self.curves.items()
            },
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Evaluation:
        """What `to_json` gave; null becomes NaN."""
        if data.get("schema", 0) > SCHEMA:
            raise InputError("These metrics were written by a newer doubtless; update to read them.")
        return cls(
            measures={name: _measure(measure) for name, measure in data["measures"].items()},
            baselines=_rows(data["baselines"]),
            doubts=_rows(data.get("doubts", {})),  # files before there were any have none
            counts=dict(data["counts"]),
            protocol=dict(data["protocol"]),
            curves={
                figure: {line: Curve(**curve) for line, curve in lines.items()}
                for figure, lines in data["curves"].items()
            },
        )

    def save(self, path: str | Path) -> None:
        """Writes `to_json` into a file."""
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Evaluation:
        """Reads what `save` wrote; `queries` is None, and there are no `orders`."""
        with reading(path, "evaluation", kind=FileError, then="Evaluate again."):
            return cls.from_json(read_json(path))


def _rows_json(rows: Mapping[str, Mapping[str, Measure]]) -> dict[str, dict[str, Any]]:
    return {
        name: {metric: _measure_json(measure) for metric, measure in row.items()}
        for name, row in rows.items()
    }


def _rows(data: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Measure]]:
    return {name: {metric: _measure(value) for metric, value in row.items()} for name, row in data.items()}


def _measure_json(measure: Measure) -> dict[str, float | None]:
    return {name: _finite(getattr(measure, name)) for name in ("value", "low", "high")}


def _measure(data: Mapping[str, float | None]) -> Measure:
    value = data["value"]
    return Measure(math.nan if value is None else value, data.get("low"), data.get("high"))


def _curve_json(curve: Curve) -> dict[str, list[float | None] | None]:
    return {
        "x": [_finite(value) for value in curve.x],
        "y": [_finite(value) for value in curve.y],
        "weight": None if curve.weight is None else [_finite(value) for value in curve.weight],
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
