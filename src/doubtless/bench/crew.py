"""Processes that make runs, one after another each."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from doubtless.cores import wait_asleep

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

WORKER = "doubtless.bench.worker"
PRELOADED = [WORKER, "torch._dynamo", "pytorch_metric_learning.samplers", "sklearn.metrics", "faiss"]
SEED = 67280421310721
"""What torch's random numbers start from in a new process."""


class Worker:
    """A process that does ``python -m doubtless.bench.worker ARGUMENTS`` as often as it is asked to.

    What went well leaves it as it was: it is asked again. What fails ends it, and with it all that may be broken.
    """

    def __init__(self, *, threads: int) -> None:
        wait_asleep()  # which the forking server reads when it loads its libraries
        self._pipe, theirs = multiprocessing.Pipe()
        self._process: BaseProcess
        if sys.platform == "linux":
            forking = multiprocessing.get_context("forkserver")
            forking.set_forkserver_preload(PRELOADED)
            self._process = forking.Process(target=_serve, args=(theirs, threads))
        else:  # forking a process that has loaded system libraries is not safe there
            self._process = multiprocessing.get_context("spawn").Process(
                target=_serve, args=(theirs, threads)
            )
        self._process.start()
        theirs.close()  # so that either side hears when the other one ends

    def begin(self, arguments: Sequence[str], *, log: Path) -> None:
        """Has it make a run; all that is printed goes into `log`."""
        self._pipe.send((list(arguments), str(log)))

    def went_well(self) -> bool | None:
        """Whether the run that was begun did; None while it is under way."""
        if self._pipe.poll():
            try:
                return bool(self._pipe.recv())
            except (EOFError, OSError):
                self._process.join()  # what it printed last is in the log then
                return False
        return None if self._process.is_alive() else False

    def stop(self) -> None:
        """Ends the process, and what it does."""
        self._pipe.close()
        if self._process.is_alive():
            self._process.terminate()


class Crew:
    """Workers: those that wait for a run, and how to get more. All end with it."""

    def __init__(self, *, threads: int) -> None:
        self._threads = threads
        self._all: list[Worker] = []
        self._waiting: list[Worker] = []

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._all:
            worker.stop()

    def free_worker(self) -> Worker:
        """One that waits, or a new one."""
        if self._waiting:
            return self._waiting.pop()
        worker = Worker(threads=self._threads)
        self._all.append(worker)
        return worker

    def take_back(self, worker: Worker) -> None:
        """It has done its work and waits for more."""
        self._waiting.append(worker)


def _serve(pipe: Connection, threads: int) -> None:
    import torch

    from doubtless.data.sources import kept_sources
    from doubtless.memory import keep_freed

    torch.set_num_threads(threads)
    keep_freed()  # the process it was forked from is not the command line's
    with kept_sources():
        while True:
            try:
                arguments, log = pipe.recv()
            except (EOFError, OSError):  # nobody is there who could ask
                return
            _work(arguments, log)
            pipe.send(True)


def _work(arguments: list[str], log: str) -> None:
    import torch

    from doubtless.bench import worker

    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(written, 1)
    os.dup2(written, 2)
    os.close(written)
    # Training on several devices starts this process's command again, once per device.
    sys.modules["__main__"] = worker
    sys.argv = [str(worker.__file__), *arguments]
    torch.manual_seed(SEED)
    worker.main(arguments)
    sys.stdout.flush()  # into this run's log, not the next one's
    gc.collect()  # graphs and networks of the last run
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # the processes beside this one use the same device
