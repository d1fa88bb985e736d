"""A step of `bayes-triplet` beside the step of `triplet`: loss, backward, optimiser.

    python benchmarks/speed/triplet.py                         # a GPU is taken where there is one
    python benchmarks/speed/triplet.py --methods triplet bayes-triplet bayes-triplet-vmf triplet-regression
    OMP_NUM_THREADS=1 python benchmarks/speed/triplet.py --device cpu --steps 1 --rounds 2

A size is backbone,batch,pixels,D. All have the same encoder with random weights, GeM pooling where it has a map of
features, Adam, and the triplets of one batch that lies on the device, 4 images a class. Rounds of steps alternate
between the methods in one process; a round is timed from an idle device to an idle device; the best round counts.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from training_step import Step, best_times, count_kernels, machine, numbers_of, training_step, verdict

PLAIN, JUDGED = "triplet", "bayes-triplet"
LIMITS = {"tf_efficientnet_lite0,128,112,512": 1.05}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=list(LIMITS), metavar="BACKBONE,BATCH,PIXELS,D")
    parser.add_argument("--methods", nargs="+", default=[PLAIN, JUDGED], help=f"{PLAIN} is always timed")
    parser.add_argument("--precision", default="32", choices=["32", "bf16"])
    parser.add_argument("--steps", type=int, default=10, help="steps in a round")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    print(f"{machine(device)}, precision {arguments.precision}")
    print(f"{'size':>34} {'method':>18} {'ms a step':>10} {'kernels':>8} {'ratio':>7}")
    rows = [row for size in arguments.sizes for row in measure(size, arguments, device)]
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


def measure(size: str, arguments: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    methods = dict.fromkeys((PLAIN, *arguments.methods))
    steps = {method: a_step(method, size, arguments.precision, device) for method in methods}
    best = best_times(steps, device, arguments.steps, arguments.rounds)
    rows = []
    for method, step in steps.items():
        ratio, kernels = best[method] / best[PLAIN], count_kernels(step, device)
        rows.append(
            {"size": size, "method": method, "ms": 1e3 * best[method], "ratio": ratio, "kernels": kernels}
        )
        ending = verdict(ratio, LIMITS.get(size) if method == JUDGED else None)
        print(
            f"{size:>34} {method:>18} {1e3 * best[method]:>10.3f} {kernels:>8} {ratio:>7.3f}{ending}",
            flush=True,
        )
    return rows


def a_step(name: str, size: str, precision: str, device: torch.device) -> Step:
    backbone, batch_size, pixels, dim = numbers_of(size)
    small = backbone.startswith("conv-")
    config: dict[str, Any] = {
        "method": name,
        "model": {"backbone": backbone, "dim": dim, "pooling": "auto" if small else "gem"},
        "loss": {"name": "triplet", "margin": 0.1},
    }
    return training_step(
        config,
        batch_size=batch_size,
        pixels=pixels,
        classes=max(2, batch_size // 4),
        device=device,
        precision=precision,
    )


if __name__ == "__main__":
    main()
