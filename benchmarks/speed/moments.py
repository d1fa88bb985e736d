"""What keeping the sums of a gallery's posterior costs: adding, removing, asking and opening, with and without.

    python benchmarks/speed/moments.py --items 1000000 --dim 128

`with` asks for the moments before and after every change, as a gallery that is asked between changes does.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from doubtless.doubt.leverage import Leverage
from doubtless.embedding import Embedding
from doubtless.index.folder import FolderIndex

BATCH = 1_000


def vectors(count: int, dim: int, seed: int) -> Embedding:
    """Random ones: what they are does not matter to the time."""
    return Embedding.point(torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)))


def timed(work: Callable[[], object]) -> float:
    """Seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def filled(path: Path, items: int, dim: int) -> FolderIndex:
    """An index of so many items."""
    index = FolderIndex.create(path, family="point", dim=dim, kind="flat")
    for start in range(0, items, 50_000):
        count = min(50_000, items - start)
        index.add(vectors(count, dim, seed=start), [f"item {start + number}" for number in range(count)])
    return index


def changes(index: FolderIndex, dim: int, rounds: int) -> dict[str, list[float]]:
    """Adds and removes of 1,000 items, nobody asking and somebody asking after each, in turns."""
    found: dict[str, list[float]] = {"add": [], "add, with": [], "remove": [], "remove, with": []}
    for number in range(rounds):
        for how in ("", ", with"):
            embedding = vectors(BATCH, dim, seed=10_000_000 + number)
            names = [f"new {number}{how} {item}" for item in range(BATCH)]

            def add(embedding: Embedding = embedding, names: list[str] = names, how: str = how) -> None:
                index.add(embedding, names)
                if how:
                    index.moments()

            def remove(names: list[str] = names, how: str = how) -> None:
                index.remove(names)
                if how:
                    index.moments()

            index.moments()  # up to date before
            found[f"add{how}"].append(timed(add))
            index.moments()
            found[f"remove{how}"].append(timed(remove))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=200_000)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        with filled(path, options.items, options.dim) as index:
            print(f"{options.items:,} × {options.dim}: first sums {timed(index.moments):.2f} s", flush=True)
            found = changes(index, options.dim, options.rounds)
            for name, seconds in found.items():
                print(f"  {name} {BATCH:,}: median {1e3 * statistics.median(seconds):.1f} ms")
            leverage, queries = Leverage(index.moments()), vectors(BATCH, options.dim, seed=5).direction
            print(f"  factor: {1e3 * timed(lambda: Leverage(index.moments())):.1f} ms")
            print(f"  leverage of {BATCH:,} queries: {1e3 * timed(lambda: leverage.of(queries)):.1f} ms")
        with FolderIndex.open(path) as index:
            print(f"  sums after opening: {1e3 * timed(index.moments):.1f} ms")


if __name__ == "__main__":
    main()
