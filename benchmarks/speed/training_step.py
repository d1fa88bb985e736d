"""What the scripts share that time training steps: a step to call, the best of several rounds, its kernels.

Rounds of steps alternate between the calls in one process; a round is timed from an idle device to an idle device,
so that launching ahead counts as it does in training.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from doubtless.data import Batch
from doubtless.methods import DataSpec, Method, method_class
from doubtless.methods.configuration import make_config
from doubtless.runs.model import device_name

Step = Callable[[], None]


def training_step(
    config: dict[str, Any],
    *,
    batch_size: int,
    pixels: int,
    classes: int,
    device: torch.device,
    precision: str = "32",
    loss: Callable[[Method, Batch], Tensor] | None = None,
    prepare: Callable[[Method], None] | None = None,
) -> Step:
    """One step of Adam of a method on a batch of noise that stays the same; `loss` in place of the method's own.

    `prepare` is called with the method once it is on the device.
    """
    channels = 1 if config["model"]["backbone"] == "conv-fashion" else 3
    torch.manual_seed(0)
    spec = DataSpec(channels=channels, size=pixels, label_names=[str(label) for label in range(classes)])
    whole = {"data": {"source": "fashion-sample"}, **config}
    method = method_class(config["method"])(make_config(whole), spec).to(device).train()
    if prepare is not None:
        prepare(method)
    groups = [{**group, "lr": 1e-5 * group["lr_factor"]} for group in method.parameter_groups()]
    optimizer = torch.optim.Adam(groups, lr=1e-5)
    images = torch.randint(0, 256, (batch_size, channels, pixels, pixels), dtype=torch.uint8)
    labels = torch.arange(batch_size) % classes
    batch = Batch(images.to(device), labels.to(device), torch.arange(batch_size))

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16"):
            total = method.loss(batch).total if loss is None else loss(method, batch)
        total.backward()
        optimizer.step()

    return step


def numbers_of(size: str) -> tuple[str, int, int, int]:
    """Backbone, batch size, pixels and D of "backbone,batch,pixels,D"."""
    backbone, *numbers = size.split(",")
    batch_size, pixels, dim = (int(number) for number in numbers)
    return backbone, batch_size, pixels, dim


def best_times(calls: dict[str, Step], device: torch.device, steps: int, rounds: int) -> dict[str, float]:
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


def count_kernels(step: Step, device: torch.device) -> int:
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


def verdict(ratio: float, limit: float | None) -> str:
    """What stands behind a row that has a bar to stay within."""
    return "" if limit is None else f"  {'within' if ratio <= limit else 'BEYOND'} {limit}"


def machine(device: torch.device) -> str:
    """Device, threads and torch, for the first line."""
    return f"{device_name(device)}, {torch.get_num_threads()} threads, torch {torch.__version__}"


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()
