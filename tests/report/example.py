"""A realistic evaluation without training: scores drawn from a fixed seed, curves made by plain counting.

Run as a script to write sample pages: ``python tests/report/example.py FOLDER``.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from doubtless.evaluation.result import Curve, Evaluation, Measure, QueryRecord
from doubtless.report import (
    ComparisonTable,
    ImageLookup,
    MethodResult,
    compare_methods,
    embedding_map,
    write_comparison,
    write_report,
)

Floats = NDArray[np.float64]
NAMES = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
]
CONFIG = {
    "method": "lam-online",
    "seed": 0,
    "data": {"source": "fashion-sample", "split": "closed", "ood": ["digits"]},
    "model": {"backbone": "conv-fashion", "dim": 32},
    "loss": {"name": "contrastive", "margin": 0.7},
    "training": {"epochs": 20, "batch_size": 128, "optimizer": "rmsprop", "lr": 1.0e-3, "lr_decay": 0.9},
}
VERSIONS = {"doubtless": "0.1.0", "python": "3.11.2", "torch": "2.13.0", "faiss": "1.12.0"}
COMMAND = "doubtless train configs/fashion/lam.yaml --set training.epochs=20"
NOTES = [
    "Consensus ECE was drawn with 100 samples per query.",
    "Norms are all 1: the baseline norm is left out.",
]


def example(
    *, seed: int = 0, skill: float = 1.6, recall: float = 0.82, learned: bool = True, q: int = 1000
) -> Evaluation:
    """An evaluation whose uncertainty tells right from wrong, and known from other images, with this skill."""
    random = np.random.default_rng(seed)
    correct = random.random(q) < recall
    known = np.exp(0.35 * (random.normal(size=q) + skill * ~correct))
    others = np.exp(0.35 * (random.normal(size=900) + 1.2 * skill))
    scores = {
        "uncertainty": known,
        "distance": random.normal(size=q) + 1.1 * ~correct,
        "ratio": random.normal(size=q) + 0.9 * ~correct,
    }
    if not learned:
        del scores["uncertainty"]
    baselines = {name: detection(correct, score, random) for name, score in scores.items()}
    measures = retrieval(correct, random)
    if "uncertainty" in baselines:
        measures |= baselines.pop("uncertainty") | {"ood_auroc/digits": interval(auroc(others, known))}
        measures |= further(correct, random)
    return Evaluation(
        measures=measures,
        baselines=baselines,
        counts={"queries": q, "gallery": q, "classes": 10, "without_positive": 0, "ood/digits": 900},
        protocol={"kind": "leave-one-out", "samples": 100, "bootstrap": 1000, "seed": 0, "notes": NOTES},
        curves=curves(correct, scores, others if learned else None),
        queries=QueryRecord(
            index=torch.arange(q),
            neighbor=torch.from_numpy((np.arange(q) + np.where(correct, 10, 3)) % q),
            correct=torch.from_numpy(correct),
            uncertainty=torch.from_numpy(known) if learned else None,
            values={"baseline/distance": torch.from_numpy(scores["distance"])},
        ),
    )


def retrieval(correct: NDArray[np.bool_], random: np.random.Generator) -> dict[str, Measure]:
    share, noise = float(correct.mean()), 0.004 * float(random.normal())
    near = {"recall@1": share, "recall@5": share + 0.13, "recall@10": share + 0.155, "map@5": share - 0.02}
    measures = {name: interval(value) for name, value in near.items()}
    measures |= {"map@r": interval(share - 0.2 + noise), "r_precision": interval(share - 0.15 + noise)}
    return measures | {"nmi": Measure(0.71 + noise), "f1": Measure(0.63 + noise)}


def detection(correct: NDArray[np.bool_], score: Floats, random: np.random.Generator) -> dict[str, Measure]:
    return {
        "error_auroc": interval(auroc(score[~correct], score[correct])),
        "ausc": interval(float(sparsify(correct, score)[1].mean())),
        "ood_auroc/digits": interval(0.66 + 0.01 * float(random.normal())),
    }


def further(correct: NDArray[np.bool_], random: np.random.Generator) -> dict[str, Measure]:
    n, k = len(correct), int(correct.sum())
    oracle = k / n * (1 + sum(1 / j for j in range(k + 1, n + 1)))
    noise = 0.003 * float(random.normal())
    values = {
        "ausc_oracle": oracle,
        "coverage@risk0.01": 0.21 + noise,
        "coverage@risk0.05": 0.58 + noise,
        "ood_auprc/digits": 0.87 + noise,
        "ood_fpr95/digits": 0.43 + noise,
        "ece": 0.041 + noise + 0.1 * (1 - k / n),  # methods differ in it
        "ece@5": 0.31 + noise,
        "match_ece": 0.022 + noise,
        "match_brier": 0.094 + noise,
    }
    return {name: interval(value) for name, value in values.items()}


def interval(value: float) -> Measure:
    half = 1.96 * float(np.sqrt(max(value * (1 - value), 1e-4) / 1000))
    return Measure(value, max(value - half, 0.0), min(value + half, 1.0))


def auroc(positive: Floats, negative: Floats) -> float:
    return float((positive[:, None] > negative[None]).mean())


def sparsify(correct: NDArray[np.bool_], score: Floats) -> tuple[Floats, Floats]:
    """Share left out and recall@1 of the rest, the most uncertain left out first."""
    kept = np.cumsum(correct[np.argsort(score)]) / np.arange(1, len(score) + 1)
    return np.arange(len(score)) / len(score), kept[::-1]


def curves(
    correct: NDArray[np.bool_], scores: dict[str, Floats], others: Floats | None
) -> dict[str, dict[str, Curve]]:
    made: dict[str, dict[str, Curve]] = {"sparsification": {}, "risk_coverage": {}}
    for name, score in (scores | {"oracle": -correct.astype(float)}).items():
        left_out, rest = sparsify(correct, score)
        made["sparsification"][name] = Curve(left_out.tolist(), rest.tolist())
        made["risk_coverage"][name] = Curve((1 - left_out)[::-1].tolist(), (1 - rest)[::-1].tolist())
    made["sparsification"]["random"] = Curve([0.0, 1.0], [float(correct.mean())] * 2)
    if others is None:
        return made
    known = scores["uncertainty"]
    cuts = np.quantile(np.concatenate([known, others]), np.linspace(1, 0, 201))
    shares = [[float((part >= cut).mean()) for cut in cuts] for part in (known, others)]
    made["roc/digits"] = {"uncertainty": Curve(*shares)}
    edges = np.linspace(0, 5, 31)
    centres = ((edges[1:] + edges[:-1]) / 2).tolist()
    made["histogram/digits"] = {
        name: Curve(centres, (np.histogram(part, edges)[0] / len(part)).tolist())
        for name, part in (("id", known), ("ood", others))
    }
    confidence = np.arange(0.15, 1.0, 0.1)
    weight = [0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.12, 0.2, 0.4]
    bend = 1 + 0.1 * float(known.mean())
    made["reliability"] = {"consensus": Curve(confidence.tolist(), (confidence**bend).tolist(), weight)}
    return made


def log(epochs: int = 20) -> list[dict[str, object]]:
    """Rows as a CSV reader gives them: text, with an empty cell in the third."""
    rows: list[dict[str, object]] = []
    for epoch in range(1, epochs + 1):
        loss, score = 0.35 * np.exp(-epoch / 6) + 0.08, 0.82 - 0.2 * np.exp(-epoch / 4)
        found = f"{score:.4f}" if epoch != 3 else ""
        rows.append({"epoch": str(epoch), "train_loss": f"{loss:.4f}", "val_recall@1": found, "lr": 0.001})
    return rows


def pictures(n: int = 1000, *, size: int = 28) -> ImageLookup:
    """Flowers with as many petals as their label says."""
    y, x = np.mgrid[0:size, 0:size] / size - 0.5
    angle, radius = np.arctan2(y, x), np.hypot(x, y)
    petals = [0.3 + 0.12 * np.cos((label + 1) * angle) - radius for label in range(10)]
    shapes = np.stack([np.clip(900 * inside, 0, 230).astype(np.uint8) for inside in petals])
    labels = np.arange(n) % 10
    return ImageLookup.from_arrays(list(shapes[labels]), labels.tolist())


def directions(n: int = 600, *, classes: int = 10) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unit vectors around the centres of their classes, labels, and how far they were thrown."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % classes
    centres = torch.randn(classes, 16, generator=generator)
    noise = torch.rand(n, generator=generator)
    points = centres[labels] + (0.2 + noise)[:, None] * torch.randn(n, 16, generator=generator)
    return torch.nn.functional.normalize(points, dim=1), labels, noise


def methods(*, q: int = 1000) -> tuple[list[MethodResult], ComparisonTable]:
    """Four methods, three seeds each, and their table with published numbers, a significance and a note."""
    images = pictures(q)
    rows = [
        MethodResult(
            "deterministic", [example(seed=s, learned=False, recall=0.80, q=q) for s in range(3)], images
        ),
        MethodResult("pfe", [example(seed=s, skill=0.8, recall=0.80, q=q) for s in range(3)], images),
        MethodResult("lam-online", [example(seed=s, skill=1.7, recall=0.83, q=q) for s in range(3)], images),
        MethodResult("mc-dropout", [example(seed=s, skill=1.3, recall=0.81, q=q) for s in range(3)]),
    ]
    table = compare_methods(
        rows,
        published={"lam-online": {"recall@1": 0.85, "ece": 0.02}, "pfe": {"recall@1": 0.79}},
        not_comparable={"ece": "the paper's ECE drops every query whose confidence is exactly 1."},
    )
    cells = {name: dict(row) for name, row in table.cells.items()}
    sentence = "Better than deterministic (paired bootstrap, p = 0.002)."
    cells["lam-online"]["recall@1"] = replace(cells["lam-online"]["recall@1"], significant=sentence)
    return rows, ComparisonTable(table.metrics, cells, notes=["ensemble, seed 2 failed: out of memory."])


def write_run(path: Path, *, learned: bool = True) -> None:
    write_report(
        path,
        title="Fashion sample with online Laplace" if learned else "Fashion sample, deterministic",
        evaluation=example(learned=learned),
        config=CONFIG,
        log=log(),
        versions=VERSIONS,
        command=COMMAND,
        images=pictures(),
        embedding_map=embedding_map(*directions(300)) if learned else None,
        label_names=NAMES,
    )


def write_benchmark(path: Path) -> None:
    rows, table = methods()
    write_comparison(
        path,
        title="Benchmark: demo",
        rows=rows,
        table=table,
        config={"suite": "demo"},
        versions=VERSIONS,
        command="doubtless bench demo",
        label_names=NAMES,
    )


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    write_run(folder / "run.html")
    write_run(folder / "point.html", learned=False)
    write_benchmark(folder / "comparison.html")
