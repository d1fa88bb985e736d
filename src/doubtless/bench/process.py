"""Processes for the runs of a suite, forked from one that has imported everything they need.

A fresh interpreter spends 10 s and more of processor time on imports, which on a fast device is most of a small
run. The server that forks never touches a device, so every run opens its own.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

WORKER = "doubtless.bench.worker"
PRELOADED = [WORKER, "torch._dynamo", "pytorch_metric_learning.samplers", "sklearn.metrics", "faiss"]


def start_worker(arguments: Sequence[str], *, log: Path, threads: int) -> BaseProcess:
    """``python -m doubtless.bench.worker ARGUMENTS`` with all it prints in `log`, without the wait for imports."""
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
    # Training on several devices starts this process's command again, once a device.
    sys.modules["__main__"] = worker
    sys.argv = [str(worker.__file__), *arguments]
    worker.main(arguments)
