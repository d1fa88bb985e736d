"""From finished runs to one comparison: table, significance, JSON and HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from doubtless.bench.budgets import budgets_of, check_budgets
from doubtless.bench.kept import NOTHING_KEPT, KeptRuns
from doubtless.bench.plan import Job
from doubtless.bench.suite import Suite
from doubtless.bench.worker import MADE_WITH, read_queries
from doubtless.data import open_source
from doubtless.errors import InputError
from doubtless.evaluation import Evaluation, QueryRecord
from doubtless.files import read_json, write_json
from doubtless.metrics import PairedComparison
from doubtless.metrics.bootstrap import Form, mean_form, paired_bootstraps
from doubtless.metrics.catalogue import better, metric_of
from doubtless.metrics.metric import work_out
from doubtless.metrics.views import Scored
from doubtless.report import (
    Cell,
    ComparisonTable,
    MethodResult,
    compare_methods,
    redraw_comparison,
    write_comparison,
)
from doubtless.report.comparison import COMBINED, WITH_DOUBT, with_free
from doubtless.runs import Run, open_run_data
from doubtless.runs.report import image_lookup, versions

REPLICATES = 2000
SEVERAL = " and "  # between the versions of several machines


def read_results(
    jobs: Sequence[Job], *, metrics: Sequence[str] | None = None, kept: KeptRuns = NOTHING_KEPT
) -> list[MethodResult]:
    """What was measured of every method that has a finished run, seeds in order; a kept one has no queries.

    A run's combined doubt is a row of its own where it has any of the `metrics` that are shown; None: all are.
    """
    rows: dict[str, list[Evaluation]] = {}
    for job in jobs:
        if job.is_done:
            evaluation = Evaluation.load(job.folder / "metrics.json")
            with_queries = replace(evaluation, queries=read_queries(job.folder / "queries.safetensors"))
            rows.setdefault(job.method, []).append(with_queries)
        elif (record := kept.of(job)) is not None:
            rows.setdefault(job.method, []).append(Evaluation.from_json(record))
    pictures = _pictures(jobs)
    results = []
    for name, seeds in rows.items():
        results.append(MethodResult(name, seeds, pictures))
        found_by_doubt = [seed.doubts.get(COMBINED, {}) for seed in seeds]
        if all(measures and (metrics is None or set(metrics) & set(measures)) for measures in found_by_doubt):
            results.append(MethodResult(name + WITH_DOUBT, [_by_doubt(seed) for seed in seeds]))
    return results


def _by_doubt(evaluation: Evaluation) -> Evaluation:
    """The same run with the combined doubt in place of its learned uncertainty: a row of its own."""
    queries = evaluation.queries
    if queries is not None:
        queries = QueryRecord(
            queries.index, queries.neighbor, queries.correct, queries.values[f"doubt/{COMBINED}"], {}
        )
    return Evaluation(dict(evaluation.doubts[COMBINED]), counts=evaluation.counts, queries=queries)


def make_table(suite: Suite, rows: Sequence[MethodResult]) -> ComparisonTable:
    """Means, spreads, ranks, published numbers; significance against the best of each column."""
    published = suite.published
    numbers = {} if published is None else published.methods
    present = {name: values for name, values in numbers.items() if name in {row.name for row in rows}}
    table = compare_methods(
        rows,
        metrics=suite.metrics,
        published=present,
        not_comparable={} if published is None else published.not_comparable,
    )
    cells = {name: dict(row) for name, row in table.cells.items()}
    pairs = [
        (best, row, metric)
        for metric in table.metrics
        if (best := next((row for row in rows if _is_best(cells[row.name].get(metric))), None))
        for row in rows
        if row is not best and metric in cells[row.name]
    ]
    for (best, row, metric), compared in zip(pairs, differences(pairs), strict=True):
        if compared is not None:
            sentence = _say(compared, best.name, metric)
            cells[row.name][metric] = replace(cells[row.name][metric], significant=sentence)
    notes = [f"Published numbers: {published.source}."] if published else []
    return ComparisonTable(table.metrics, cells, [*table.notes, *notes])


def difference(first: MethodResult, second: MethodResult, metric: str) -> PairedComparison | None:
    """Paired bootstrap over queries and seeds of a metric of the queries; None for OOD and clustering."""
    return differences([(first, second, metric)])[0]


def differences(pairs: Sequence[tuple[MethodResult, MethodResult, str]]) -> list[PairedComparison | None]:
    """`difference` of many pairs, on the same draws, so that each method is worked out once per draw."""
    rows = {str(id(row)): row for pair in pairs for row in pair[:2]}
    known = {key: _known_metrics(row) for key, row in rows.items()}
    sizes = {key: _query_counts(row) for key, row in rows.items()}
    keys = [(str(id(first)), str(id(second)), metric) for first, second, metric in pairs]
    by_size: dict[int, list[tuple[str, str, str]]] = {}
    for first, second, metric in keys:
        both = sizes[first] | sizes[second]
        if len(both) == 1 and metric in known[first] & known[second]:
            by_size.setdefault(both.pop(), []).append((first, second, metric))
    results: dict[tuple[str, str, str], PairedComparison] = {}
    for size, possible in by_size.items():
        metrics = {metric for _, _, metric in possible}
        compared = paired_bootstraps(
            {key: _seed_forms(row, known[key] & metrics) for key, row in rows.items()},
            possible,
            queries=size,
            generator=torch.Generator().manual_seed(0),
            replicates=REPLICATES,
        )
        results |= dict(zip(possible, compared, strict=True))
    return [results.get(key) for key in keys]


def write_results(
    suite: Suite,
    jobs: Sequence[Job],
    folder: Path,
    *,
    command: str = "",
    frozen: Mapping[str, Any] | None = None,
    kept: KeptRuns = NOTHING_KEPT,
) -> ComparisonTable:
    """JSON and HTML of these runs of the suite, with everything needed to make them again.

    command  what one types for it
    frozen   the commit its settings were in before anything was measured (`frozen_settings`)
    kept     runs of an earlier bench, for those whose folders are not there
    """
    shown = {job.method for job in jobs}
    budgets = {name: budget for name, budget in budgets_of(suite).items() if name in shown}
    check_budgets(suite, budgets)
    rows = read_results(jobs, metrics=suite.metrics, kept=kept)
    table = make_table(suite, rows)
    made_with = _made_with(jobs, kept)
    write_json(
        folder / f"{suite.name}.json",
        {
            "schema": 1,
            "suite": suite.name,
            "title": suite.title,
            "command": command,
            "versions": made_with,
            "seeds": list(dict.fromkeys(job.seed for job in jobs)),
            "tuned": suite.tuned,
            "trials": suite.trials,
            "budgets": {name: asdict(budget) for name, budget in budgets.items()},
            "untouched_ood": suite.untouched_ood,
            "frozen": frozen,
            "published": None if suite.published is None else suite.published.model_dump(),
            "table": table.to_json(),
            "runs": [record for job in jobs if (record := _record(job, kept)) is not None],
        },
        compact=True,
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


def redraw_results(name: str, folder: Path) -> ComparisonTable:
    """The suite's page from the JSON beside it, drawn anew or for the first time; the runs need not be at hand.

    What is free is looked up again in the runs' numbers, and noted in the JSON's table.
    """
    path = folder / f"{name}.json"
    if not path.is_file():
        raise InputError(f"There is no {path}; `doubtless bench {name}` writes it.")
    result = read_json(path)
    table = ComparisonTable.from_json(result["table"])
    seeds: dict[str, list[Evaluation]] = {}
    for run in result["runs"]:
        seeds.setdefault(run["method"], []).append(Evaluation.from_json(run))
    rows = [
        MethodResult(row, seeds[row])
        if row in seeds
        else MethodResult(row, [_by_doubt(seed) for seed in seeds[row.removesuffix(WITH_DOUBT)]])
        for row in table.cells
    ]
    table = with_free(table, rows)
    write_json(path, {**result, "table": table.to_json()}, compact=True)
    drawn, title = path.with_suffix(".html"), result["title"]
    if drawn.is_file():
        redraw_comparison(drawn, title=title, rows=rows, table=table)
    else:  # only the numbers were brought home
        command, versions = result["command"], result["versions"]
        write_comparison(drawn, title=title, rows=rows, table=table, versions=versions, command=command)
    return table


def _made_with(jobs: Sequence[Job], kept: KeptRuns) -> dict[str, str]:
    """Versions and device that measured the runs, which need not be those that draw the table; all, if several."""
    records = [read_json(file) for job in jobs if job.is_done and (file := job.folder / MADE_WITH).exists()]
    if any(kept.of(job) is not None and not job.is_done for job in jobs):
        records.insert(0, dict(kept.versions))
    names = list(dict.fromkeys(name for record in records for name in record))
    values = {
        name: dict.fromkeys(
            value for record in records if name in record for value in record[name].split(SEVERAL)
        )
        for name in names
    }
    return {name: SEVERAL.join(several) for name, several in values.items()} or versions()


def _record(job: Job, kept: KeptRuns) -> dict[str, Any] | None:
    """One run's numbers, from its folder or from where they are kept; None where it is still to be made."""
    return _run_record(job) if job.is_done else kept.of(job)


