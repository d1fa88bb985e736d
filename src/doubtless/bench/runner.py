"""Running a suite: jobs a few at a time, in processes that make one run after another.

A fresh interpreter spends seconds on imports, a fresh process seconds more until the device is open, the images are
read and cuDNN has chosen its kernels, which is most of a small run. So processes are forked from one that has
imported everything they need and has touched no device, and go on to the next run as long as all goes well.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from doubtless.bench.crew import Crew, Worker
from doubtless.bench.plan import Job
from doubtless.cores import usable_cores
from doubtless.files import write_text
from doubtless.runs import Run
from doubtless.terminal import Terminal


@dataclass
class Status:
    """Where a job stands."""

    job: Job
    state: str = "waiting"
    seconds: float = 0.0
    error: str | None = None
    worker: Worker | None = field(default=None, repr=False)
    began: float = 0.0


def run_suite(jobs: Sequence[Job], *, parallel: int = 1, console: Console | None = None) -> list[Status]:
    """Makes every run that is not there yet and says how each went.

    A run that is done is taken as it is; one that was stopped is taken up from its last epoch.
    """
    console = console or Terminal(stderr=True)
    statuses = [Status(job, "done" if job.is_done else "waiting") for job in jobs]
    threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, usable_cores() // parallel))
    with _display(statuses, console) as show, _stopped_by_sigterm(), Crew(threads=threads) as crew:
        while any(status.state in {"waiting", "running"} for status in statuses):
            _advance(statuses, crew, parallel)
            show()
            time.sleep(0.2)
    return statuses


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """Ends as by Ctrl-C: the runs, which are processes of a server's, would otherwise go on alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _advance(statuses: Sequence[Status], crew: Crew, parallel: int) -> None:
    """Notes what has ended and starts what there is room for."""
    for status in [status for status in statuses if status.state == "running"]:
        assert status.worker is not None
        status.seconds = time.perf_counter() - status.began
        went_well = status.worker.went_well()
        if went_well is None:
            continue
        status.state = "done" if went_well and status.job.is_done else "failed"
        status.error = None if status.state == "done" else _last_words(status.job)
        if status.state == "done" and not _wears_out(status.job):
            crew.take_back(status.worker)
        else:
            status.worker.stop()
    free = parallel - sum(status.state == "running" for status in statuses)
    _fail_without_base(statuses)
    for status in [status for status in statuses if _is_ready(status)][: max(free, 0)]:
        _start(status, crew)


def _wears_out(job: Job) -> bool:
    """Several devices: their process group, and what it sets in the environment, would meet the next run."""
    return job.config.training.devices > 1 or job.config.training.nodes > 1


def _fail_without_base(statuses: Sequence[Status]) -> None:
    """A run whose base failed cannot be made either."""
    failed = {status.job.folder for status in statuses if status.state == "failed"}
    for status in statuses:
        if status.state == "waiting" and status.job.base in failed:
            status.state, status.error = "failed", f"its base {status.job.base.name} failed"


def _is_ready(status: Status) -> bool:
    """Waiting, and its base, where it has one, is finished."""
    base = status.job.base
    return status.state == "waiting" and (base is None or Run(base).is_finished)


def _start(status: Status, crew: Crew) -> None:
    job = status.job
    _take_from_tuning(job)
    config = job.folder.parent / "configs" / f"{job.folder.name}.yaml"
    write_text(config, job.config.to_yaml())
    arguments = [str(config), str(job.folder)]
    if job.tuning:
        arguments.append("--train-only")
    if job.measures:
        arguments += ["--measure", str(job.base)]
    status.worker = crew.free_worker()
    status.worker.begin(arguments, log=config.with_suffix(".log"))
    status.state, status.began = "running", time.perf_counter()


def _take_from_tuning(job: Job) -> None:
    """A network that was trained to choose a value is that of the run with this value: it has the same key."""
    if job.trained is None or job.folder.exists() or not Run(job.trained).is_finished:
        return
    copied = job.folder.with_name(f".{job.folder.name}")  # whole, or not there
    shutil.rmtree(copied, ignore_errors=True)
    shutil.copytree(job.trained, copied, ignore=shutil.ignore_patterns("*.ckpt"))
    copied.rename(job.folder)


def _last_words(job: Job) -> str:
    """The last line a failed run printed."""
    log = job.folder.parent / "configs" / f"{job.folder.name}.log"
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it ended without a word"


@contextlib.contextmanager
def _display(statuses: Sequence[Status], console: Console) -> Iterator[Any]:
    """A live table on a terminal; a line for each run that ends elsewhere."""
    if console.is_terminal:
        with Live(_table(statuses), console=console, refresh_per_second=4) as live:
            yield lambda: live.update(_table(statuses))
        return
    printed = {id(status) for status in statuses if status.state == "done"}
    if printed:
        console.print(f"{len(printed)} of {len(statuses)} runs are there already", highlight=False)

    def tell() -> None:
        for status in statuses:
            if status.state in {"done", "failed"} and id(status) not in printed:
                printed.add(id(status))
                ending = f": {status.error}" if status.error else ""
                console.print(
                    f"[{len(printed)}/{len(statuses)}] {status.job.name}: {status.state} "
                    f"in {status.seconds:.0f} s{ending}",
                    highlight=False,
                    markup=False,
                )

    yield tell
    tell()


def _table(statuses: Sequence[Status]) -> Group:
    table = Table("run", "state", "epoch", "validation map@r", "seconds")
    for status in statuses:
        log = Run(status.job.folder).log if status.state != "waiting" else []
        epochs = f"{len(log)}/{status.job.config.training.epochs}" if log else ""
        score = f"{max(row['validation_map@r'] for row in log):.4f}" if log else ""
        table.add_row(
            status.job.name, status.state, epochs, score, f"{status.seconds:.0f}" if status.seconds else ""
        )
    done = sum(status.state in {"done", "failed"} for status in statuses)
    return Group(table, f"{done} of {len(statuses)} runs")
