"""What probability, decision and parts of the doubt cost beside a plain search of the same index.

    python benchmarks/speed/answers.py                    # 1,000,000 × 128, batch 1,000, k = 10
    python benchmarks/speed/answers.py --items 100000

The index is calibrated on 2,000 of its own items, by its labels (50 hits per query, novelty against 10,000 known vectors).
Times are the best of several that take turns; CPU seconds stand beside them, for a machine others use too.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from turns import best_of_turns

from doubtless.embedding import Embedding
from doubtless.gallery import Gallery
from doubtless.index.folder import FolderIndex

DIM, BATCH, K, CHUNK, CLASSES = 128, 1000, 10, 50_000, 1000
PROMISED = 1.15


def drawn(count: int, *, seed: int) -> tuple[Embedding, list[str]]:
    """Gaussians (count, 128) around the centres of a thousand classes, and their labels; some lie far off."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(CLASSES, DIM, generator=torch.Generator().manual_seed(0))
    near = torch.randint(CLASSES, (count,), generator=generator)
    spread = 0.5 + 2 * torch.rand(count, 1, generator=generator)
    location = centre[near] + spread * torch.randn(count, DIM, generator=generator)
    return Embedding.gaussian(location, spread.square()), [f"class {label}" for label in near.tolist()]


def filled(folder: Path, items: int) -> None:
    with FolderIndex.create(folder, family="gaussian", dim=DIM, kind="flat", variances=1) as index:
        for start in range(0, items, CHUNK):
            embedding, labels = drawn(min(CHUNK, items - start), seed=2 + start)
            names = [f"item-{start + item}" for item in range(len(embedding))]
            index.add(embedding, names, labels=labels)
        record = Gallery(index).calibrate(most=2000)
    print(f"calibrated on {record['queries']:,} queries; {record['abstention']['sentence']}", flush=True)


def compared(folder: Path, rounds: int) -> None:
    queries, _ = drawn(BATCH, seed=999_999)
    with FolderIndex.open(folder) as index:
        gallery = Gallery(index)
        ways = {"search": lambda: index.search(queries, K), "answer": lambda: gallery.ask(queries, K)}
        best = best_of_turns(ways, rounds)
        answers = gallery.ask(queries, K)
    assert answers.probability is not None
    assert answers.distribution is not None
    for name, (wall, used) in best.items():
        print(f"{name:8} {wall:8.3f} s   CPU {used:.3f} s")
    ratio, of_cpu = (best["answer"][part] / best["search"][part] for part in (0, 1))
    verdict = "kept" if ratio <= PROMISED else "NOT KEPT"
    print(f"answer / search {ratio:.3f} (CPU {of_cpu:.3f})   promised: at most {PROMISED:g}, {verdict}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "index"
        filled(path, given.items)
        compared(path, given.rounds)