def _run_record(job: Job) -> dict[str, Any]:
    """One run's numbers without its curves, and without the folders of this machine."""
    numbers = replace(Evaluation.load(job.folder / "metrics.json"), curves={}).to_json()
    config = job.config.to_dict()
    config["data"].pop("root", None)
    if job.config.base is not None:
        config["base"] = Path(job.config.base).name
    return {"method": job.method, "seed": job.seed, "key": job.folder.name, "config": config, **numbers}


def _query_counts(row: MethodResult) -> set[int]:
    """How many queries its seeds have; one number where they can be paired."""
    return {len(seed.queries.index) for seed in row.evaluations if seed.queries is not None}


def _known_metrics(row: MethodResult) -> set[str]:
    """What can be worked out from weighted queries, for every seed."""
    known = []
    for seed in row.evaluations:
        if seed.queries is None:
            return set()
        one_draw = torch.ones(1, len(seed.queries.index), dtype=torch.double)
        by_uncertainty = {name for form in _uncertainty_forms(seed.queries) for name in form(one_draw)}
        known.append(set(seed.queries.values) | {name for name in by_uncertainty if _is_paired(name)})
    return set.intersection(*known)


def _is_paired(name: str) -> bool:
    metric = metric_of(name)
    return metric is None or metric.paired


