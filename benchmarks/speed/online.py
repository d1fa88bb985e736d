"""A step of `lam-online` beside the step of `deterministic`: loss, backward, optimiser.

    python benchmarks/speed/online.py                         # all sizes; a GPU is taken where there is one
    python benchmarks/speed/online.py --sizes resnet50,64,224,2048 --precision bf16
    OMP_NUM_THREADS=1 python benchmarks/speed/online.py --device cpu --sizes conv-fashion,32,28,8 --steps 3

A size is backbone,batch,pixels,D. Both methods have the same encoder, head, contrastive loss over all pairs and
Adam; the batch lies on the device. Rounds of steps alternate between the two in one process; a round is timed
from an idle device to an idle device, so that launching ahead counts as it does in training; the best round of
each is compared. `kernels` counts what a step launches (operators on a CPU).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from doubtless.config import make_config
from doubtless.data import Batch
from doubtless.methods import DataSpec, method_class

LIMITS = {"resnet50,64,224,2048": 1.05, "conv-fashion,256,28,3": 1.2, "conv-fashion,256,28,32": 1.2}
METHODS = ("deterministic", "lam-online")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=list(LIMITS), metavar="BACKBONE,BATCH,PIXELS,D")
    parser.add_argument("--precision", default="32", choices=["32", "bf16"])
    parser.add_argument("--approximation", default="fixed", choices=["fixed", "positive", "full"])
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--steps", type=int, default=20, help="steps in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    print(
        f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, precision {arguments.precision}, "
        f"{arguments.approximation}, {arguments.samples} sample(s)"
    )
    print(f"{'size':>24} {'method':>14} {'ms a step':>10} {'kernels':>8} {'ratio':>7}")
    rows = [row for size in arguments.sizes for row in measure(size, arguments, device)]
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


def measure(size: str, arguments: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    steps = {method: a_step(method, size, arguments, device) for method in METHODS}
    best = best_times(steps, device, arguments.steps, arguments.rounds)
    rows = []
    for method, step in steps.items():
        ratio = best[method] / best["deterministic"]
        kernels = count_kernels(step, device)
        rows.append(
            {"size": size, "method": method, "ms": 1e3 * best[method], "ratio": ratio, "kernels": kernels}
        )
        verdict = ""
        if method == "lam-online" and size in LIMITS:
            verdict = f"  {'within' if ratio <= LIMITS[size] else 'BEYOND'} {LIMITS[size]}"
        print(
            f"{size:>24} {method:>14} {1e3 * best[method]:>10.3f} {kernels:>8} {ratio:>7.3f}{verdict}",
            flush=True,
        )
    return rows


def a_step(name: str, size: str, arguments: argparse.Namespace, device: torch.device) -> Callable[[], None]:
    """One training step of a method on a batch that stays the same."""
    backbone, batch_size, pixels, dim = (
        part if not part.isdigit() else int(part) for part in size.split(",")
    )
    channels = 1 if str(backbone).startswith("conv-fashion") else 3
    config: dict[str, Any] = {
        "method": name,
        "data": {"source": "fashion-sample"},
        "model": {"backbone": backbone, "dim": dim},
        "loss": {"name": "contrastive", "margin": 0.7},
    }
    if name == "lam-online":
        config["laplace"] = {"approximation": arguments.approximation, "samples": arguments.samples}
    classes = max(2, int(batch_size) // 4)  # four images a class
    torch.manual_seed(0)
    spec = DataSpec(channels=channels, size=int(pixels), label_names=[str(label) for label in range(classes)])
    method = method_class(name)(make_config(config), spec).to(device).train()
    optimizer = torch.optim.Adam(method.parameters(), lr=1e-5)
    images = torch.randint(0, 256, (int(batch_size), channels, int(pixels), int(pixels)), dtype=torch.uint8)
    batch = Batch(
        images.to(device), (torch.arange(int(batch_size)) % classes).to(device), torch.arange(int(batch_size))
    )

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=arguments.precision == "bf16"):
            total = method.loss(batch).total
        total.backward()
        optimizer.step()

    return step


def best_times(
    calls: dict[str, Callable[[], None]], device: torch.device, steps: int, rounds: int
) -> dict[str, float]:
    """Seconds a step, the best round; turn by turn, so that a slow moment of the machine hits all."""
    best = dict.fromkeys(calls, float("inf"))
    for number in range(rounds + 1):  # the first one warms up
        for name, call in calls.items():
            synchronize(device)
            start = time.perf_counter()
            for _ in range(steps):
                call()
            synchronize(device)
            if number:
                best[name] = min(best[name], (time.perf_counter() - start) / steps)
    return best


def count_kernels(step: Callable[[], None], device: torch.device) -> int:
    """Kernels that one step launches; on a CPU the operators it runs, views left out."""
    on_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as trace:
        step()
        synchronize(device)
    events = trace.profiler.kineto_results.events()
    if on_gpu:
        return sum(1 for event in events if event.device_type() == torch.autograd.DeviceType.CUDA)
    views = {"aten::view", "aten::t", "aten::transpose", "aten::as_strided", "aten::detach", "aten::expand"}
    return sum(1 for event in events if event.name().startswith("aten::") and event.name() not in views)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
