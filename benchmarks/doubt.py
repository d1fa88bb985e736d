"""One doubt from several sources: every signal and their combination, on one data set, several seeds.

    python benchmarks/doubt.py fashion --dims 16 3 --seeds 0 1 2 --work runs/doubt --out doubt-fashion.json
    python benchmarks/doubt.py omniglot --work runs/doubt --out doubt-omniglot.json
    python benchmarks/doubt.py grocery --work runs/doubt --out doubt-grocery.json

Trains online LAM (runs that are finished are taken as they are), fits the doubt on the validation part, and
measures error AUROC, AUSC and OOD AUROC of each signal on the test part. FashionMNIST searches the training part;
Omniglot and Grocery are open sets, each test image searches the others. $DOUBTLESS_DATA says where the data lie.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from doubtless.config import Config
from doubtless.data import ImageSet
from doubtless.doubt.queries import hits_with_truth
from doubtless.files import write_text
from doubtless.methods.configuration import load_config
from doubtless.metrics.ood import auroc
from doubtless.metrics.uncertainty import ausc, ausc_oracle, error_auroc
from doubtless.runs import Run, open_run_data
from doubtless.runs.data import whole_source
from doubtless.runs.doubt import Reader, describe_doubt, fit_run_doubt
from doubtless.training import train_run

PRESETS = {
    "fashion": """
data: {source: "torchvision:FashionMNIST", split: closed, ood: ["torchvision:MNIST"]}
model: {backbone: conv-fashion, dim: 16}
loss: {name: contrastive, margin: 0.7}
training: {epochs: 20, batch_size: 256, optimizer: adam, lr: 1.0e-3, lr_decay: 0.9}
""",
    "fashion-sample": """
data: {source: fashion-sample, split: closed, ood: [digits]}
model: {backbone: conv-fashion, dim: 16}
loss: {name: contrastive, margin: 0.7}
training: {epochs: 8, batch_size: 128, optimizer: adam, lr: 1.0e-3, lr_decay: 0.9}
""",
    "omniglot": """
data: {source: "npz:omniglot.npz", split: given, ood: [digits, fashion-sample]}
model: {backbone: conv-fashion, dim: 64}
loss: {name: contrastive, margin: 1.3}
training: {epochs: 20, batch_size: 128, per_class: 4, optimizer: adam, lr: 1.0e-3, lr_decay: 0.9}
""",
    "grocery": """
data: {source: "folder:grocery", split: open, size: 112, ood: [fashion-sample]}
model: {backbone: tf_efficientnet_lite0, weights: efficientnet_lite0.safetensors, pooling: gem, dim: 128,
        head_start: half-whitened, freeze: true}
