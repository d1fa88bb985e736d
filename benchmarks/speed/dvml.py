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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from online import best_times, count_kernels

from doubtless.config import make_config
from doubtless.data import Batch
from doubtless.methods import DataSpec, method_class

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
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    print(
        f"{name}, {torch.get_num_threads()} threads, torch {torch.__version__}, precision {arguments.precision}, "
        f"loss {arguments.loss}"
    )
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
        verdict = ""
        if samples == JUDGED and size in LIMITS:
            verdict = f"  {'within' if ratio <= LIMITS[size] else 'BEYOND'} {LIMITS[size]}"
        print(
            f"{size:>34} {samples:>4} {1e3 * seconds:>10.3f} {kernels:>8} {ratio:>7.3f}{verdict}", flush=True
        )
    return rows


def a_step(
    samples: int, size: str, arguments: argparse.Namespace, device: torch.device
) -> Callable[[], None]:
    """One training step of `dvml` on a batch that stays the same."""
    backbone, *numbers = size.split(",")
    batch_size, pixels, dim = (int(number) for number in numbers)
    channels = 1 if backbone == "conv-fashion" else 3
    config = {
        "method": "dvml",
        "data": {"source": "fashion-sample"},
        "model": {"backbone": backbone, "dim": dim},
        "loss": {"name": arguments.loss},
        "dvml": {"samples": samples, "phase1_epochs": 0},
    }
    classes = batch_size // (20 if batch_size % 20 == 0 else 4)
    torch.manual_seed(0)
    spec = DataSpec(channels=channels, size=pixels, label_names=[str(label) for label in range(classes)])
    method = method_class("dvml")(make_config(config), spec).to(device).train()
    optimizer = torch.optim.Adam(method.parameters(), lr=1e-5)
    images = torch.randint(0, 256, (batch_size, channels, pixels, pixels), dtype=torch.uint8)
    labels = torch.arange(batch_size) % classes
    batch = Batch(images.to(device), labels.to(device), torch.arange(batch_size))

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=arguments.precision == "bf16"):
            total = method.loss(batch).total
        total.backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    main()
