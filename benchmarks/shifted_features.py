"""Features of the same photos seen otherwise: out of focus, by a worse camera under a warmer light, as a copy.

    python benchmarks/shifted_features.py --cache features      # some minutes on a CPU

Kept beside those of frozen_features.py, of at most some (`MOST`) photos of test classes: `features/blur-cub.pt`, …,
with `features` (n, F) and `row` (n,), the place of each photo among those of `features/cub.pt`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

import torch
from frozen_features import SOURCES, WEIGHTS, Features, chosen
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

from doubtless.data import open_source
from doubtless.data.corruptions import blur
from doubtless.data.prepare import Preparation
from doubtless.data.source import locate
from doubtless.models import Encoder

MOST = {"blur": 2_500, "camera": 2_500, "copy": 400}
"""Photos of test classes that each is made of; few copies are wanted."""
BLUR = 0.15
"""Of the page's slider: a standard deviation of 1.8 % of the shorter side."""
WARMTH = (1.15, 1.0, 0.75)
"""What the other camera multiplies red, green and blue by."""


def blurred(image: Tensor) -> Tensor:
    """Out of focus; uint8 (C, H, W)."""
    return blur(image, BLUR)


def other_camera(image: Tensor) -> Tensor:
    """A third of the resolution, darker, flatter, warmer and noisy; uint8 (C, H, W)."""
    height, width = image.shape[1:]
    small = transforms.resize(image.float(), [max(8, height // 3), max(8, width // 3)], antialias=True)
    seen = transforms.resize(small, [height, width], antialias=True) / 255
    seen = (0.1 + 0.65 * seen) * torch.tensor(WARMTH[: len(seen)]).view(-1, 1, 1)
    grain = torch.randn(seen.shape, generator=torch.Generator().manual_seed(0))
    return (255 * (seen + 0.04 * grain)).round().clamp(0, 255).to(torch.uint8)


def copied(image: Tensor) -> Tensor:
    """Saved once more, as JPEG; uint8 (C, H, W)."""
    file = BytesIO()
    transforms.to_pil_image(image).save(file, format="JPEG", quality=75)
    return transforms.pil_to_tensor(Image.open(file))


SHIFTS: dict[str, Callable[[Tensor], Tensor]] = {"blur": blurred, "camera": other_camera, "copy": copied}


def shifted_features(shift: str, name: str, cache: Path) -> Features:
    """The features of a source's test photos under a shift, from the cache or made now."""
    path = cache / f"{shift}-{name}.pt"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        torch.save(_made(shift, name), path)
    return dict(torch.load(path))


def _made(shift: str, name: str) -> Features:
    images = SOURCES[name]
    source, size = open_source(images.source), images.size
    rows = chosen(source, images)
    labels = source.labels[rows]
    given = source.given_split
    test = labels >= int(labels.max() + 1) // 2 if given is None else given[rows] == 1
    places = test.nonzero().squeeze(1)
    places = (
        places[torch.randperm(len(places), generator=torch.Generator().manual_seed(1))[: MOST[shift]]]
        .sort()
        .values
    )
    weights = str(locate(WEIGHTS))
    encoder = Encoder("tf_efficientnet_lite0", channels=3, size=size, pooling="gem", weights=weights).eval()
    prepare, parts = Preparation(channels=3, size=size), []
    with torch.inference_mode():
        for part in rows[places].split(64):
            parts.append(
                encoder(torch.stack([prepare(SHIFTS[shift](source.image(int(row)))) for row in part]))
            )
    return {"features": torch.cat(parts).clone(), "row": places}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cache", type=Path, default=Path("features"))
    options = parser.parse_args()
    for name in ("all-grocery", "all-omniglot", "all-lfw", "cub"):
        for shift in SHIFTS:
            print(f"{shift}-{name}: {len(shifted_features(shift, name, options.cache)['row'])}", flush=True)


if __name__ == "__main__":
    main()
