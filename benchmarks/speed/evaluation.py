"""How long an evaluation takes and how much memory it needs, beside pytorch-metric-learning on the same data.

    python benchmarks/speed/evaluation.py                  # all parts, each in a process of its own
    python benchmarks/speed/evaluation.py ours consensus   # some of them

Times are wall clock, with CPU seconds beside them: on a machine that others use too, CPU seconds over the
cores say what an idle one would take. Memory is the peak resident size above what imports and inputs hold.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

ITEMS, DIM, CLASSES = 60_000, 128, 11_316
TIME_LIMIT = 600
QUICK: dict[str, Any] = {"clusters": False, "consensus_samples": 0, "bootstrap": 0}


def online_products(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Locations (60000, 128), variances (60000, 1) and labels of 11,316 classes, as in Stanford Online Products."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(ITEMS) % CLASSES
    labels = labels[torch.randperm(ITEMS, generator=generator)]
    variance = 0.5 + torch.rand(ITEMS, 1, generator=generator)
    centre = torch.randn(CLASSES, DIM, generator=generator)
    noise = torch.randn(ITEMS, DIM, generator=generator)
    return centre[labels] + 1.3 * variance.sqrt() * noise, variance, labels


def ours() -> Callable[[], dict[str, float]]:
    """All metrics of `doubtless.metrics` but NMI, F1 and intervals, 10,000 OOD items among them."""
    from doubtless.embedding import Embedding
    from doubtless.evaluation import EvaluationOptions, evaluate

    location, variance, labels = online_products()
    generator = torch.Generator().manual_seed(1)
    other = Embedding.gaussian(
        torch.randn(10_000, DIM, generator=generator), 1 + torch.rand(10_000, 1, generator=generator)
    )
    embedding = Embedding.gaussian(location, variance)
    return lambda: _values(
        evaluate(embedding, labels, ood={"other": other}, options=EvaluationOptions(**QUICK))
    )


def ours_retrieval() -> Callable[[], dict[str, float]]:
    """What the peer computes, and the free baselines, on the same points."""
    from doubtless.embedding import Embedding
    from doubtless.evaluation import EvaluationOptions, evaluate

    location, _, labels = online_products()
    embedding = Embedding.point(normalize(location, dim=1))
    return lambda: _values(evaluate(embedding, labels, options=EvaluationOptions(ks=(1,), **QUICK)))


def peer() -> Callable[[], dict[str, float]]:
    """pytorch-metric-learning's AccuracyCalculator: precision@1, R-precision, MAP@R."""
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator

    location, _, labels = online_products()
    rows = normalize(location, dim=1)
    calculator = AccuracyCalculator(
        include=("precision_at_1", "r_precision", "mean_average_precision_at_r"),
        k="max_bin_count",
        device=torch.device("cpu"),
    )
    return lambda: calculator.get_accuracy(rows, labels)


def intervals() -> Callable[[], dict[str, float]]:
    """The same as `ours` with 1,000 bootstrap replicates behind every number."""
    from doubtless.embedding import Embedding
    from doubtless.evaluation import EvaluationOptions, evaluate

    location, variance, labels = online_products()
    embedding = Embedding.gaussian(location, variance)
    return lambda: _values(
        evaluate(embedding, labels, options=EvaluationOptions(**QUICK | {"bootstrap": 1000}))
    )


def consensus() -> Callable[[], dict[str, float]]:
    """Consensus ECE of 10,000 queries × 100 draws × 16 dimensions, leave-one-out."""
    from doubtless.embedding import Embedding
    from doubtless.evaluation import EvaluationOptions, evaluate

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(10_000) % 100
    variance = 0.3 + torch.rand(10_000, 1, generator=generator)
    location = torch.randn(100, 16, generator=generator)[labels]
    location = location + variance.sqrt() * torch.randn(10_000, 16, generator=generator)
    embedding = Embedding.gaussian(location, variance)
    return lambda: _values(
        evaluate(embedding, labels, options=EvaluationOptions(**QUICK | {"consensus_samples": 100}))
    )


def large_classes() -> Callable[[], dict[str, float]]:
    """MAP@R of 10,000 queries against 60,000 items with R = 6,000."""
    from doubtless.embedding import Embedding
    from doubtless.evaluation import EvaluationOptions, evaluate

    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(70_000) % 10
    location = torch.randn(10, 64, generator=generator)[labels] + 3 * torch.randn(
        70_000, 64, generator=generator
    )
    queries, gallery = Embedding.point(location[:10_000]), Embedding.point(location[10_000:])
    return lambda: _values(
        evaluate(
            queries,
            labels[:10_000],
            gallery=gallery,
            gallery_labels=labels[10_000:],
            options=EvaluationOptions(**QUICK),
        )
    )


PARTS = {
    "ours": ours,
    "retrieval": ours_retrieval,
    "peer": peer,
    "consensus": consensus,
    "large-classes": large_classes,
    "intervals": intervals,
}
BOUNDS = {"ours": (15, 1000), "consensus": (60, None)}  # seconds and MB promised by issue 3


def measure(name: str) -> None:
    """Runs one part in this process and prints what it took as one line of JSON."""
    import faiss  # noqa: F401  (part of the imports, not of the evaluation)

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    run = PARTS[name]()
    held = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    wall, used = time.perf_counter(), time.process_time()
    values = run()
    wall, used = time.perf_counter() - wall, time.process_time() - used
    print(json.dumps({"seconds": wall, "cpu": used, "megabytes": _memory("VmHWM") - held, "values": values}))


def main(chosen: list[str]) -> None:
    found = {}
    for name in chosen or list(PARTS):
        command = [sys.executable, __file__, "--part", name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)
        except subprocess.TimeoutExpired:
            print(f"{name:14} did not end within {TIME_LIMIT} s")
            continue
        if done.returncode:
            print(f"{name:14} failed: {done.stderr.strip().splitlines()[-1]}")
            continue
        found[name] = json.loads(done.stdout.strip().splitlines()[-1])
        print(_line(name, found[name]), flush=True)
    if {"retrieval", "peer"} <= set(found):
        _compare(found["retrieval"], found["peer"])


def _line(name: str, result: dict[str, Any]) -> str:
    seconds, megabytes = BOUNDS.get(name, (None, None))
    promised = f"   promised: {seconds} s" if seconds else ""
    promised += f", {megabytes} MB" if megabytes else ""
    shown = ", ".join(
        f"{key} {value:.4f}" for key, value in result["values"].items() if key in SHOWN and value is not None
    )
    return (
        f"{name:14} {result['seconds']:7.1f} s {result['cpu']:7.1f} CPU s {result['megabytes']:7.0f} MB"
        f"{promised}\n{'':14} {shown}"
    )


SHOWN = ("recall@1", "map@r", "r_precision", "error_auroc", "ece")
SHOWN += ("precision_at_1", "mean_average_precision_at_r")


def _compare(own: dict[str, Any], theirs: dict[str, Any]) -> None:
    print(
        f"peer / ours    {theirs['seconds'] / own['seconds']:.1f} × the time, "
        f"{theirs['megabytes'] / own['megabytes']:.1f} × the memory (same data, same metrics)"
    )


def _values(found: Any) -> dict[str, float]:
    return {name: measure.value for name, measure in found.measures.items()}


def _memory(field: str) -> float:
    """A line of /proc/self/status in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1000
    raise RuntimeError(f"no {field} in /proc/self/status")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--part"]:
        measure(sys.argv[2])
    else:
        main(sys.argv[1:])
