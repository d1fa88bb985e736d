"""How long the same index takes in a folder, in Milvus Lite's file, and in its server over TCP on loopback.

    python benchmarks/speed/backends.py                      # 100,000 × 128, Gaussians with one variance an item
    python benchmarks/speed/backends.py --items 10000 lite   # smaller, one backend beside the folder

A server of Milvus proper is another program (and another machine): give its address, milvus:http://host:port, in
place of a backend's name to measure that; the collection it names must not be there and is left behind.
Ratios are to the folder. CPU seconds would leave those of a server out, so times are by the clock, the best of
some rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from doubtless.embedding import Embedding
from doubtless.index.backends import create_index_at, open_index

sys.path.append(str(Path(__file__).parents[2]))
from tests.reference.milvus_server import serving

DIM, LOT, BATCH, K = 128, 10_000, 100, 10
BACKENDS = ("local", "lite", "server")


def drawn(count: int, *, seed: int) -> Embedding:
    """Clustered locations (count, 128), each with one variance."""
    generator = torch.Generator().manual_seed(seed)
    centre = torch.randn(1000, DIM, generator=torch.Generator().manual_seed(0))
    near = torch.randint(1000, (count,), generator=generator)
    location = centre[near] + torch.randn(count, DIM, generator=generator)
    return Embedding.gaussian(location, 0.5 + torch.rand(count, 1, generator=generator))


@contextlib.contextmanager
def place(backend: str) -> Iterator[str]:
    """An INDEX where there is nothing."""
    with contextlib.ExitStack() as stack:
        if backend.startswith("milvus:"):
            yield backend
            return
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if backend == "server":
            yield f"milvus:{stack.enter_context(serving(folder / 'data'))}"
        else:
            yield f"{'milvus:' if backend == 'lite' else ''}{folder}/index"


def best_of(rounds: int, way: Callable[[], object]) -> float:
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        way()
        taken.append(time.perf_counter() - began)
    return min(taken)


def measured(backend: str, items: int, rounds: int) -> dict[str, float]:
    """Seconds of each thing an index does; what it found of the first query says whether backends agree."""
    gallery, queries, seconds = drawn(items, seed=1), drawn(BATCH, seed=2), dict[str, float]()
    with place(backend) as name:
        began = time.perf_counter()
        with create_index_at(name, family="gaussian", dim=DIM, variances=1) as index:
            for start in range(0, items, LOT):
                rows = range(start, min(start + LOT, items))
                index.add(
                    gallery[start : rows.stop],
                    [f"item-{row}" for row in rows],
                    labels=[f"class {row % 1000}" for row in rows],
                    metadata=[{"shelf": row % 50} for row in rows],
                )
        seconds[f"add {items:,}"] = time.perf_counter() - began
        began = time.perf_counter()
        with open_index(name, writable=True) as index:
            seconds["open"] = time.perf_counter() - began
            ways: dict[str, Callable[[], object]] = {
                "search 1, cosine": lambda: index.search(queries[:1], K),
                f"search {BATCH}, cosine": lambda: index.search(queries, K),
                f"search {BATCH}, expected": lambda: index.search(queries, K, score="expected-distance"),
                f"search {BATCH}, one label": lambda: index.search(queries, K, where={"label": "class 7"}),
                f"search {BATCH}, one shelf": lambda: index.search(queries, K, where={"shelf": 7}),
                "1,000 items by row": lambda: index.items(range(0, items, max(1, items // 1000))),
            }
            for what, way in ways.items():
                seconds[what] = best_of(rounds, way)
            found.setdefault("first", index.search(queries, K).row)
            assert torch.equal(index.search(queries, K).row, found["first"]), "backends find different items"
            began = time.perf_counter()
            index.update(gallery[:100], [f"item-{row}" for row in range(100)])
            seconds["update 100"] = time.perf_counter() - began
    return seconds


found: dict[str, torch.Tensor] = {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "backends", nargs="*", default=BACKENDS[1:], help=f"{', '.join(BACKENDS[1:])} or an address"
    )
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(f"{given.items:,} × {DIM}, k = {K}, {torch.get_num_threads()} threads", flush=True)
    local = measured("local", given.items, given.rounds)
    for what, taken in local.items():
        print(f"  {'local':8} {what:24} {taken:9.3f} s", flush=True)
    for backend in given.backends:
        for what, taken in measured(backend, given.items, given.rounds).items():
            print(f"  {backend:8} {what:24} {taken:9.3f} s   × {taken / local[what]:.1f}", flush=True)


if __name__ == "__main__":
    main()
