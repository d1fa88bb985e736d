"""How well the unknown is told from the known by a gallery's features: coreset, leverage and its diagonal.

    python benchmarks/novelty.py --cache features                        # all galleries; minutes on one core
    python benchmarks/novelty.py fashion --gallery 20000 --json out.json     # one, with more items than a coreset

AUROC of known queries, images of a gallery's classes, against unknown ones: *near*, of classes that neither gallery
nor network ever had, and far, of other data. Birds and groceries by a pretrained network (frozen_features.py), the
others by a small one, trained here for some steps to tell classes that are no test classes. `coreset` is `Novelty`,
today's signal; `leverage` that of the unit features' sums (`Moments`), narrowed where it narrows them, over ridges
from 1e-4 to 10; `diagonal` the same with the diagonal of the sums. Data lie below $DOUBTLESS_DATA.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from frozen_features import frozen_features
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from doubtless.data import open_source
from doubtless.data.source import Source
from doubtless.doubt.leverage import Leverage
from doubtless.doubt.novelty import Novelty
from doubtless.index.moments import Moments
from doubtless.metrics.ood import auroc
from doubtless.models import Encoder

RIDGES = [1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0]
QUERIES = 1500
FAR = {
    "fashion": {"mnist": "torchvision:MNIST", "omniglot": "npz:omniglot.npz"},
    "omniglot": {"mnist": "torchvision:MNIST", "fashion": "torchvision:FashionMNIST"},
    "cifar10": {"svhn": "npz:svhn_test_small.npz"},
}
SOURCES = {
    "fashion": "torchvision:FashionMNIST",
    "omniglot": "npz:omniglot.npz",
    "cifar10": "npz:cifar10.npz",
}
GALLERIES = ("cub", "grocery", *SOURCES)


class Case(NamedTuple):
    """Features of a gallery, of known queries and of unknown ones, (n, F) each."""

    gallery: Tensor
    known: Tensor
    unknown: dict[str, Tensor]


def shuffled(rows: Tensor, seed: int = 0) -> Tensor:
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]


def of_birds(cache: Path) -> Case:
    """Half of the images of eighty test species; the other twenty are near."""
    birds = frozen_features("cub", cache)
    rows = shuffled(birds["test"].nonzero().squeeze(1))
    near = birds["labels"][rows] >= 180
    known = birds["features"][rows[~near]]
    half = len(known) // 2
    unknown = {"near": birds["features"][rows[near]]}
    for name in ("grocery", "lfw", "fashion", "cifar10", "svhn"):
        unknown[name] = frozen_features(name, cache)["features"]
    return Case(known[:half], known[half:], unknown)


def of_groceries(cache: Path) -> Case:
    """Half of the images of sixty classes; the other classes are near."""
    found = frozen_features("grocery", cache)
    near = found["labels"] >= 60
    known = found["features"][~near]
    half = len(known) // 2
    unknown = {"near": found["features"][near], "cub": frozen_features("cub", cache)["features"][::30]}
    for name in ("lfw", "fashion", "cifar10", "svhn"):
        unknown[name] = frozen_features(name, cache)["features"]
    return Case(known[:half], known[half:], unknown)


def of_small_network(name: str, *, gallery: int, steps: int) -> Case:
    """Features of a network that was trained on other images, and of other classes than the near ones."""
    source = open_source(SOURCES[name])
    trained, known, near = split_of(name, source)
    encoder = a_network(source, trained, steps=steps)

    def features(of: Source, rows: Tensor) -> Tensor:
        with torch.inference_mode():
            return torch.cat([encoder(pixels(of, part)) for part in rows.split(256)]).clone()

    unknown = {"near": features(source, shuffled(near)[:QUERIES])}
    for far, place in FAR[name].items():
        other = open_source(place)
        unknown[far] = features(other, shuffled(torch.arange(len(other)))[:1000])
    return Case(features(source, known[QUERIES:][:gallery]), features(source, known[:QUERIES]), unknown)


def split_of(name: str, source: Source) -> tuple[Tensor, Tensor, Tensor]:
    """Rows to train with, rows of known classes that are not trained with, rows of classes that nobody knows."""
    if name == "omniglot" and source.given_split is not None:
        test = source.given_split == 1
        classes = source.labels[test].unique()
        near = torch.isin(source.labels, classes[len(classes) * 3 // 4 :])
        return (
            shuffled((~test).nonzero().squeeze(1)),
            shuffled((test & ~near).nonzero().squeeze(1)),
            near.nonzero().squeeze(1),
        )
    near = source.labels >= 8
    rows = shuffled((~near).nonzero().squeeze(1))
    return rows[:12_000], rows[12_000:], near.nonzero().squeeze(1)


def a_network(source: Source, rows: Tensor, *, steps: int) -> Encoder:
    """A small network that was trained to tell the classes of some rows, for a while."""
    torch.manual_seed(0)
    images, labels = pixels(source, rows), source.labels[rows].unique(return_inverse=True)[1]
    kind = "conv-cifar" if source.channels == 3 else "conv-fashion"
    encoder = Encoder(kind, channels=source.channels, size=images.shape[-1])
    width = encoder(images[:2]).shape[1]
    head = nn.Linear(width, int(labels.max()) + 1)
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], 1e-3)
    encoder.train()
    for _ in range(steps):
        chosen = torch.randint(len(rows), (128,))
        loss = cross_entropy(head(encoder(images[chosen])), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return encoder.eval()


def pixels(source: Source, rows: Tensor) -> Tensor:
    return torch.stack([source.image(int(row)) for row in rows])


def measure(case: Case) -> dict[str, dict[str, list[float]]]:
    """Score → kind of unknown → AUROC, of one ridge or of all."""
    found: dict[str, dict[str, list[float]]] = {}

    def add(name: str, score: Callable[[Tensor], Tensor]) -> None:
        known = score(case.known).double()
        for kind, images in case.unknown.items():
            areas = found.setdefault(name, {}).setdefault(kind, [])
            areas.append(auroc(known, score(images).double()))

    novelty = Novelty.fit(case.gallery, generator=torch.Generator().manual_seed(0))
    add("coreset", novelty.distance)
    moments = Moments.of(case.gallery)
    diagonal = moments.total.diagonal()
    for ridge in RIDGES:
        add("leverage", Leverage(moments, ridge=ridge).of)
        weights = (diagonal + ridge * diagonal.mean()).reciprocal()
        add("diagonal", lambda images, weights=weights: moments.units(images).square() @ weights)
    return found


def show(name: str, case: Case, found: dict[str, dict[str, list[float]]]) -> None:
    queries = ", ".join(f"{kind} {len(images)}" for kind, images in case.unknown.items())
    print(f"{name}: gallery {tuple(case.gallery.shape)}, known {len(case.known)}, {queries}")
    for score, kinds in found.items():
        cells = []
        for kind, areas in kinds.items():
            span = f"{min(areas):.3f}" + (f"–{max(areas):.3f}" if len(areas) > 1 else "")
            cells.append(f"{kind} {span}")
        print(f"  {score:9} {', '.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("galleries", nargs="*", metavar="GALLERY", help=f"of {', '.join(GALLERIES)}")
    parser.add_argument("--cache", type=Path, default=Path("features"))
    parser.add_argument("--gallery", type=int, default=3000, help="items of a small network's gallery")
    parser.add_argument("--steps", type=int, default=200, help="of a small network's training")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if wrong := set(options.galleries) - set(GALLERIES):
        parser.error(f"There is no gallery {', '.join(sorted(wrong))}; there are {', '.join(GALLERIES)}.")
    made: dict[str, Callable[[], Case]] = {
        "cub": lambda: of_birds(options.cache),
        "grocery": lambda: of_groceries(options.cache),
    }
    results = {}
    for name in options.galleries or GALLERIES:
        began = time.perf_counter()
        small = made.get(name)
        case = small() if small else of_small_network(name, gallery=options.gallery, steps=options.steps)
        results[name] = measure(case)
        show(name, case, results[name])
        print(f"  {time.perf_counter() - began:.0f} s", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
