"""Several methods side by side: the table as plain data, and the page a benchmark writes.

`compare_methods` fills the table from evaluations (mean, spread, rank, published numbers); a benchmark that also
tests significance fills `Cell.significant` itself and passes its own table to `write_comparison`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from doubtless.errors import InputError
from doubtless.evaluation.result import Evaluation
from doubtless.files import write_text
from doubtless.metrics.catalogue import better, meaning
from doubtless.metrics.measure import Measure
from doubtless.report.images import ImageLookup
from doubtless.report.page import json_block

COMBINED = "doubt"
"""The doubt made of all signals, among an evaluation's doubts; the others are its free parts."""
WITH_DOUBT = f" + {COMBINED}"
"""Behind the name of a method in the row that has the combined doubt in place of its own uncertainty."""
NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class MethodResult:
    """A method and what was measured of it, one evaluation per seed; the first one is drawn."""

    name: str
    evaluations: Sequence[Evaluation]
    images: ImageLookup | None = None

    def __post_init__(self) -> None:
        if not self.evaluations:
            raise InputError(f"The method {self.name!r} has no evaluation; it needs one per seed.")


@dataclass(frozen=True)
class Cell:
    """One method's number for one metric. A method of points has no learned uncertainty: NaN, and `free` alone."""

    mean: float
    std: float | None = None  # over seeds; None for one seed
    low: float | None = None  # 95 % interval
    high: float | None = None
    rank: int | None = None  # 1 is best; equal means share a rank
    best: bool = False
    significant: str | None = None  # a sentence: "better than deterministic (paired bootstrap, p = 0.01)"
    published: float | None = None
    not_comparable: str | None = None  # why the published number measures something else
    free: float | None = None  # the best of the free signals around the method, mean over seeds
    free_name: str | None = None


