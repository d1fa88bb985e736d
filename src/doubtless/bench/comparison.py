"""From finished runs to one comparison: table, significance, JSON and HTML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from doubtless.bench.plan import Job
from doubtless.bench.suite import Suite
from doubtless.bench.worker import read_queries
from doubtless.data import open_source
from doubtless.evaluation import Comparison, Evaluation, QueryRecord, paired_bootstrap
from doubtless.evaluation.uncertainty import RISKS, coverage_name, selective_form
from doubtless.files import write_json
from doubtless.report import Cell, ComparisonTable, MethodResult, compare, write_comparison
from doubtless.report.catalogue import better
from doubtless.training import Run, open_run_data
from doubtless.training.run_evaluation import image_lookup, recorded_command, versions

REPLICATES = 2000
RANKED = {"error_auroc", "ausc", *(coverage_name(risk) for risk in RISKS)}


def read_results(jobs: Sequence[Job]) -> list[MethodResult]:
    """What was measured of every method that has a finished run, seeds in order."""
    rows: dict[str, list[Evaluation]] = {}
    for job in jobs:
        if job.is_done:
            found = Evaluation.load(job.folder / "metrics.json")
            with_queries = replace(found, queries=read_queries(job.folder / "queries.safetensors"))
            rows.setdefault(job.method, []).append(with_queries)
    pictures = _pictures(jobs) if rows else None
    return [MethodResult(name, found, pictures) for name, found in rows.items()]


def make_table(suite: Suite, rows: Sequence[MethodResult]) -> ComparisonTable:
    """Means, spreads, ranks, published numbers; significance against the best of each column."""
    published = suite.published
    numbers = {} if published is None else published.methods
    present = {name: values for name, values in numbers.items() if name in {row.name for row in rows}}
    table = compare(
        rows,
        metrics=suite.metrics,
        published=present,
        not_comparable={} if published is None else published.not_comparable,
    )
    cells = {name: dict(found) for name, found in table.cells.items()}
    for metric in table.metrics:
        best = next((row for row in rows if _is_best(cells[row.name].get(metric))), None)
        for row in rows:
            cell = cells[row.name].get(metric)
            if best is None or cell is None or row is best:
                continue
            found = difference(best, row, metric)
            if found is not None:
                cells[row.name][metric] = replace(cell, significant=_say(found, best.name, metric))
    notes = [f"Published numbers: {published.source}."] if published else []
    return ComparisonTable(table.metrics, cells, [*table.notes, *notes])


def difference(first: MethodResult, second: MethodResult, metric: str) -> Comparison | None:
    """Paired bootstrap over queries and seeds of a metric of the queries; None for OOD and clustering."""
    sizes = {
        len(found.queries.index) for row in (first, second) for found in row.evaluations if found.queries
    }
    forms = [_forms(row, metric) for row in (first, second)]
    if len(sizes) != 1 or not all(forms):
        return None
    generator = torch.Generator().manual_seed(0)
    return paired_bootstrap(*forms, generator=generator, queries=sizes.pop(), replicates=REPLICATES)


def write_results(suite: Suite, jobs: Sequence[Job], folder: Path) -> ComparisonTable:
    """JSON and HTML of the suite, with everything needed to make them again."""
    rows = read_results(jobs)
    table = make_table(suite, rows)
    made_with = versions()
    command = recorded_command()
    write_json(
        folder / f"{suite.name}.json",
        {
            "schema": 1,
            "suite": suite.name,
            "title": suite.title,
            "command": command,
            "versions": made_with,
            "seeds": suite.seeds,
            "tuned": suite.tuned,
            "published": None if suite.published is None else suite.published.model_dump(),
            "table": table.to_json(),
            "runs": [_run_record(job) for job in jobs if job.is_done],
        },
    )
    write_comparison(
        folder / f"{suite.name}.html",
        title=suite.title,
        rows=rows,
        table=table,
        config=suite.model_dump(exclude={"published"}),
        versions=made_with,
        command=command,
        label_names=open_source(jobs[0].config.data.source, root=jobs[0].config.data.root).label_names,
    )
    return table


def _run_record(job: Job) -> dict[str, Any]:
    """One run's numbers without its curves."""
    found = replace(Evaluation.load(job.folder / "metrics.json"), curves={}).to_json()
    config = job.config.to_dict()
    config["data"].pop("root", None)
    return {"method": job.method, "seed": job.seed, "key": job.folder.name, "config": config, **found}


def _forms(row: MethodResult, metric: str) -> list[Callable[[Tensor], Tensor]]:
    """One function a seed from weights of the queries (b, n) to the metric (b,); empty where a seed has none."""
    forms = [_form(found.queries, metric) for found in row.evaluations if found.queries is not None]
    present = [form for form in forms if form is not None]
    return present if len(present) == len(row.evaluations) else []


def _form(queries: QueryRecord, metric: str) -> Callable[[Tensor], Tensor] | None:
    values, uncertainty = queries.values.get(metric), queries.uncertainty
    if values is not None:
        return mean_of(values)
    if metric in RANKED and uncertainty is not None:
        weighted = selective_form(uncertainty, queries.correct)
        return lambda weights: weighted(weights)[metric]
    return None


def mean_of(values: Tensor) -> Callable[[Tensor], Tensor]:
    """The mean of per-query values (n,) under weights (b, n)."""
    return lambda weights: weights @ values.double() / weights.sum(1)


def _is_best(cell: Cell | None) -> bool:
    return cell is not None and cell.best


def _say(found: Comparison, best: str, metric: str) -> str | None:
    """A sentence where the best is really better, None where it may be chance."""
    if not found.significant or not better(metric, found.difference, 0.0):
        return None
    return f"{best} is better by {abs(found.difference):.3f} (paired bootstrap, p = {found.p:.3f})"


def _pictures(jobs: Sequence[Job]) -> Any:
    job = next(job for job in jobs if job.is_done)
    run = Run(job.folder)
    data = open_run_data(job.config, split=run.split)
    return image_lookup(data.test, None)
