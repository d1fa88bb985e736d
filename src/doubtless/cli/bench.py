"""`doubtless bench`: every method of a suite over its seeds, one comparison out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from doubtless.cli.records import records_csv, refuse_both

if TYPE_CHECKING:
    from doubtless.bench import Job, Suite
    from doubtless.bench.runner import Status


def bench(
    suite: Annotated[
        str | None, typer.Argument(help="Name of a suite, or a YAML file; without one, all are listed.")
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Folder with the data sets; $DOUBTLESS_DATA by default.")
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Runs at a time.")] = 1,
    seeds: Annotated[int | None, typer.Option(min=1, help="Only the first so many seeds.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only this method; several times for several.")
    ] = None,
    tune: Annotated[bool, typer.Option(help="First choose the grid's values on validation data.")] = False,
    tune_only: Annotated[
        bool,
        typer.Option("--tune-only", help="Choose them and stop, to commit them before test data are seen."),
    ] = False,
    extend: Annotated[
        bool,
        typer.Option("--extend", help="Take runs from the JSON in --out by their keys; make the others."),
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the JSON and HTML.")] = Path("benchmarks/results"),
    work: Annotated[Path, typer.Option(help="Folder for the runs; finished ones are used again.")] = Path(
        "runs/bench"
    ),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan with an estimate and stop.")
    ] = False,
    redraw: Annotated[
        bool,
        typer.Option("--redraw", help="Draw the page anew from its JSON, without any run; figures stay."),
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the table as CSV: mean and deviation.")] = False,
) -> None:
    """Train and measure every method of a suite over its seeds, and compare them.

    Finished runs are never trained again; a killed bench goes on where it was.

    Example: doubtless bench

    Example: doubtless bench demo --jobs 2
    """
    from doubtless.bench import load_suite, plan_jobs, run_suite
    from doubtless.bench.budgets import budgets_of, check_budgets
    from doubtless.bench.comparison import redraw_results, write_results
    from doubtless.bench.frozen import frozen_settings
    from doubtless.bench.kept import NOTHING_KEPT, jobs_to_make, kept_runs
    from doubtless.bench.suite import find_suite, tuned_path
    from doubtless.cli.tables import comparison_csv, print_comparison, print_json, recorded_command

    refuse_both(json, csv)
    if suite is None:
        _list_suites(json, csv)
        return
    if redraw:
        name = Path(suite).stem
        redraw_results(name, out)
        typer.echo(f"drawn anew: {out / name}.html")
        return
    whole = load_suite(suite)
    rows = _rows(whole, only)
    if (tune or tune_only) and not dry_run:
        for with_base in (False, True):  # a second stage starts from what was chosen for the first
            _tune(suite, whole, rows, work, data, jobs, with_base=with_base)
            whole = load_suite(suite)  # with what was chosen
        if tune_only:
            return
    every = plan_jobs(whole, work, root=data)
    kept = kept_runs(out / f"{whole.name}.json") if extend else NOTHING_KEPT
    wanted = [job for job in every if job.method in rows and job.seed in whole.seeds[:seeds]]
    plan = jobs_to_make(wanted, every, kept)
    check_budgets(whole, budgets_of(whole))
    path = find_suite(suite)
    frozen = frozen_settings([path, tuned_path(path)])  # before anything is measured
    if dry_run:
        _print_plan(plan, jobs, json=json, csv=csv)
        return
    if not plan:
        typer.echo(f"{out / whole.name}.json has all {len(wanted)} runs.", err=True)
        return
    failed = [status for status in run_suite(plan, parallel=jobs) if status.state == "failed"]
    if any(job.is_done for job in plan):
        shown, command = every if extend else wanted, recorded_command()
        table = write_results(whole, shown, out, command=command, frozen=frozen, kept=kept)
        if json:
            print_json(table.to_json())
        elif csv:
            typer.echo(comparison_csv(table), nl=False)
        else:
            print_comparison(table, whole.title)
            typer.echo(f"results: {out / whole.name}.json, {out / whole.name}.html")
    _stop_if_failed(failed, len(plan))


def _list_suites(json: bool, csv: bool) -> None:
    from doubtless.bench.suite import all_suites
    from doubtless.cli.listing import show

    rows = [
        (name, str(len(suite.methods)), str(len(suite.seeds)), suite.title) for name, suite in all_suites()
    ]
    show(("suite", "methods", "seeds", "what it compares"), rows, json, csv=csv)


def _rows(suite: Suite, only: list[str] | None) -> list[str]:
    """Those that were asked for; where none was, all."""
    from doubtless.errors import InputError, nearest

    for name in only or []:
        if name not in suite.methods:
            raise InputError(f"The suite {suite.name} has no method {name!r}{nearest(name, suite.methods)}")
    return only or list(suite.methods)


def _tune(
    name: str, suite: Suite, rows: list[str], work: Path, data: str | None, jobs: int, *, with_base: bool
) -> None:
    import yaml

    from doubtless.bench import run_suite
    from doubtless.bench.plan import choose, plan_tuning, save_choices
    from doubtless.bench.suite import find_suite, tuned_path

    plan = plan_tuning(suite, work, root=data, with_base=with_base, rows=rows)
    if not plan:
        return
    statuses = run_suite(plan, parallel=jobs)
    path = tuned_path(find_suite(name))
    before = yaml.safe_load(path.read_text()) if path.exists() else {}
    save_choices(path, {**before, **choose([job for job in plan if job.tuning])})
    typer.echo(f"chosen values: {path}", err=True)
    _stop_if_failed([status for status in statuses if status.state == "failed"], len(plan))


def _stop_if_failed(failed: list[Status], total: int) -> None:
    for status in failed:
        typer.echo(f"doubtless: {status.job.name} failed: {status.error}", err=True)
    if failed:
        typer.echo(f"doubtless: {len(failed)} of {total} runs failed; start again to retry them.", err=True)
        raise typer.Exit(1)


def _print_plan(plan: list[Job], jobs: int, *, json: bool, csv: bool) -> None:
    from rich.table import Table

    from doubtless.bench.plan import estimate_seconds
    from doubtless.cli.tables import print_json
    from doubtless.terminal import Terminal

    open_jobs = [job for job in plan if not job.is_done]
    seconds = estimate_seconds(open_jobs)
    total = sum(seconds[job.method] for job in open_jobs) / jobs
    rows = [{"run": job.name, "folder": str(job.folder), "done": job.is_done} for job in plan]
    if csv:
        typer.echo(records_csv(rows, ("run", "folder", "done")), nl=False)
        return
    if json:
        print_json({"runs": rows, "open": len(open_jobs), "estimated_seconds": round(total)})
        return
    table = Table("run", "folder", "state", "about")
    for job in plan:
        about = "" if job.is_done else f"{seconds[job.method]:.0f} s"
        table.add_row(job.name, str(job.folder), "done" if job.is_done else "to do", about)
    Terminal().print(table)
    typer.echo(
        f"{len(open_jobs)} of {len(plan)} runs to do, about {total / 60:.1f} minutes with {jobs} at a time"
    )
