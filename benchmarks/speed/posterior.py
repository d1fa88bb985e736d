"""What LAM's whole posterior costs, and how it stands beside laplace-torch's last layer.

    python benchmarks/speed/posterior.py                                     # fit, predictive, online
    python benchmarks/speed/posterior.py fit --images 8192 --threads 2       # briefly
    python benchmarks/speed/posterior.py peers --cache features              # needs the extra `peers` and birds

*fit*: `doubtless.laplace.fit(features, labels, covariance="kronecker")` of noise, at most 10 s on two idle cores
with all images; the head that it makes first and the curvature around it also one by one. *predictive*: images to
unit vectors with uncertainty by a ResNet50, over those without, at most 1.05. *online*: a step of `lam-online` with
`covariance: kronecker` over one with a diagonal, at most 1.1, in rounds of as many steps as there are from one
factorisation to the next. *peers*: the same head on the same features of birds, by this package and by
laplace-torch (regression: the curvature of squared errors, Σ xxᵀ for each output); OOD AUROC of the predictive
variance over the squared length. laplace-torch's `full` is a square matrix of all D · (F + 1) parameters, and its
predictive builds Jacobians (batch, D, D · (F + 1)), so sizes are small. The clock's seconds, and beside them those
of processors, for machines with other work.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, TensorDataset
from training_step import best_times, machine, numbers_of, training_step, verdict

from doubtless.laplace import CurvatureOptions, KroneckerPosterior, fit
from doubtless.laplace.fit import Head, half_whitened
from doubtless.laplace.kronecker_posterior import Eigen
from doubtless.metrics.ood import auroc

PARTS = ("fit", "predictive", "online", "peers")
FIT_LIMIT, PREDICTIVE_LIMIT, ONLINE_LIMIT = 10.0, 1.05, 1.1
PEER_SIZES = ("128,16", "1280,64")  # F, D; `full` only where its matrix has at most so many rows:
MOST_PARAMETERS = 4096
RATIO = 0.01  # λ/(τ · mean H) of all who are compared


def timed(name: str, work: Callable[[], Any]) -> Any:
    began, used = time.perf_counter(), time.process_time()
    found = work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    wall, cpu = time.perf_counter() - began, time.process_time() - used
    print(f"  {name}: {wall:.2f} s, {cpu:.2f} of processors", flush=True)
    return found


def measure_fit(options: argparse.Namespace) -> None:
    source = torch.Generator().manual_seed(0)
    features = torch.randn(options.images, options.width, generator=source).abs_()
    features, labels = features.to(options.device), torch.arange(options.images) % 1000
    features[:, 0] += labels.to(features) / 1000  # not all alike
    print(f"fit {options.images:,} × {options.width:,}, D = 512")
    head = timed("half-whitened head", lambda: half_whitened(features, 512))
    timed("around it", lambda: fit(features, labels, head, covariance="kronecker"))
    began = time.perf_counter()
    timed("both", lambda: fit(features, labels, covariance="kronecker"))
    wall = time.perf_counter() - began
    limit = FIT_LIMIT if (options.images, options.width) == (60_000, 2_048) else None
    print(f"  {wall:.1f} s{verdict(wall, limit)}")


def measure_predictive(options: argparse.Namespace) -> None:
    device = torch.device(options.device)
    backbone = timm.create_model("resnet50", pretrained=False, num_classes=0).to(device).eval()
    images = torch.randn(options.batch, 3, 224, 224, device=device)
    posterior = a_posterior(512, 2048, device)
    weight, bias = posterior.head()

    def plain() -> None:
        normalize(nn.functional.linear(backbone(images), weight, bias), dim=1)

    def uncertain() -> None:
        embedding = posterior.predict(backbone(images))
        _ = embedding.direction, embedding.uncertainty

    with torch.inference_mode():
        best = best_times({"plain": plain, "uncertain": uncertain}, device, options.steps, options.rounds)
    ratio = best["uncertain"] / best["plain"]
    print(f"predictive, ResNet50, {options.batch} images of 224 px, D = 512, F = 2,048")
    print(f"  plain {1e3 * best['plain']:.2f} ms, with uncertainty {1e3 * best['uncertain']:.2f} ms")
    print(f"  {ratio:.3f}{verdict(ratio, PREDICTIVE_LIMIT)}")


def a_posterior(dim: int, width: int, device: torch.device) -> KroneckerPosterior:
    """Of any numbers: what they are does not matter to the time."""
    source = torch.Generator().manual_seed(0)
    turns = [torch.linalg.qr(torch.randn(n, n, generator=source)).Q.to(device) for n in (width + 1, dim)]
    curvature = [torch.rand(n, generator=source).to(device) for n in (width + 1, dim)]
    weight = (torch.randn(dim, width, generator=source) / width**0.5).to(device)
    factors = Eigen(curvature[0], turns[0], curvature[1], turns[1])
    bias = torch.zeros(dim, device=device)
    return KroneckerPosterior.of(weight, bias, factors, scale=1e3, prior_precision=1.0)


def measure_online(options: argparse.Namespace) -> None:
    device = torch.device(options.device)
    for size in options.sizes:
        backbone, batch, pixels, dim = numbers_of(size)
        steps = {}
        for covariance in ("diagonal", "kronecker"):
            laplace = {"covariance": covariance, "refactor": options.refactor}
            config = {"method": "lam-online", "model": {"backbone": backbone, "dim": dim}, "laplace": laplace}
            config["loss"] = {"name": "contrastive", "margin": 0.7}
            steps[covariance] = training_step(
                config,
                batch_size=batch,
                pixels=pixels,
                classes=max(2, batch // 4),
                device=device,
                precision=options.precision,
            )
        best = best_times(steps, device, options.refactor, options.rounds)
        ratio = best["kronecker"] / best["diagonal"]
        print(f"online, {size}, factorised every {options.refactor} steps, precision {options.precision}")
        print(
            f"  diagonal {1e3 * best['diagonal']:.2f} ms, kronecker {1e3 * best['kronecker']:.2f} ms a step"
        )
        print(f"  {ratio:.3f}{verdict(ratio, ONLINE_LIMIT)}", flush=True)


def measure_peers(options: argparse.Namespace) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from frozen_features import frozen_features

    birds = frozen_features("cub", options.cache)
    train, test = birds["features"][~birds["test"]], birds["features"][birds["test"]]
    labels = birds["labels"][~birds["test"]]
    strangers = {
        name: frozen_features(name, options.cache)["features"][:400] for name in ("grocery", "lfw", "fashion")
    }
    for size in options.peer_sizes:
        width, dim = (int(number) for number in size.split(","))
        narrow = torch.eye(train.shape[1]) if width >= train.shape[1] else components(train, width)
        head = half_whitened(train @ narrow, dim)
        print(f"peers, {len(train):,} birds, F = {width}, D = {dim}, λ/(τ · mean H) = {RATIO}")
        queries = {name: rows @ narrow for name, rows in {"birds": test[::12], **strangers}.items()}
        ours(train @ narrow, labels, head, queries)
        for structure in ("kron", "full"):
            rows = dim * (width + 1)
            if structure == "full" and rows > MOST_PARAMETERS:
                print(f"  laplace-torch full: {rows:,} rows, {4 * rows**2 / 1e9:,.0f} GB: not tried")
                continue
            theirs(train @ narrow, head, structure, queries)


def components(features: Tensor, width: int) -> Tensor:
    """The first principal components, (F, width)."""
    return torch.linalg.eigh(torch.cov(features.T.double())).eigenvectors[:, -width:].float()


def ours(features: Tensor, labels: Tensor, head: Head, queries: dict[str, Tensor]) -> None:
    for covariance, geometry in (("diagonal", "arccos"), ("kronecker", "arccos"), ("kronecker", "linear")):
        name = f"doubtless {covariance}, {geometry}"
        options = CurvatureOptions(geometry=geometry)
        found = timed(
            f"{name}, fit",
            lambda c=covariance, o=options: fit(features, labels, head, covariance=c, options=o),
        )
        posterior = found.with_scale(1.0, RATIO * float(found.flat_curvature().mean()))

        def doubts(posterior: Any = posterior) -> dict[str, Tensor]:
            found = {}
            for name, rows in queries.items():
                made = posterior.predictive(rows)
                found[name] = made["variance"].mean(1) / made["location"].square().sum(1)
            return found

        report(name, timed(f"{name}, predictive", doubts))


def theirs(features: Tensor, head: Head, structure: str, queries: dict[str, Tensor]) -> None:
    """laplace-torch around the same head; its targets are what the head puts out, which no curvature looks at."""
    from laplace import Laplace

    layer = nn.Linear(features.shape[1], len(head.weight))
    layer.load_state_dict({"weight": head.weight, "bias": head.bias})
    model, name = nn.Sequential(nn.Identity(), layer), f"laplace-torch {structure}"
    targets = layer(features).detach()
    made = Laplace(model, "regression", subset_of_weights="last_layer", hessian_structure=structure)
    batches = DataLoader(TensorDataset(features, targets), batch_size=256)
    timed(f"{name}, fit", lambda: made.fit(batches))
    mean = torch.cat([features, torch.ones(len(features), 1)], 1).square().sum(0).mean()
    made.prior_precision = RATIO * mean.reshape(1)

    def doubts() -> dict[str, Tensor]:
        found = {}
        for name, rows in queries.items():
            parts = []
            for part in rows.split(16):
                location, covariance = made._glm_predictive_distribution(part)
                variance = covariance.diagonal(dim1=1, dim2=2).mean(1)
                parts.append(variance / location.square().sum(1))
            found[name] = torch.cat(parts).detach()
        return found

    report(name, timed(f"{name}, predictive", doubts))


def report(name: str, doubts: dict[str, Tensor]) -> None:
    known = doubts.pop("birds").double()
    areas = [f"{stranger} {float(auroc(known, found.double())):.3f}" for stranger, found in doubts.items()]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"  {name}: {', '.join(areas)}; the process has had at most {peak:.2f} GB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all but peers")
    parser.add_argument("--images", type=int, default=60_000)
    parser.add_argument("--width", type=int, default=2_048)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--refactor", type=int, default=100)
    parser.add_argument("--precision", default="32", choices=["32", "bf16"])
    parser.add_argument(
        "--sizes", nargs="+", default=["resnet50,64,224,512"], metavar="BACKBONE,BATCH,PIXELS,D"
    )
    parser.add_argument("--peer-sizes", nargs="+", default=list(PEER_SIZES), metavar="F,D")
    parser.add_argument("--cache", type=Path, default=Path("features"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args()
    if wrong := set(options.parts) - set(PARTS):
        parser.error(f"There is no part {', '.join(sorted(wrong))}; there are {', '.join(PARTS)}.")
    if options.threads:
        torch.set_num_threads(options.threads)
    print(machine(torch.device(options.device)))
    for part in options.parts or PARTS[:3]:
        globals()[f"measure_{part}"](options)


if __name__ == "__main__":
    main()
