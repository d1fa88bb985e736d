"""How long the same index takes in a folder, Milvus, PostgreSQL, Qdrant and LanceDB, beside the store alone.

    python benchmarks/speed/backends.py                      # 100,000 × 128, Gaussians with one variance an item
    python benchmarks/speed/backends.py --items 10000 lite   # smaller, one backend beside the folder

Two ratios. "× folder" is to the same call on a folder. "× alone" is a search through doubtless to what the store's
own client takes for the same queries, k, collection and labels, in turns with it: what doubtless costs on top
(FAISS's flat index over the same vectors is a folder's own). "server" is Milvus Lite over TCP; a server of Milvus
proper or of Qdrant is another program: give its address, milvus:http://host:port or qdrant:http://host:port, in
place of a backend's name; the collection it names must not be there and is left behind. CPU seconds would leave
those of a server out, so times are by the clock, the best of some rounds. qdrant-client's local mode syncs its file
for every item: for 100,000 give it a folder in memory, TMPDIR=/dev/shm.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import faiss
import numpy as np
import torch

from doubtless.embedding import Embedding
from doubtless.index.backends import create_index_at, open_index
from doubtless.index.base import Index

sys.path.append(str(Path(__file__).parents[2]))
from tests.reference import postgres_server
from tests.reference.milvus_server import serving

DIM, LOT, BATCH, K = 128, 10_000, 100, 10
SHORT, ENOUGH = 4.0, 20.0  # seconds for the rounds of one thing, at least and about at most
MOST_ROUNDS = 200
BACKENDS = ("local", "lite", "server", "postgres", "qdrant", "lancedb")


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
        if ":" in backend:
            yield backend
            return
        if backend == "postgres":
            yield stack.enter_context(postgres_server.serving())
            return
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if backend == "server":
            yield f"milvus:{stack.enter_context(serving(folder / 'data'))}"
        else:
            prefix = {"local": "", "lite": "milvus:"}.get(backend, f"{backend}:")
            yield f"{prefix}{folder}/index"


def best_of(rounds: int, *ways: Callable[[], object]) -> list[float]:
    """The shortest time of each, in turns: `rounds`, more of what is short, fewer of what takes long."""
    taken: list[list[float]] = [[] for _ in ways]
    began = time.perf_counter()
    while len(taken[0]) < MOST_ROUNDS:
        for times, way in zip(taken, ways, strict=True):
            started = time.perf_counter()
            way()
            times.append(time.perf_counter() - started)
        elapsed = time.perf_counter() - began
        if elapsed > ENOUGH or (len(taken[0]) >= rounds and elapsed > SHORT):
            break
    return [min(times) for times in taken]


# -- each store by its own client: rows and labels of the K best by inner product ---------------------


def alone_milvus(index: Index) -> Callable[[np.ndarray], list]:
    driver = index._driver
    client, name = driver._connection._client, driver._items
    return lambda vectors: [
        [hit["row"] for hit in hits]
        for hits in client.search(
            name,
            data=list(vectors),
            anns_field="direction",
            limit=K,
            output_fields=["label"],
            search_params={"metric_type": "IP", "params": {}},
        )
    ]


def alone_postgres(index: Index) -> Callable[[np.ndarray], list]:
    import psycopg

    address = index._driver._sessions.address
    connection = psycopg.connect(address.server, autocommit=True)
    command = f"SELECT row, label FROM {address.table} ORDER BY direction <#> %s::vector LIMIT {K}"

    def search(vectors: np.ndarray) -> list:
        texts = ["[" + ",".join(map("{:.9g}".format, one)) + "]" for one in vectors.tolist()]
        return [[row for row, _ in connection.execute(command, [text], binary=True)] for text in texts]

    return search


def alone_qdrant(index: Index) -> Callable[[np.ndarray], list]:
    from qdrant_client import models

    driver = index._driver
    client, name = driver._connection._client, driver._items

    def search(vectors: np.ndarray) -> list:
        asked = [
            models.QueryRequest(query=one, using="direction", limit=K, with_payload=["label"])
            for one in vectors.tolist()
        ]
        return [[point.id for point in found.points] for found in client.query_batch_points(name, asked)]

    return search


def alone_lancedb(index: Index) -> Callable[[np.ndarray], list]:
    table = index._driver._table("items")

    def search(vectors: np.ndarray) -> list:
        asked = table.search(list(vectors), vector_column_name="direction").distance_type("dot").limit(K)
        found = asked.select(["row", "label", "_distance"]).to_arrow()
        return np.array(found.column("row").to_pylist()).reshape(len(vectors), K).tolist()

    return search


def alone_faiss(index: Index) -> Callable[[np.ndarray], list]:
    flat, labels = faiss.IndexFlatIP(DIM), index.labels.numpy()
    flat.add(index.embedding().direction.numpy())

    def search(vectors: np.ndarray) -> list:
        rows = flat.search(vectors, K)[1]
        labels[rows]
        return rows.tolist()

    return search


def alone(index: Index) -> Callable[[np.ndarray], list]:
    scheme = str(index.path).partition(":")[0]
    clients = {
        "milvus": alone_milvus,
        "postgres": alone_postgres,
        "qdrant": alone_qdrant,
        "lancedb": alone_lancedb,
    }
    return clients.get(scheme, alone_faiss)(index)


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
            directly, vectors = alone(index), queries.direction.numpy()
            for count in (1, BATCH):
                what = f"search {count}, cosine"
                ours, theirs = best_of(3 * rounds, ways.pop(what), lambda: directly(vectors[:count]))  # noqa: B023
                seconds[what], own[backend, what] = ours, theirs
            assert directly(vectors) == index.search(queries, K).row.tolist(), (
                "the store finds different items"
            )
            for what, way in ways.items():
                [seconds[what]] = best_of(rounds, way)
            found.setdefault("first", index.search(queries, K).row)
            assert torch.equal(index.search(queries, K).row, found["first"]), "backends find different items"
            began = time.perf_counter()
            index.update(gallery[:100], [f"item-{row}" for row in range(100)])
            seconds["update 100"] = time.perf_counter() - began
    return seconds


found: dict[str, torch.Tensor] = {}
own: dict[tuple[str, str], float] = {}
"""Backend and search → seconds of the store alone."""


def told(backend: str, what: str, taken: float, folder: float | None) -> str:
    line = f"  {backend:8} {what:24} {taken:9.4f} s"
    line += "" if folder is None else f"   × folder {taken / folder:6.1f}"
    if (backend, what) in own:
        line += f"   alone {own[backend, what]:9.4f} s   × alone {taken / own[backend, what]:5.2f}"
    return line


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
        print(told("local", what, taken, None), flush=True)
    for backend in given.backends:
        for what, taken in measured(backend, given.items, given.rounds).items():
            print(told(backend, what, taken, local[what]), flush=True)


if __name__ == "__main__":
    main()
