"""A whole training: 20 epochs of 60,000 28×28 images with conv-fashion at batch 256, as `doubtless train` does it.

    python benchmarks/speed/epochs.py                                     # a GPU is taken where there is one
    OMP_NUM_THREADS=2 python benchmarks/speed/epochs.py --images 2000 --epochs 2 --rounds 1

Every row is trained from its configuration by `train_run`: data on the device, balanced batches, validation on
6,667 more images and a checkpoint after every epoch. `training` is from the first step to the last checkpoint;
`whole` has opening the data and, online, tuning τ and λ besides. The images are noise, which takes as long as any
other. `by hand` is what a user would write: the same network, pytorch-metric-learning's contrastive loss over all
pairs, fused Adam, batches indexed on the device, and neither validation nor checkpoints; two epochs of it are timed
and multiplied. Rows take turns; the best round of each is printed.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from training_step import machine, synchronize, verdict

from doubtless.methods.configuration import make_config
from doubtless.models import Encoder
from doubtless.training import train_run

SECONDS = 8.0  # for 20 epochs of 60,000 images on an H200
ONLINE = 1.2  # times the deterministic training
BATCH, VALIDATION = 256, 0.1
BY_HAND = 2  # epochs


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--dim", type=int, default=3)
    parser.add_argument("--optimizer", default="rmsprop", choices=["adam", "rmsprop"])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"{machine(device)}; {options.epochs} epochs of {options.images:,} images, {options.optimizer}")
    best: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        source = noise(Path(folder), options.images)
        for number in range(options.rounds):
            for method in ("deterministic", "lam-online"):
                keep_best(best, method, train(method, source, options, Path(folder) / f"{method}-{number}"))
            keep_best(best, "by hand", by_hand(source, options, device))
    show(best, is_reference=device.type == "cuda" and (options.images, options.epochs) == (60_000, 20))


def noise(folder: Path, count: int) -> Path:
    """An npz source of so many training images, and a ninth more to validate on."""
    draw = np.random.default_rng(0)
    whole = round(count / (1 - VALIDATION))
    arrays: dict[str, Any] = {}
    for part, size in (("train", whole), ("test", 100)):
        arrays[f"x_{part}"] = draw.integers(0, 256, (size, 28, 28), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(size) % 10
    np.savez(folder / "noise.npz", **arrays)
    return folder / "noise.npz"


def train(method: str, source: Path, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Seconds from the first step to the last checkpoint, and of everything."""
    config = {
        "method": method,
        "data": {"source": f"npz:{source}", "validation": VALIDATION},
        "model": {"backbone": "conv-fashion", "dim": options.dim},
        "loss": {"name": "contrastive", "margin": 0.7},
        "training": {"epochs": options.epochs, "batch_size": BATCH, "optimizer": options.optimizer},
    }
    began = time.perf_counter()
    run = train_run(make_config(config), folder, quiet=True)
    whole = time.perf_counter() - began
    first_step = (folder / "split.json").stat().st_mtime  # written before the network is made
    return {
        "training": run.checkpoint.stat().st_mtime - first_step,
        "epochs": sum(row["seconds"] for row in run.log),
        "whole": whole,
    }


def by_hand(source: Path, options: argparse.Namespace, device: torch.device) -> dict[str, float]:
    """The plain loop, without validation."""
    from pytorch_metric_learning.losses import ContrastiveLoss

    images = torch.from_numpy(np.load(source)["x_train"]).unsqueeze(1).to(device)
    labels = torch.arange(len(images), device=device) % 10
    torch.manual_seed(0)
    encoder = Encoder("conv-fashion", channels=1, size=28)
    network = torch.nn.Sequential(encoder, torch.nn.Linear(encoder.feature_dim, options.dim)).to(device)
    loss = ContrastiveLoss(neg_margin=0.7)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=device.type == "cuda")
    synchronize(device)
    began = time.perf_counter()
    for _ in range(BY_HAND):
        order = torch.randperm(options.images, device=device)
        for rows in order.split(BATCH)[: options.images // BATCH]:
            optimizer.zero_grad()
            loss(network(images[rows]), labels[rows]).backward()
            optimizer.step()
    synchronize(device)
    return {"training": (time.perf_counter() - began) * options.epochs / BY_HAND}


def keep_best(best: dict[str, dict[str, float]], name: str, found: dict[str, float]) -> None:
    print(f"  {name}: {found['training']:.2f} s", flush=True)
    if name not in best or found["training"] < best[name]["training"]:
        best[name] = found


def show(best: dict[str, dict[str, float]], *, is_reference: bool) -> None:
    deterministic = best["deterministic"]["training"]
    print(f"{'':>14} {'training':>9} {'epochs':>9} {'whole':>9} {'ratio':>7}")
    for name, found in best.items():
        ratio = found["training"] / deterministic
        seconds = " ".join(
            f"{found[column]:>8.2f}s" if column in found else " " * 9
            for column in ("training", "epochs", "whole")
        )
        ending = ""
        if name == "deterministic" and is_reference:
            ending = verdict(deterministic, SECONDS) + " s"
        elif name == "lam-online":
            ending = verdict(ratio, ONLINE if is_reference else None)
        print(f"{name:>14} {seconds} {ratio:>7.3f}{ending}")


if __name__ == "__main__":
    main()
