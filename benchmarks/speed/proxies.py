"""A training step of EL-nivMF beside one of ProxyNCA++ and beside a loop over images: loss, backward, optimiser.

    python benchmarks/speed/proxies.py                               # a GPU is taken where there is one
    OMP_NUM_THREADS=1 python benchmarks/speed/proxies.py --device cpu --steps 1 --rounds 3
    python benchmarks/speed/proxies.py --backbone conv-fashion --pixels 28 --dim 32 --classes 10 --batch 128

EL-nivMF is `proxy: {similarity: elk, family: nivmf}` with 5 samples, ProxyNCA++ is `{similarity: cosine, family:
point}`: the same encoder, head, batch and Adam, and both learn proxies and temperature. The loop computes the same
expected likelihoods image by image through `torch.distributions`, as one would write it down first; the row of
pytorch-metric-learning is its ProxyNCALoss behind the same network. Rounds of steps alternate in one process; a
round is timed from an idle device to an idle device, so that launching ahead counts as it does in training; the
best round of each is compared. `kernels` counts what a step launches (operators on a CPU).
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from training_step import Step, best_times, count_kernels, machine, training_step, verdict

from doubtless.data import Batch
from doubtless.methods import Method
from doubtless.methods.proxy import Proxy

LIMIT = 1.1
BACKBONE = "efficientnet_lite0"  # the size that is judged
OPTIONS: dict[str, dict[str, Any]] = {
    "ProxyNCA++": {"similarity": "cosine", "family": "point"},
    "EL-vMF": {"similarity": "elk", "family": "vmf"},
    "EL-nivMF": {"similarity": "elk", "family": "nivmf"},
}


def main() -> None:
    arguments = parse_arguments()
    device = torch.device(arguments.device)
    print(
        f"{machine(device)}; {arguments.backbone} at "
        f"{arguments.pixels} px, batch {arguments.batch}, {arguments.classes} classes, D = {arguments.dim}, "
        f"{arguments.samples} samples"
    )
    steps = {row: a_step(arguments, device, proxy) for row, proxy in OPTIONS.items()}
    steps["pytorch-metric-learning"] = a_step(arguments, device, None)
    if not arguments.without_loop:
        steps["loop over images"] = a_step(arguments, device, OPTIONS["EL-nivMF"], loop=True)
    best = best_times(steps, device, arguments.steps, arguments.rounds)
    print(f"{'step':>24} {'ms':>10} {'kernels':>8} {'ratio':>7}")
    rows = []
    for row, step in steps.items():
        ratio, kernels = best[row] / best["ProxyNCA++"], count_kernels(step, device)
        rows.append({"step": row, "ms": 1e3 * best[row], "kernels": kernels, "ratio": ratio})
        judged = row == "EL-nivMF" and arguments.backbone == BACKBONE
        ending = verdict(ratio, LIMIT if judged else None)
        print(f"{row:>24} {1e3 * best[row]:>10.3f} {kernels:>8} {ratio:>7.3f}{ending}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--backbone", default=BACKBONE)
    for option, default in {"batch": 64, "pixels": 112, "classes": 100, "dim": 512, "samples": 5}.items():
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--steps", type=int, default=20, help="steps in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--without-loop", action="store_true", help="leave the loop over images out")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--json", type=Path, help="also write the rows here")
    return parser.parse_args()


def a_step(
    arguments: argparse.Namespace, device: torch.device, proxy: dict[str, Any] | None, *, loop: bool = False
) -> Step:
    """One training step; without options, pytorch-metric-learning's ProxyNCALoss."""
    of_loss = (
        {"proxy": {**proxy, "samples": arguments.samples}} if proxy else {"loss": {"name": "ProxyNCALoss"}}
    )
    config: dict[str, Any] = {
        "method": "proxy" if proxy else "deterministic",
        "model": {"backbone": arguments.backbone, "dim": arguments.dim},
        **of_loss,
    }
    return training_step(
        config,
        batch_size=arguments.batch,
        pixels=arguments.pixels,
        classes=arguments.classes,
        device=device,
        loss=looped_loss if loop else None,
    )


def looped_loss(method: Method, batch: Batch) -> Tensor:
    """EL-nivMF written down image by image: draws of one image, their densities under all classes, log-mean-exp."""
    assert isinstance(method, Proxy)
    loss = method.proxy_loss
    images, proxies = loss.images(method.head(method.features(batch.inputs))), loss.proxies()
    rows = []
    for number in range(len(batch.labels)):
        image = type(images)(images.direction[number], images.concentration[number], validate_args=False)
        draws = image.rsample((loss.samples,)).unsqueeze(1)  # (samples, 1, D)
        rows.append(proxies.log_prob(draws).logsumexp(0) - math.log(loss.samples))  # (classes,)
    return cross_entropy(torch.stack(rows) / loss.log_temperature.exp(), batch.labels)


if __name__ == "__main__":
    main()