def _uncertainty_forms(queries: QueryRecord) -> list[Form]:
    """The metrics of the learned uncertainty that can be worked out anew from weighted queries."""
    if queries.uncertainty is None:
        return []
    scored = Scored(queries.uncertainty, queries.correct, queries.values, learned=True)
    values, forms, _ = work_out(scored, paired_only=True)
    return [mean_form(values), *forms] if values else list(forms)


def _seed_forms(row: MethodResult, metrics: set[str]) -> list[Form]:
    """One form per seed that gives all of these metrics."""
    return [_form(seed.queries, metrics) for seed in row.evaluations if seed.queries is not None]


def _form(queries: QueryRecord, metrics: set[str]) -> Form:
    values = {name: value for name, value in queries.values.items() if name in metrics}
    forms = [mean_form(values)] if values else []
    if metrics - set(values):
        forms = [*_uncertainty_forms(queries), *forms]
    return lambda weights: {name: value for form in forms for name, value in form(weights).items()}


def _is_best(cell: Cell | None) -> bool:
    return cell is not None and cell.best


def _say(compared: PairedComparison, best: str, metric: str) -> str | None:
    """A sentence where the best is really better, None where it may be chance."""
    if not compared.significant or not better(metric, compared.difference, 0.0):
        return None
    return f"{best} is better by {abs(compared.difference):.3f} (paired bootstrap, p = {compared.p:.3f})"


def _pictures(jobs: Sequence[Job]) -> Any:
    """The test images, as the first run that is at hand divides them; None where none is."""
    job = next((job for job in jobs if job.is_done), None)
    if job is None:
        return None
    run = Run(job.folder)
    data = open_run_data(job.config, split=run.split)
    return image_lookup(data.test, None)
