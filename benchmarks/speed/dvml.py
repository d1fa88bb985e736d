"""A step of `dvml` with T = 20 samples beside one with T = 1: loss, backward, optimiser.

    python benchmarks/speed/dvml.py                         # a GPU is taken where there is one
    python benchmarks/speed/dvml.py --samples 1 5 20 --loss contrastive --precision bf16
    OMP_NUM_THREADS=1 python benchmarks/speed/dvml.py --device cpu --sizes conv-fashion,24,12,8 --steps 1 --rounds 2

A size is backbone,batch,pixels,D. The encoder has random weights and is trained in the step, in phase 2, where the
decoder's gradient reaches it; the optimiser is Adam; the batch lies on the device, 20 images a class as in the
paper where it divides by 20, else 4. Rounds of steps alternate in one process; a round is timed from an idle device
to an idle device, so that launching ahead counts as it does in training; the best round of each is compared.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from training_step import Step, best_times, count_kernels, machine, numbers_of, training_step, verdict

LIMITS = {"tf_efficientnet_lite0,120,112,512": 1.2}
JUDGED = 20


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", nargs="+", default=list(LIMITS), metavar="BACKBONE,BATCH,PIXELS,D")
    parser.add_argument("--samples", nargs="+", type=int, default=[JUDGED], help="T; 1 is always timed")
    parser.add_argument(
        "--loss", default="triplet", help="contrastive, triplet or one of pytorch-metric-learning"
    )
    parser.add_argument("--precision", default="32", choices=["32", "bf16"])
    parser.add_argument("--steps", type=int, default=20, help="steps in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    print(f"{machine(device)}, precision {arguments.precision}, loss {arguments.loss}")
    print(f"{'size':>34} {'T':>4} {'ms a step':>10} {'kernels':>8} {'ratio':>7}")
    rows = [row for size in arguments.sizes for row in measure(size, arguments, device)]
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


def measure(size: str, arguments: argparse.Namespace, device: torch.device) -> list[dict[str, Any]]:
    counts = sorted({1, *arguments.samples})
    steps = {str(samples): a_step(samples, size, arguments, device) for samples in counts}
    best = best_times(steps, device, arguments.steps, arguments.rounds)
    rows = []
    for samples in counts:
        seconds, kernels = best[str(samples)], count_kernels(steps[str(samples)], device)
        ratio = seconds / best["1"]
        rows.append(
            {"size": size, "samples": samples, "ms": 1e3 * seconds, "ratio": ratio, "kernels": kernels}
        )
        ending = verdict(ratio, LIMITS.get(size) if samples == JUDGED else None)
        print(
            f"{size:>34} {samples:>4} {1e3 * seconds:>10.3f} {kernels:>8} {ratio:>7.3f}{ending}", flush=True
        )
    return rows


def a_step(samples: int, size: str, arguments: argparse.Namespace, device: torch.device) -> Step:
    backbone, batch_size, pixels, dim = numbers_of(size)
    config: dict[str, Any] = {
        "method": "dvml",
        "model": {"backbone": backbone, "dim": dim},
        "loss": {"name": arguments.loss},
        "dvml": {"samples": samples, "phase1_epochs": 0},
    }
    return training_step(
        config,
        batch_size=batch_size,
        pixels=pixels,
        classes=batch_size // (20 if batch_size % 20 == 0 else 4),
        device=device,
        precision=arguments.precision,
    )


if __name__ == "__main__":
    main()
