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
from pathlib import Path
from typing import Any

import torch
from training_step import Step, best_times, count_kernels, machine, numbers_of, training_step, verdict

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
    options = f"precision {arguments.precision}, {arguments.approximation}, {arguments.samples} sample(s)"
    print(f"{machine(device)}, {options}")
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
        ending = verdict(ratio, LIMITS.get(size) if method == "lam-online" else None)
        print(
            f"{size:>24} {method:>14} {1e3 * best[method]:>10.3f} {kernels:>8} {ratio:>7.3f}{ending}",
            flush=True,
        )
    return rows


def a_step(name: str, size: str, arguments: argparse.Namespace, device: torch.device) -> Step:
    backbone, batch_size, pixels, dim = numbers_of(size)
    config: dict[str, Any] = {
        "method": name,
        "model": {"backbone": backbone, "dim": dim},
        "loss": {"name": "contrastive", "margin": 0.7},
    }
    if name == "lam-online":
        config["laplace"] = {"approximation": arguments.approximation, "samples": arguments.samples}
    return training_step(
        config,
        batch_size=batch_size,
        pixels=pixels,
        classes=max(2, batch_size // 4),  # four images a class
        device=device,
        precision=arguments.precision,
    )


if __name__ == "__main__":
    main()
