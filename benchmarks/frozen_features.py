"""Features of images by a pretrained network that is not trained further, kept in files that other scripts share.

    python benchmarks/frozen_features.py --cache features       # EfficientNet-lite0 at 192 px, minutes on a CPU

Data and weights lie below $DOUBTLESS_DATA. A file that is there is not made again: `features/cub.pt` and others,
each a dictionary with `features` (n, F), `labels` (n,) and, of birds, `test` (n,), whether it is a test species.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

from doubtless.data import open_source
from doubtless.data.prepare import Preparation
from doubtless.data.source import Source, locate
from doubtless.models import Encoder

SIZE = 192
WEIGHTS = "efficientnet_lite0.safetensors"
SOURCES = {
    # Name → source, and how many of its images, drawn at random, are looked at.
    "cub": ("cub200:CUB_200_2011", None),
    "grocery": ("folder:grocery", 2000),
    "lfw": ("lfw:lfw", 400),
    "fashion": ("torchvision:FashionMNIST", 400),
    "cifar10": ("npz:cifar10.npz", 400),
    "svhn": ("npz:svhn_test_small.npz", 400),
}
Features = dict[str, Tensor]


def frozen_features(name: str, cache: Path) -> Features:
    """The features of one of the sources, from the cache or made now."""
    path = cache / f"{name}.pt"
    if not path.exists():
        source, count = SOURCES[name]
        found = _made(open_source(source), count)
        cache.mkdir(parents=True, exist_ok=True)
        torch.save(found, path)
    return dict(torch.load(path))


def _made(source: Source, count: int | None) -> Features:
    rows = torch.arange(len(source))
    if count is not None and count < len(source):
        rows = torch.randperm(len(source), generator=torch.Generator().manual_seed(0))[:count]
    encoder = Encoder(
        "tf_efficientnet_lite0", channels=3, size=SIZE, pooling="gem", weights=str(locate(WEIGHTS))
    ).eval()
    prepare = Preparation(channels=3, size=SIZE)
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
