"""Running a suite: jobs a few at a time, in processes forked from one that has imported everything they need.

A fresh interpreter spends seconds of processor time on imports, which on a fast device is most of a small run.
The server that forks never touches a device, so every run opens its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from doubtless.bench.plan import Job
from doubtless.cores import usable_cores, wait_asleep
from doubtless.files import write_text
from doubtless.memory import keep_freed
from doubtless.runs import Run
from doubtless.terminal import Terminal


@dataclass
class Status:
    """Where a job stands."""

    job: Job
    state: str = "waiting"
    seconds: float = 0.0
    error: str | None = None
    process: BaseProcess | None = field(default=None, repr=False)
    began: float = 0.0


def run_suite(jobs: Sequence[Job], *, parallel: int = 1, console: Console | None = None) -> list[Status]:
    """Makes every run that is not there yet and says how each went.

    A run that is done is taken as it is; one that was stopped is taken up from its last epoch.
    """
    console = console or Terminal(stderr=True)
    statuses = [Status(job, "done" if job.is_done else "waiting") for job in jobs]
    with _display(statuses, console) as show, _stopped_by_sigterm():
        try:
            while any(status.state in {"waiting", "running"} for status in statuses):
                _advance(statuses, parallel)
                show()
                time.sleep(0.2)
        finally:
            for status in statuses:
                if status.process is not None and status.process.is_alive():
                    status.process.terminate()
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


def _advance(statuses: Sequence[Status], parallel: int) -> None:
    """Notes what has ended and starts what there is room for."""
    running = [status for status in statuses if status.state == "running"]
    for status in running:
        assert status.process is not None
        code = status.process.exitcode
        status.seconds = time.perf_counter() - status.began
        if code is not None:
            status.state = "done" if code == 0 and status.job.is_done else "failed"
            status.error = None if status.state == "done" else _last_words(status.job)
    free = parallel - sum(status.state == "running" for status in statuses)
    _fail_without_base(statuses)
    for status in [status for status in statuses if _is_ready(status)][: max(free, 0)]:
        _start(status, parallel)


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


def _start(status: Status, parallel: int) -> None:
    job = status.job
    config = job.folder.parent / "configs" / f"{job.folder.name}.yaml"
    write_text(config, job.config.to_yaml())
    arguments = [str(config), str(job.folder)]
    if job.tuning:
        arguments.append("--train-only")
    if job.measures:
        arguments += ["--measure", str(job.base)]
    threads = int(os.environ.get("OMP_NUM_THREADS") or max(1, usable_cores() // parallel))
    status.process = start_worker(arguments, log=config.with_suffix(".log"), threads=threads)
    status.state, status.began = "running", time.perf_counter()


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


WORKER = "doubtless.bench.worker"
PRELOADED = [WORKER, "torch._dynamo", "pytorch_metric_learning.samplers", "sklearn.metrics", "faiss"]


def start_worker(arguments: Sequence[str], *, log: Path, threads: int) -> BaseProcess:
    """``python -m doubtless.bench.worker ARGUMENTS`` with all it prints in `log`, without the wait for imports."""
    wait_asleep()  # which the forking server reads when it loads its libraries
    work = (list(arguments), str(log), threads)
    process: BaseProcess
    if sys.platform == "linux":
        forking = multiprocessing.get_context("forkserver")
        forking.set_forkserver_preload(PRELOADED)
        process = forking.Process(target=_work, args=work)
    else:  # forking a process that has loaded system libraries is not safe there
        process = multiprocessing.get_context("spawn").Process(target=_work, args=work)
    process.start()
    return process


def _work(arguments: list[str], log: str, threads: int) -> None:
    import torch

    from doubtless.bench import worker

    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(written, 1)
    os.dup2(written, 2)
    torch.set_num_threads(threads)
    keep_freed()  # the process it was forked from is not the command line's
    # Training on several devices starts this process's command again, once per device.
    sys.modules["__main__"] = worker
    sys.argv = [str(worker.__file__), *arguments]
    worker.main(arguments)
