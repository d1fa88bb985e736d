"""Features of images by a pretrained network that is not trained further, kept in files that other scripts share.

    python benchmarks/frozen_features.py --cache features       # EfficientNet-lite0 at 192 px, minutes on a CPU

Data and weights lie below $DOUBTLESS_DATA. A file that is there is not made again: `features/cub.pt` and others,
each a dictionary with `features` (n, F), `labels` (n,) and, where a source has parts, `test` (n,), whether it is of
its test part. The sources named `all-…` are whole ones, or whole classes of them, at the sizes of their suites.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from doubtless.data.source import Source

SIZE = 192
WEIGHTS = "efficientnet_lite0.safetensors"


@dataclass(frozen=True)
class Images:
    """Images of a source: all, or some drawn at random, or all of some classes drawn from each of its parts."""

    source: str
    count: int | None = None
    size: int = SIZE
    classes: tuple[int, int] | None = None  # of the training part, of the test part


SOURCES = {
    "cub": Images("cub200:CUB_200_2011"),
    "grocery": Images("folder:grocery", 2000),
    "lfw": Images("lfw:lfw", 400),
    "fashion": Images("torchvision:FashionMNIST", 400),
    "cifar10": Images("npz:cifar10.npz", 400),
    "svhn": Images("npz:svhn_test_small.npz", 400),
    "all-grocery": Images("folder:grocery", size=112),
    "all-lfw": Images("lfw:lfw", size=128),
    "all-omniglot": Images("npz:omniglot.npz", size=112, classes=(150, 200)),
    "whole-omniglot": Images("npz:omniglot.npz", size=112),
}
Features = dict[str, Tensor]


def frozen_features(name: str, cache: Path) -> Features:
    """The features of one of the sources, from the cache or made now."""
    path = cache / f"{name}.pt"
    if not path.exists():
        from doubtless.data import open_source  # what is in the cache needs neither data nor networks

        images = SOURCES[name]
        source = open_source(images.source)
        found = _made(source, chosen(source, images), images.size)
        cache.mkdir(parents=True, exist_ok=True)
        torch.save(found, path)
    return dict(torch.load(path))


def chosen(source: Source, images: Images) -> Tensor:
    """The rows (n,) of the images that are looked at."""
    generator = torch.Generator().manual_seed(0)
    if images.classes is not None:
        assert source.given_split is not None
        taken = torch.zeros(len(source), dtype=torch.bool)
        for number, count in enumerate(images.classes):
            part = source.given_split == number
            names = source.labels[part].unique()
            drawn = names[torch.randperm(len(names), generator=generator)[:count]]
            taken |= part & torch.isin(source.labels, drawn)  # parts may use one number for two classes
        return taken.nonzero().squeeze(1)
    if images.count is not None and images.count < len(source):
        return torch.randperm(len(source), generator=generator)[: images.count]
    return torch.arange(len(source))


def _made(source: Source, rows: Tensor, size: int) -> Features:
    from doubtless.data.prepare import Preparation
    from doubtless.data.source import locate
    from doubtless.models import Encoder

    encoder = Encoder(
        "tf_efficientnet_lite0", channels=3, size=size, pooling="gem", weights=str(locate(WEIGHTS))
    ).eval()
    prepare = Preparation(channels=3, size=size)
    parts = []
    with torch.inference_mode():
        for part in rows.split(64):
            parts.append(encoder(torch.stack([prepare(source.image(int(row))) for row in part])))
    found = {"features": torch.cat(parts).clone(), "labels": source.labels[rows]}
    if source.given_split is not None:
        found["test"] = source.given_split[rows] == 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, default=Path("features"))
    options = parser.parse_args()
    for name in SOURCES:
        found = frozen_features(name, options.cache)
        print(f"{name}: {tuple(found['features'].shape)}", flush=True)


if __name__ == "__main__":
    main()
