"""What a second head is trained with, chosen on training data alone: PFE's factor, loss prediction's targets.

    python benchmarks/second_heads.py --cache FOLDER --data FOLDER

Writes benchmarks/results/second-heads/second-heads.json; docs/methods.md says what follows from it.

No test image is opened. Of FashionMNIST's training images 12,000 train a network and 3,000 others are asked; of
Omniglot's training characters 700 train and the other 264, never seen, are asked. Around each network (two seeds)
PFE with `head.norm_lr` and loss prediction with `head.targets` and `head.temperature` are fitted. How well their
uncertainty finds wrong first hits (AUROC, AUSC) is the mean over seeds. Finished runs are used again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from doubt import trained

from doubtless.data import open_source
from doubtless.evaluation import Evaluation
from doubtless.files import write_json
from doubtless.methods.configuration import make_config
from doubtless.runs.evaluation import evaluate_run
from doubtless.runs.report import versions

SEEDS = [0, 1]
NORM_LR = [1.0, 3.0, 10.0, 30.0, 100.0]
TEMPERATURE = [0.03, 0.1, 0.3]
MEASURES = ["error_auroc", "ausc"]
NETWORKS: dict[str, dict[str, Any]] = {
    "fashion": {
        "data": {"split": "closed", "augment": ["RandomHorizontalFlip"]},
        "model": {"backbone": "conv-fashion", "dim": 3},
        "loss": {"name": "contrastive", "margin": 0.7, "negative_weight": 0.85, "reduction": "all"},
        "training": {"epochs": 12, "batch_size": 500, "per_class": 50, "lr": 1e-3, "lr_decay": 0.9},
    },
    "omniglot": {
        "data": {"split": "given"},
        "model": {"backbone": "conv-fashion", "dim": 64},
        "loss": {"name": "contrastive", "margin": 1.0, "negative_weight": 0.85, "reduction": "all"},
        "training": {"epochs": 12, "batch_size": 128, "per_class": 4, "lr": 1e-3, "lr_decay": 0.9},
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--cache", type=Path, required=True, help="folder for runs and for the parts of the data"
    )
    parser.add_argument("--data", required=True, help="folder with FashionMNIST and omniglot.npz")
    parser.add_argument("--only", choices=list(NETWORKS), help="one of the data sets")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/second-heads"))
    options = parser.parse_args()
    found = {
        name: measure(name, network, options.cache, options.data)
        for name, network in NETWORKS.items()
        if options.only in (None, name)
    }
    if options.only is None:
        write_json(options.out / "second-heads.json", {"seeds": SEEDS, "versions": versions(), "sets": found})


def measure(name: str, network: Mapping[str, Any], cache: Path, data: str) -> dict[str, dict[str, float]]:
    """Variant → the mean of each measure over seeds."""
    part = part_of(name, cache, data)
    found: dict[str, dict[str, list[float]]] = {}
    for seed in SEEDS:
        shared = {**network, "seed": seed, "data": {**network["data"], "source": f"npz:{part}"}}
        deterministic = make_config({"method": "deterministic", **shared})
        base = trained(deterministic, cache / f"{name}-network-{seed}")
        for label, changes in variants():
            config = {**shared, "base": str(base.path), **changes}
            run = trained(make_config(config), cache / f"{name}-{label.replace(' ', '-')}-{seed}")
            measures = run.path / "metrics.json"
            evaluation = (
                Evaluation.load(measures)
                if measures.exists()
                else evaluate_run(run, bootstrap=0, report=False)
            )
            for measured in MEASURES:
                found.setdefault(label, {}).setdefault(measured, []).append(evaluation[measured])
            print(name, seed, label, *(f"{evaluation[measured]:.4f}" for measured in MEASURES), flush=True)
    return {
        label: {measured: sum(values) / len(values) for measured, values in of_variant.items()}
        for label, of_variant in found.items()
    }


def variants() -> Iterator[tuple[str, dict[str, Any]]]:
    """What is compared: its name, and the configuration's keys."""
    for factor in NORM_LR:
        yield f"pfe {factor:g}", {"method": "pfe", "head": {"norm_lr": factor}}
    yield "loss auto 0.1", {"method": "loss-prediction", "head": {"temperature": 0.1}}
    for targets in ("train", "validation"):
        for temperature in TEMPERATURE:
            head = {"targets": targets, "temperature": temperature}
            yield f"loss {targets} {temperature:g}", {"method": "loss-prediction", "head": head}


def part_of(name: str, cache: Path, data: str) -> Path:
    """Training images alone, divided into those that train and those that are asked, as a file."""
    path = cache / f"{name}.npz"
    if path.exists():
        return path
    cache.mkdir(parents=True, exist_ok=True)
    if name == "omniglot":
        arrays = np.load(Path(data) / "omniglot.npz")
        images, labels = arrays["x_train"], arrays["y_train"]
        trains = np.isin(labels, np.unique(labels)[:700])
        rows, asked = trains.nonzero()[0], (~trains).nonzero()[0]
    else:
        source = open_source("torchvision:FashionMNIST", root=data)
        assert source.pixels is not None
        images, labels = source.pixels[:60_000, 0].numpy(), source.labels[:60_000].numpy()
        order = np.random.default_rng(0).permutation(60_000)
        rows, asked = order[:12_000], order[12_000:15_000]
    np.savez(path, x_train=images[rows], y_train=labels[rows], x_test=images[asked], y_test=labels[asked])
    return path


if __name__ == "__main__":
    main()
