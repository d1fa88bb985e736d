"""How long an index takes to be filled, opened and searched, beside plain FAISS on the same vectors.

    python benchmarks/speed/search.py                       # both parts, Gaussians and von Mises-Fisher
    python benchmarks/speed/search.py --items 200000 vmf    # smaller, one family

Times of a search are the best of several that take turns, so that a machine others use too slows all alike; CPU
seconds stand beside them, for a machine on which others never rest.
The index lies in a temporary folder (set TMPDIR for another disk): about 2.5 GB a family for a million items.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import faiss
import torch
from torch import Tensor
from turns import Took, best_of_turns

from doubtless.embedding import Embedding
from doubtless.index.folder import FolderIndex

DIM, BATCH, K, ADDED, CHUNK = 128, 1000, 10, 100_000, 50_000
PROMISED = {"search / FAISS": 1.1, "expected / cosine": 1.1, "open (s)": 3.0, "add 100,000 (s)": 60.0}
FAMILIES: Mapping[str, Callable[[Tensor, Tensor], Embedding]] = {
    "gaussian": lambda location, doubt: Embedding.gaussian(location, doubt[:, None]),
    "vmf": lambda location, doubt: Embedding.vmf(location, 50 / doubt),
    "projected-gaussian": lambda location, doubt: Embedding.projected_gaussian(location, doubt[:, None]),
    "point": lambda location, _: Embedding.point(location),
}


def drawn(family: str, count: int, *, seed: int) -> Embedding:
    """Clustered locations (count, 128) and doubts from 0.5 to 1.5."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(1000, DIM, generator=torch.Generator().manual_seed(0))
    near = torch.randint(1000, (count,), generator=generator)
    location = centre[near] + torch.randn(count, DIM, generator=generator)
    return FAMILIES[family](location, 0.5 + torch.rand(count, generator=generator))


def adding(folder: Path, family: str) -> float:
    """Seconds to store 100,000 items with labels and metadata, in batches of 10,000 each durable by itself."""
    embedding = drawn(family, ADDED, seed=1)
    labels = [f"class {item % 1000}" for item in range(ADDED)]
    metadata = [{"shelf": item % 50, "name": f"photo of item {item}"} for item in range(ADDED)]
    began = time.perf_counter()
    with FolderIndex.create(
        folder, family=family, dim=DIM, variances=1 if "gaussian" in family else None
    ) as index:
        for start in range(0, ADDED, 10_000):
            chosen = slice(start, start + 10_000)
            names = [f"item-{item}" for item in range(start, start + 10_000)]
            index.add(embedding[chosen], names, labels=labels[chosen], metadata=metadata[chosen])
    return time.perf_counter() - began


def filled(folder: Path, family: str, items: int) -> float:
    """Makes the large index; seconds it took."""
    began = time.perf_counter()
    variances = 1 if "gaussian" in family else None
    with FolderIndex.create(folder, family=family, dim=DIM, kind="flat", variances=variances) as index:
        for start in range(0, items, CHUNK):
            count = min(CHUNK, items - start)
            names = [f"item-{item}" for item in range(start, start + count)]
            index.add(drawn(family, count, seed=2 + start), names)
    return time.perf_counter() - began


def opened(folder: Path, queries: Embedding) -> tuple[float, float]:
    """Seconds to open, and to open and answer one query."""
    began = time.perf_counter()
    with FolderIndex.open(folder) as index:
        ready = time.perf_counter() - began
        index.search(queries[:1], K)
        return ready, time.perf_counter() - began


def compared(folder: Path, queries: Embedding, rounds: int) -> dict[str, Took]:
    """Best seconds, by the clock and of CPU, of plain FAISS and our search by cosine and by expected distance."""
    with FolderIndex.open(folder) as index:
        stored = index.embedding()
        plain = faiss.IndexFlatIP(DIM)
        plain.add(stored.direction.numpy())
        del stored
        vectors = queries.direction.numpy()
        ways = {
            "FAISS": lambda: plain.search(vectors, K),
            "cosine": lambda: index.search(queries, K, score="direction"),
            "expected": lambda: index.search(queries, K, score="expected-distance"),
        }
        return best_of_turns(ways, rounds)


def measured(family: str, items: int, rounds: int) -> None:
    queries = drawn(family, BATCH, seed=999_999)
    with tempfile.TemporaryDirectory() as folder:
        print(f"{family}, {items:,} × {DIM}, batch {BATCH:,}, k = {K}", flush=True)
        report("add 100,000 (s)", adding(Path(folder) / "small", family))
        large = Path(folder) / "large"
        print(f"  {'fill (s)':22} {filled(large, family, items):8.2f}", flush=True)
        ready, answered = opened(large, queries)
        report("open (s)", ready)
        print(f"  {'open and one query (s)':22} {answered:8.2f}")
        seconds = compared(large, queries, rounds)
        for name, (wall, used) in seconds.items():
            print(f"  {f'{name} (s)':22} {wall:8.3f}   CPU {used:.3f}")
        for name, above, below in (
            ("search / FAISS", "cosine", "FAISS"),
            ("expected / cosine", "expected", "cosine"),
        ):
            report(name, seconds[above][0] / seconds[below][0])
            print(f"  {'  of CPU':22} {seconds[above][1] / seconds[below][1]:8.2f}")


def report(name: str, value: float) -> None:
    verdict = "kept" if value <= PROMISED[name] else "NOT KEPT"
    print(f"  {name:22} {value:8.2f}   promised: at most {PROMISED[name]:g}, {verdict}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", default=["gaussian", "vmf"], help=", ".join(FAMILIES))
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    for name in given.families:
        measured(name, given.items, given.rounds)