loss: {name: contrastive, margin: 0.7}
training: {epochs: 10, batch_size: 96, per_class: 4, optimizer: adam, lr: 1.0e-4, lr_decay: 0.9}
""",
}
METHOD = """
method: lam-online
laplace: {geometry: arccos, approximation: fixed, memory: 1.0e-3, samples: 1, tune: {criterion: none}}
"""  # the scale of the posterior does not change the order of uncertainties that is measured here


def main() -> None:
    options = arguments()
    measured = []
    for dim in options.dims or [None]:
        for seed in options.seeds:
            config = configuration(options, dim, seed)
            run = trained(config, options.work / f"{options.data}-{config.model.dim}-{seed}")
            measured.append(
                {"dim": config.model.dim, "seed": seed, **measure(run, closed=config.data.split == "closed")}
            )
            show(measured[-1])
    summary = means(measured)
    for dim, rows in summary.items():
        print(f"\nmean over {len(options.seeds)} seeds, D = {dim}")
        print_rows(rows)
    if options.out:
        write_text(
            options.out, json.dumps({"data": options.data, "runs": measured, "means": summary}, indent=1)
        )


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", choices=sorted(PRESETS))
    parser.add_argument("--dims", type=int, nargs="*")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--work", type=Path, default=Path("runs/doubt"))
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def configuration(options: argparse.Namespace, dim: int | None, seed: int) -> Config:
    path = options.work / f"{options.data}.yaml"
    write_text(path, METHOD + PRESETS[options.data])
    config = load_config(path)
    training = config.training.model_copy(update={"epochs": options.epochs or config.training.epochs})
    model = config.model.model_copy(update={"dim": dim or config.model.dim})
    return config.model_copy(update={"seed": seed, "training": training, "model": model})


def trained(config: Config, folder: Path) -> Run:
    if not Run(folder).is_finished:
        train_run(config, folder, resume=(folder / "last.ckpt").exists(), quiet=True)
    return Run.open(folder)


def measure(run: Run, *, closed: bool) -> dict[str, Any]:
    """Error AUROC, AUSC and OOD AUROC of every signal and of the doubt, on the test part of a run."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    method, data = run.load_method().to(device), open_run_data(run.config, split=run.split)
    read = Reader(method)
    test, validation = (read(part, part.labels) for part in (data.test, data.validation))
    searched = test
    if closed:
        still = ImageSet(data.source, data.train.index, data.train.preparation.without_augmentation())
        searched = read(still, still.labels)
    doubt = fit_run_doubt(
        validation, searched, train=searched if closed else None, score="direction", mirrored=closed
    )
    assert doubt is not None
    itself = None if closed else torch.arange(len(test.embedding), device=test.embedding.device)

    def signals(part: Any, itself: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
        hits, _ = hits_with_truth(part.embedding, searched.embedding, searched.truth, itself=itself)
        parts = doubt.of(hits, part.features, queries=part.embedding, itself=itself)
        of_doubt = doubt.signals(hits, part.features, queries=part.embedding, itself=itself)
        assert hits.label is not None
        values = {**of_doubt, "oddity": -parts.chances["novelty"], "doubt": parts.total}
        return {name: value.cpu() for name, value in values.items()}, hits.label[:, 0].cpu()

    inside, first = signals(test, itself)
    correct = first == test.truth
    rows = {
        name: {"error_auroc": error_auroc(value, correct), "ausc": ausc(value, correct)}
        for name, value in inside.items()
    }
    for name in run.config.data.ood:
        images = whole_source(name, run.config.data, method.spec)
        outside, _ = signals(read(images, images.labels), None)
        for signal, row in rows.items():
            row[f"ood_auroc/{name.split(':')[-1].lower()}"] = auroc(inside[signal], outside[signal])
    known = {"recall@1": float(correct.double().mean()), "ausc_oracle": ausc_oracle(correct)}
    return {**known, "doubt": describe_doubt(doubt), "signals": rows}


def means(measured: list[dict[str, Any]]) -> dict[int, dict[str, dict[str, float]]]:
    """D → signal → metric → mean over seeds."""
    result: dict[int, dict[str, dict[str, float]]] = {}
    for dim in dict.fromkeys(run["dim"] for run in measured):
        runs = [run["signals"] for run in measured if run["dim"] == dim]
        result[dim] = {
            signal: {metric: sum(run[signal][metric] for run in runs) / len(runs) for metric in row}
            for signal, row in runs[0].items()
        }
    return result


def show(run: dict[str, Any]) -> None:
    print(f"\nD = {run['dim']}, seed {run['seed']}: recall@1 {run['recall@1']:.4f}", end="")
    print(f", AUSC at best {run['ausc_oracle']:.4f}")
    print(json.dumps(run["doubt"]))
    print_rows(run["signals"])


def print_rows(rows: dict[str, dict[str, float]]) -> None:
    metrics = list(next(iter(rows.values())))
    print(f"{'signal':14s}" + "".join(f"{metric:>26s}" for metric in metrics))
    for signal, row in rows.items():
        print(f"{signal:14s}" + "".join(f"{row[metric]:26.4f}" for metric in metrics))


if __name__ == "__main__":
    main()
