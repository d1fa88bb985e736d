"""Makes src/doubtless/data/samples/fashion_sample.npz from the full Fashion-MNIST.

    python scripts/make_fashion_sample.py FOLDER      # FOLDER/FashionMNIST/raw/*-ubyte, torchvision's layout

3,000 training and 1,000 test images, the same number of every class, drawn with a fixed seed.
"""

import sys
from pathlib import Path

import numpy as np
from torchvision.datasets import FashionMNIST

TARGET = Path(__file__).parents[1] / "src" / "doubtless" / "data" / "samples" / "fashion_sample.npz"


def balanced(labels: np.ndarray, per_class: int, rng: np.random.Generator) -> np.ndarray:
    rows = [rng.choice(np.flatnonzero(labels == c), per_class, replace=False) for c in range(10)]
    return np.sort(np.concatenate(rows))


def main(folder: str) -> None:
    rng = np.random.default_rng(0)
    arrays = {}
    for part, per_class in (("train", 300), ("test", 100)):
        data = FashionMNIST(folder, train=part == "train")
        labels = data.targets.numpy()
        rows = balanced(labels, per_class, rng)
        arrays[f"x_{part}"] = data.data.numpy()[rows]
        arrays[f"y_{part}"] = labels[rows].astype(np.uint8)
    np.savez_compressed(TARGET, **arrays)
    print(f"{TARGET}: {TARGET.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(sys.argv[1])
