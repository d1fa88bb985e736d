"""How long a suite will take: from runs that are done, else from a few training steps measured now."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

import torch

from doubtless.bench.plan import Job
from doubtless.config import Config
from doubtless.data import BalancedBatches, Batch
from doubtless.methods import Method, method_class
from doubtless.training.acceleration import best_device
from doubtless.training.parts import RunData, open_run_data

EVALUATION_SECONDS = 20.0  # start of a process, embedding, metrics and intervals of a thousand queries
STEPS = 3


def estimate_seconds(jobs: Sequence[Job]) -> dict[str, float]:
    """Method → seconds a run, on this machine, one run at a time."""
    seconds: dict[str, float] = {}
    for job in jobs:
        timing = job.folder / "timing.json"
        if timing.exists():
            seconds[job.method] = json.loads(timing.read_text())["train_seconds"] + EVALUATION_SECONDS
    for job in jobs:
        if job.method not in seconds:
            seconds[job.method] = _probe(job.config) + EVALUATION_SECONDS
    return seconds


def _probe(config: Config) -> float:
    """Steps of the real method on batches of the real shape, times their number; and those of its stages."""
    data = open_run_data(config)
    method = method_class(config.method)(config, data.spec)
    stages = list(method.stages().values())
    own = _probe_training(method, data)
    return own + (len(stages) * _probe(stages[0]) if stages else 0.0)  # members are alike


def _probe_training(method: Method, data: RunData) -> float:
    config = method.config
    if not method.trains or config.training.epochs == 0:
        return 0.0
    device = best_device(config.training.accelerator)
    method.to(device)
    options = config.training
    plan = BalancedBatches(data.train.labels, batch_size=options.batch_size, per_class=options.per_class)
    rows = plan.epoch(0)[0]
    shape = (
        (method.encoder.feature_dim,)
        if method.batch_kind == "features"
        else (data.spec.channels, *[data.spec.size] * 2)
    )
    batch = Batch(torch.rand(len(rows), *shape, device=device), data.train.labels[rows].to(device), rows)
    best = float("inf")
    for _ in range(STEPS):
        began = time.perf_counter()
        method.loss(batch).total.backward()
        if device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return best * len(plan) * options.epochs