@dataclass(frozen=True)
class ComparisonTable:
    """Method → metric → Cell, both in the order they are shown; notes stand below the tables."""

    metrics: Sequence[str]
    cells: Mapping[str, Mapping[str, Cell]]
    notes: Sequence[str] = field(default_factory=tuple)

    def to_json(self) -> dict[str, Any]:
        """Plain data. A value that is not finite becomes null."""
        return {
            "metrics": list(self.metrics),
            "cells": {
                method: {
                    metric: {key: _finite(value) for key, value in asdict(cell).items()}
                    for metric, cell in row.items()
                }
                for method, row in self.cells.items()
            },
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> ComparisonTable:
        """What `to_json` gave; a mean that is null becomes NaN."""
        cells = {
            method: {
                metric: Cell(**(cell | {"mean": math.nan if cell["mean"] is None else cell["mean"]}))
                for metric, cell in row.items()
            }
            for method, row in data["cells"].items()
        }
        return cls(data["metrics"], cells, data["notes"])


def compare_methods(
    rows: Sequence[MethodResult],
    *,
    metrics: Sequence[str] | None = None,
    published: Mapping[str, Mapping[str, float]] = NOTHING,
    not_comparable: Mapping[str, str] = NOTHING,
) -> ComparisonTable:
    """Mean ± standard deviation over seeds, and ranks.

    metrics         columns; all that any method has, if not given
    published       method → metric → a paper's number
    not_comparable  metric or row → why the paper's number measures something else

    >>> seeds = [Evaluation({"recall@1": Measure(0.5)}), Evaluation({"recall@1": Measure(0.7)})]
    >>> cell = compare_methods([MethodResult("a", seeds)]).cells["a"]["recall@1"]
    >>> round(cell.mean, 3), round(cell.std, 3)
    (0.6, 0.141)
    """
    _check_names(rows, published)
    if metrics is None:
        metrics = list(
            dict.fromkeys(name for row in rows for seed in row.evaluations for name in _measured(seed))
        )
    cells = {
        row.name: {metric: cell for metric in metrics if (cell := _cell(row, metric)) is not None}
        for row in rows
    }
    for metric in metrics:
        for name, rank in _ranks(metric, cells).items():
            cells[name][metric] = replace(cells[name][metric], rank=rank, best=rank == 1)
        for name, numbers in published.items():
            if metric in numbers and metric in cells[name]:
                cells[name][metric] = replace(
                    cells[name][metric],
                    published=numbers[metric],
                    not_comparable=not_comparable.get(metric, not_comparable.get(name)),
                )
    return ComparisonTable(metrics, cells)


def with_free(table: ComparisonTable, rows: Sequence[MethodResult]) -> ComparisonTable:
    """The table with the best free signal of each cell as `compare_methods` finds it now; all else stays."""
    now = compare_methods(rows, metrics=table.metrics).cells
    cells = {
        method: {
            metric: replace(cell, free=now[method][metric].free, free_name=now[method][metric].free_name)
            for metric, cell in row.items()
        }
        for method, row in table.cells.items()
    }
    return replace(table, cells=cells)


def write_comparison(
    path: str | Path,
    *,
    title: str,
    rows: Sequence[MethodResult],
    table: ComparisonTable | None = None,
    published: Mapping[str, Mapping[str, float]] = NOTHING,
    not_comparable: Mapping[str, str] = NOTHING,
    config: Mapping[str, Any] = NOTHING,
    versions: Mapping[str, str] = NOTHING,
    command: str | None = None,
    label_names: Sequence[str] | None = None,
) -> None:
    """Writes a benchmark's page: tables, curves of all methods (first seed) overlaid, histograms, examples.

    Without a `table` it is filled by `compare_methods` from `rows`, `published` and `not_comparable`. The numbers
    are also in the element ``doubtless-comparison`` as JSON.

    >>> from tempfile import TemporaryDirectory
    >>> row = MethodResult("triplet", [Evaluation({"recall@1": Measure(0.9)})])
    >>> with TemporaryDirectory() as folder:
    ...     write_comparison(Path(folder, "comparison.html"), title="Demo", rows=[row])
    ...     "triplet" in Path(folder, "comparison.html").read_text()
    True
    """
    from doubtless.report.comparison_sections import comparison_sections, lead
    from doubtless.report.page import Section, page, provenance

    if not rows:
        raise InputError("There is no method to compare; a comparison needs at least one.")
    if table is None:
        table = compare_methods(rows, published=published, not_comparable=not_comparable)
    made_with = provenance(config=config, versions=versions, command=command)
    sections = [
        *comparison_sections(rows, table, title=title, names=label_names),
        Section("provenance", "Made with", made_with),
    ]
    data = json_block(_json(rows, table), identifier="doubtless-comparison")
    write_text(path, page(title=title, lead=lead(rows), sections=sections, data=data, own="comparison"))


def redraw_comparison(
    path: str | Path, *, title: str, rows: Sequence[MethodResult], table: ComparisonTable
) -> None:
    """Writes a benchmark's page anew from its numbers; what they do not hold stays as the page has it.

    Curves and pictures are in the page alone, so that one which was measured elsewhere keeps its figures.

    >>> from tempfile import TemporaryDirectory
    >>> row = MethodResult("triplet", [Evaluation({"recall@1": Measure(0.9)})])
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder, "comparison.html")
    ...     write_comparison(file, title="Demo", rows=[row], command="doubtless bench demo")
    ...     redraw_comparison(file, title="Demo", rows=[row], table=compare_methods([row]))
    ...     "doubtless bench demo" in file.read_text()
    True
    """
    from doubtless.report.comparison_sections import lead, numbers_sections
    from doubtless.report.page import page, read_sections

    if not Path(path).is_file():
        raise InputError(f"There is no page {path} to draw anew.")
    drawn = numbers_sections(table, title=title)
    kept = [
        section
        for section in read_sections(Path(path).read_text(encoding="utf-8"))
        if section.identifier not in {one.identifier for one in drawn}
    ]
    data = json_block(_json(rows, table), identifier="doubtless-comparison")
    write_text(
        path, page(title=title, lead=lead(rows), sections=[*drawn, *kept], data=data, own="comparison")
    )


def _measured(evaluation: Evaluation) -> list[str]:
    return [
        *evaluation.measures,
        *(metric for baseline in evaluation.baselines.values() for metric in baseline),
    ]


def _json(rows: Sequence[MethodResult], table: ComparisonTable) -> dict[str, Any]:
    """The table and every seed's numbers; the curves stay in the runs' own files."""
    seeds = {row.name: [replace(seed, curves={}).to_json() for seed in row.evaluations] for row in rows}
    return {"schema": 1, "table": table.to_json(), "methods": seeds}


def _check_names(rows: Sequence[MethodResult], published: Mapping[str, Mapping[str, float]]) -> None:
    names = [row.name for row in rows]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(
            f"The methods {', '.join(repeated)} are there more than once; every row needs its own name."
        )
    unknown = sorted(set(published) - set(names))
    if unknown:
        raise InputError(f"Published numbers name {', '.join(unknown)}; the methods are {', '.join(names)}.")


def _cell(row: MethodResult, metric: str) -> Cell | None:
    measures = [seed.measures[metric] for seed in row.evaluations if metric in seed.measures]
    finite = [measure for measure in measures if math.isfinite(measure.value)]
    name, free = _best_free(row, metric)
    if not finite:
        return Cell(math.nan, free=free, free_name=name) if measures or name else None
    only: Measure | None = finite[0] if len(finite) == 1 else None
    values = [measure.value for measure in finite]
    return Cell(
        statistics.fmean(values),
        std=None if only else statistics.stdev(values),
        low=only.low if only else None,
        high=only.high if only else None,
        free=free,
        free_name=name,
    )


def _best_free(row: MethodResult, metric: str) -> tuple[str | None, float | None]:
    """The free signal with the best mean over seeds, of the picture or the gallery: what has to be beaten."""
    values: dict[str, list[float]] = {}
    for seed in row.evaluations:
        for name, signal in {**seed.baselines, **seed.doubts}.items():
            if name != COMBINED and metric in signal and math.isfinite(signal[metric].value):
                values.setdefault(name, []).append(signal[metric].value)
    best: tuple[str | None, float | None] = (None, None)
    for name, of_seeds in values.items():
        mean = statistics.fmean(of_seeds)
        if best[1] is None or better(metric, mean, best[1]):
            best = (name, mean)
    return best


def _ranks(metric: str, cells: Mapping[str, Mapping[str, Cell]]) -> dict[str, int]:
    higher = meaning(metric).higher
    if higher is None:
        return {}
    means = {
        name: row[metric].mean
        for name, row in cells.items()
        if metric in row and math.isfinite(row[metric].mean)
    }
    return {
        name: 1 + sum((other > mean) if higher else (other < mean) for other in means.values())
        for name, mean in means.items()
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
