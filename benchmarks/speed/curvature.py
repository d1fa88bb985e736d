"""Time and memory of the closed-form curvature, beside the head's own step and a per-pair implementation.

    python benchmarks/speed/curvature.py                      # all four shapes
    OMP_NUM_THREADS=1 python benchmarks/speed/curvature.py    # steadier on a machine with other work
    python benchmarks/speed/curvature.py --shapes 256,1024,16 --repeats 20 --device cuda

All numbers of a row are measured in one process, turn by turn, the best of several. `head` is the linear layer
alone: forward, and backward to weight, bias and features. `step` adds normalisation and the contrastive loss.
A ratio is time over `head`. `extra` is the peak of allocated memory above what was there before, over the
bound 3·D·F + 3·B·(D+F) + 4·B² floats. The per-pair implementation forms one (D, F) matrix a pair, on a few
pairs, and is scaled up to all of them (≈).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear, normalize
from torch.profiler import ProfilerActivity, profile

from doubtless.laplace import contrastive_ggn, pair_weight_matrix

SHAPES = ["64,9216,3", "256,1024,16", "64,2048,2048", "512,2048,512"]
APPROXIMATIONS = ["fixed", "positive", "full"]
FIXED_LIMIT = 2.0  # `fixed` over the head's forward and backward, for the two large shapes
PAIRS_TIMED = 32
MARGIN = 2.0  # every negative pair counts: the most that `full` can have to do


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="B,F,D")
    parser.add_argument("--geometry", default="arccos", choices=["arccos", "euclidean"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    print(
        f"{device}, {torch.get_num_threads()} threads, torch {torch.__version__}, {arguments.geometry}, float32"
    )
    print(f"{'B,F,D':>14} {'what':>9} {'ms':>10} {'/head':>8} {'/step':>8} {'extra MB':>9} {'/bound':>7}")
    rows = []
    for shape in arguments.shapes:
        rows += measure(shape, arguments.geometry, device, arguments.repeats)
    for row in rows:
        if row["what"] == "fixed" and row["shape"] in SHAPES[2:]:
            verdict = "within" if row["over_head"] <= FIXED_LIMIT else "BEYOND"
            print(f"{row['shape']}: fixed is {row['over_head']:.2f}x the head, {verdict} {FIXED_LIMIT}x")
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


def measure(shape: str, geometry: str, device: torch.device, repeats: int) -> list[dict]:
    batch, width, dim = (int(part) for part in shape.split(","))
    generator = torch.Generator(device).manual_seed(0)
    features = torch.randn(batch, width, generator=generator, device=device).relu_()
    weight = torch.randn(dim, width, generator=generator, device=device) / width**0.5
    bias = torch.zeros(dim, device=device)
    labels = torch.arange(batch, device=device) % max(2, batch // 8)  # eight images a class
    upstream = torch.randn(batch, dim, generator=generator, device=device)

    def curvature(approximation: str) -> Callable[[], object]:
        return lambda: contrastive_ggn(
            features, weight, bias, labels, margin=MARGIN, geometry=geometry, approximation=approximation
        )

    calls: dict[str, Callable[[], object]] = {
        "head": lambda: head_step(features, weight, bias, upstream),
        "step": lambda: full_step(features, weight, bias, labels),
        **{name: curvature(name) for name in APPROXIMATIONS},
        "per pair": lambda: per_pair(features, weight, bias, labels, PAIRS_TIMED),
    }
    best = best_times(calls, device, repeats)
    best["per pair"] *= batch * (batch - 1) / 2 / PAIRS_TIMED
    bound = 4 * (3 * dim * width + 3 * batch * (dim + width) + 4 * batch**2)  # bytes
    rows = []
    for name, call in calls.items():
        extra = peak_memory(call, device)
        rows.append(
            {
                "shape": shape, "what": name, "ms": 1e3 * best[name], "over_head": best[name] / best["head"],
                "over_step": best[name] / best["step"], "extra_mb": extra / 1e6, "of_bound": extra / bound,
            }
        )  # fmt: skip
        sign = "≈" if name == "per pair" else ""
        print(
            f"{shape:>14} {name:>9} {sign + format(1e3 * best[name], '.2f'):>10} {best[name] / best['head']:>8.2f} "
            f"{best[name] / best['step']:>8.2f} {extra / 1e6:>9.2f} {extra / bound:>7.2f}",
            flush=True,
        )
    return rows


def head_step(features: Tensor, weight: Tensor, bias: Tensor, upstream: Tensor) -> tuple[Tensor, ...]:
    inputs = [tensor.detach().requires_grad_() for tensor in (features, weight, bias)]
    return torch.autograd.grad(linear(*inputs), inputs, upstream)


def full_step(features: Tensor, weight: Tensor, bias: Tensor, labels: Tensor) -> tuple[Tensor, ...]:
    inputs = [tensor.detach().requires_grad_() for tensor in (features, weight, bias)]
    unit = normalize(linear(*inputs))
    pairs = pair_weight_matrix(unit.detach(), labels, margin=MARGIN)
    return torch.autograd.grad(0.5 * (pairs * (1 - unit @ unit.T)).sum(), inputs)


def per_pair(features: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, pairs: int) -> Tensor:
    """`arccos` `full` as the formula of one pair reads: (D, F) a pair, added up."""
    outputs = linear(features, weight, bias)
    norm = outputs.norm(dim=1)
    unit = outputs / norm.unsqueeze(1)
    total = torch.zeros_like(weight)
    for number in range(pairs):
        i, j = number % len(features), (number + 1) % len(features)
        c, product = unit[i] @ unit[j], unit[i] * unit[j]
        own = [(c + 2 * product - 3 * c * unit[k].square()) / norm[k].square() for k in (i, j)]
        cross = -(1 - unit[i].square() - unit[j].square() + c * product) / (norm[i] * norm[j])
        total += torch.outer(own[0], features[i].square())
        total += torch.outer(own[1], features[j].square())
        total += 2 * torch.outer(cross, features[i] * features[j])
    return total


def best_times(
    calls: dict[str, Callable[[], object]], device: torch.device, repeats: int
) -> dict[str, float]:
    """Seconds, the best of several; turn by turn, so that a slow moment of the machine hits all."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats + 1):  # the first one warms up
        for name, call in calls.items():
            synchronize(device)
            start = time.perf_counter()
            call()
            synchronize(device)
            best[name] = min(best[name], time.perf_counter() - start)
    return best


def peak_memory(call: Callable[[], object], device: torch.device) -> int:
    """Bytes allocated at the worst moment of a call, its result included, its input not."""
    call()
    if device.type == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
        result = call()
    del result
    events = [event for event in trace.profiler.kineto_results.events() if event.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()  # negative where memory is given back
        peak = max(peak, now)
    return peak


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
