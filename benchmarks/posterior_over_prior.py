"""OOD AUROC of LAM's diagonal and of its whole posterior over the prior: the figure of docs/methods/lam.md.

    python benchmarks/posterior_over_prior.py --cache features --figure docs/methods/lam-prior.svg
    python benchmarks/posterior_over_prior.py --results benchmarks/results/cub-posterior.json --figure trained.svg

`--results` draws what `doubtless bench cub-posterior` measured of trained networks, rows `…-ratio-R`. `--cache`
needs no training: a half-whitened head on features of birds by a network that was never shown one
(frozen_features.py), curvature of the training species, test species against groceries, faces and garments by
s²(x)/‖Wx‖².
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from frozen_features import frozen_features

from doubtless.files import read_json
from doubtless.laplace import Posterior, fit
from doubtless.metrics.ood import auroc

RATIOS = [10.0 ** (power / 2) for power in range(-8, 5)]  # 1e-4 to 100
STRANGERS = {"grocery": "groceries", "lfw": "faces (LFW)", "fashion": "garments (FashionMNIST)"}
COLOURS = {"diagonal": "#c94f00", "kronecker": "#0a6cb0"}
DASHES = ("-", "--", ":")
Curves = dict[str, dict[float, list[float]]]
"""What a line is called → ratio → the area for each kind of stranger."""


def of_features(cache: Path, dims: list[int]) -> Curves:
    """By features of birds, nothing trained."""
    birds = frozen_features("cub", cache)
    train, test = birds["features"][~birds["test"]], birds["features"][birds["test"]]
    strangers = [frozen_features(name, cache)["features"] for name in STRANGERS]
    curves: Curves = {}
    for dim in dims:
        for covariance in ("diagonal", "kronecker"):
            posterior = fit(
                train,
                birds["labels"][~birds["test"]],
                dim=dim,
                covariance=covariance,
                generator=torch.Generator().manual_seed(0),
            )
            mean = float(posterior.flat_curvature().mean())

            def doubt(images: torch.Tensor, prior: float, posterior: Posterior = posterior) -> torch.Tensor:
                found = posterior.with_scale(1.0, prior).predictive(images)
                return found["variance"].double().mean(1) / found["location"].double().square().sum(1)

            line = curves[f"{covariance}, D = {dim}"] = {}
            for ratio in RATIOS:
                known = doubt(test, ratio * mean)
                line[ratio] = [auroc(known, doubt(images, ratio * mean)) for images in strangers]
    return curves


def of_results(path: Path) -> Curves:
    """By what a bench has measured: the mean over seeds of the rows that hold a ratio."""
    cells: Mapping[str, Mapping[str, Mapping[str, float]]] = read_json(path)["table"]["cells"]
    curves: Curves = {}
    for name, row in cells.items():
        if (found := re.fullmatch(r"(.+)-ratio-([\d.]+)", name)) is None:
            continue
        method, ratio = found[1], float(found[2])
        covariance = "kronecker" if "kronecker" in method else "diagonal"
        title = f"{covariance}, {method.replace('-kronecker', '')}"
        areas = [row[f"ood_auroc/{kind}"]["mean"] for kind in ("grocery", "lfw", "fashion-sample")]
        curves.setdefault(title, {})[ratio] = areas
    return {title: dict(sorted(line.items())) for title, line in curves.items()}


def draw(path: Path, curves: Curves) -> None:
    """A panel for each kind of stranger."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(
        {"font.size": 9, "svg.hashsalt": "doubtless", "axes.spines.top": False, "axes.spines.right": False}
    )
    figure, axes = plt.subplots(1, 3, figsize=(9, 3.2), sharey=True, constrained_layout=True)
    kinds = list(dict.fromkeys(title.split(", ", 1)[1] for title in curves))
    for title, line in curves.items():
        covariance, kind = title.split(", ", 1)
        style = {"color": COLOURS[covariance], "linestyle": DASHES[kinds.index(kind) % len(DASHES)]}
        for axis, place in zip(axes, range(3), strict=True):
            areas = [values[place] for values in line.values()]
            axis.plot(list(line), areas, label=title, linewidth=1.8, marker="o", markersize=3, **style)
    for axis, name in zip(axes, STRANGERS.values(), strict=True):
        axis.set(xscale="log", title=name, xlabel="λ / (τ · mean H)", ylim=(-0.02, 1.02))
        axis.axhline(0.5, color="#b8c0c6", linewidth=0.8, zorder=0)
    axes[0].set_ylabel("OOD AUROC")
    handles = axes[0].get_legend_handles_labels()[0]
    figure.legend(
        handles=handles, loc="outside lower center", ncols=3 if len(curves) > 4 else 4, frameon=False
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--results", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("features"))
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    curves = of_results(options.results) if options.results else of_features(options.cache, options.dims)
    for title, line in curves.items():
        for ratio, areas in line.items():
            print(f"{title:32} {ratio:9.2g}  {' '.join(f'{area:.3f}' for area in areas)}")
    if options.figure:
        draw(options.figure, curves)


if __name__ == "__main__":
    main()
