"""The figures that docs/scale.md extrapolates from: bytes an item, recall of index types, half precision, speed.

    python benchmarks/speed/scale.py                     # all seven
    python benchmarks/speed/scale.py bytes precision     # some
    python benchmarks/speed/scale.py growth --items 1000000

Vectors are 128 wide and clustered, as embeddings are; recall@10 is against exact search of the same vectors.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.embedding import Embedding
from doubtless.index.folder import FolderIndex
from doubtless.index.proposals import FLAT_BELOW
from doubtless.methods import DataSpec
from doubtless.models import Encoder

DIM, ITEMS, QUERIES, K = 128, 200_000, 500, 10


def locations(count: int, *, seed: int) -> Tensor:
    """Clustered, (count, 128)."""
    centre = torch.randn(2000, DIM, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    near = torch.randint(2000, (count,), generator=generator)
    return centre[near] + 0.7 * torch.randn(count, DIM, generator=generator)


def measure_bytes(items: int) -> None:
    """What an index's folder takes on disk, an item; ids of 12 letters, no metadata."""
    print(f"Bytes an item on disk, {items:,} items")
    for name, variances in (("point", 0), ("projected-gaussian", 1), ("projected-gaussian", DIM)):
        location = locations(items, seed=1)
        doubt = 0.1 + torch.rand(items, max(1, variances))
        embedding = (
            Embedding.point(location) if name == "point" else Embedding.projected_gaussian(location, doubt)
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "index"
            with FolderIndex.create(path, family=name, dim=DIM, variances=variances, kind="flat") as index:
                index.add(embedding, [f"item-{number:07d}" for number in range(items)])
            total = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        print(f"  {name}, {variances} variances: {total / items:,.0f}", flush=True)


def measure_recall(items: int) -> None:
    """FAISS's index types on unit vectors: recall@10, bytes a vector as FAISS keeps them, time a query."""
    gallery = normalize(locations(items, seed=1), dim=1).numpy()
    queries = normalize(locations(QUERIES, seed=2), dim=1).numpy()
    flat = faiss.IndexFlatIP(DIM)
    flat.add(gallery)
    exact, seconds = timed(lambda: flat.search(queries, K)[1])
    print(f"Recall@10 and milliseconds a query, {items:,} × {DIM}, {faiss.omp_get_max_threads()} threads")
    print(f"  flat: 1.000, {1e3 * seconds / QUERIES:.2f} ms, {4 * DIM} bytes", flush=True)
    lists = int(4 * items**0.5)
    for recipe, effort in (
        ("SQfp16", None),
        ("HNSW32", "efSearch=128"),
        (f"IVF{lists},Flat", "nprobe=32"),
        (f"IVF{lists},SQ8", "nprobe=32"),
        (f"IVF{lists},PQ64x8", "nprobe=32"),
    ):
        index = faiss.index_factory(DIM, recipe, faiss.METRIC_INNER_PRODUCT)
        index.train(gallery)
        index.add(gallery)
        if effort is not None:
            faiss.ParameterSpace().set_index_parameters(index, effort)
        found, seconds = timed(lambda index=index: index.search(queries, K)[1])
        size = len(faiss.serialize_index(index)) / items
        deeper = index.search(queries, 10 * K)[1]
        print(
            f"  {recipe} {effort or ''}: {agreement(exact, found):.3f} ({agreement(exact, deeper):.3f} among 100), "
            f"{1e3 * seconds / QUERIES:.2f} ms, {size:.0f} bytes",
            flush=True,
        )


def agreement(exact: np.ndarray, found: np.ndarray) -> float:
    """The share of the exact neighbours that are among those found."""
    return float(np.mean([np.isin(row, other).mean() for row, other in zip(exact, found, strict=True)]))


def measure_precision(items: int) -> None:
    """Variances, then everything, stored as float16: what it does to 1/κ and to the ten nearest."""
    location = locations(items, seed=1)
    variance = 10 ** (2 * torch.rand(items, DIM) - 3)
    exact = Embedding.projected_gaussian(location, variance)
    queries = normalize(locations(QUERIES, seed=2), dim=1)
    nearest = (queries @ exact.mean_unit_vector.T).topk(K).indices.numpy()
    print(f"Half precision, {items:,} × {DIM}, variances from 1e-3 to 1e-1")
    for name, m, v in (
        ("variances", location, variance.half().float()),
        ("all", location.half().float(), variance.half().float()),
    ):
        stored = Embedding.projected_gaussian(m, v)
        error = (stored.uncertainty / exact.uncertainty - 1).abs().max()
        found = (queries @ stored.mean_unit_vector.T).topk(K).indices.numpy()
        kept = agreement(nearest, found)
        print(
            f"  {name}: 1/κ off by at most {float(error):.1e} of itself, {kept:.4f} of the ten nearest kept",
            flush=True,
        )


@torch.inference_mode()
def measure_images(items: int) -> None:
    """Images a second through backbones, one thread, random weights; decoding apart."""
    torch.set_num_threads(1)
    print("Images a second, one CPU thread")
    for name, pixels, batch in (("tf_efficientnet_lite0", 112, 32), ("resnet50", 224, 8)):
        spec = DataSpec(channels=3, size=pixels, label_names=[])
        encoder = Encoder(name, channels=spec.channels, size=spec.size).eval()
        images = torch.randint(0, 256, (batch, 3, pixels, pixels), dtype=torch.uint8)
        _, seconds = timed(lambda encoder=encoder, images=images: encoder(images))
        print(f"  {name} at {pixels} px: {batch / seconds:.1f}", flush=True)


def measure_decoding(items: int) -> None:
    """JPEGs of 500×375 pixels to 224 px a second, one thread; and what listing images takes of memory."""
    from doubtless.data import Preparation
    from doubtless.data.streams.folder import FolderStream
    from doubtless.data.streams.opening import _must_differ
    from doubtless.data.streams.records import ImageRecord
    from doubtless.ingest.decode import decode

    smooth = np.random.default_rng(0).integers(0, 256, (38, 50, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(smooth).resize((500, 375), Image.Resampling.BICUBIC).save(file, "JPEG", quality=90)
    record, preparation = ImageRecord("photo", file.getvalue()), Preparation(channels=3, size=224)
    _, seconds = timed(lambda: [decode(record, preparation) for _ in range(50)])
    print(f"Decoding a JPEG of {len(file.getvalue()) / 1000:.0f} kB: {50 / seconds:.0f} a second and thread")
    tracemalloc.start()
    stream = FolderStream(
        Path("/data"), tuple(f"n{n % 1000:08d}/n{n % 1000:08d}_{n:09d}.jpg" for n in range(items))
    )
    _must_differ([stream])
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    print(f"Listing: {most / items:.0f} bytes an image at most")


def measure_growth(items: int) -> None:
    """Building, opening and searching at powers of ten up to so many items; wall time, the least of some rounds."""
    print(f"Points × {DIM}, three keys of metadata, {torch.get_num_threads()} threads")
    for count in (10**power for power in range(4, 10) if 10**power <= items):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "index"
            took = {"building s": lasted(lambda path=path, count=count: filled_index(path, count))}
            took |= figures_of_growth(path)
            if count >= FLAT_BELOW:
                took |= figures_of_hnsw(path)
        shown = "; ".join(f"{name} {value:.3g}" for name, value in took.items())
        print(f"  {count:,}: {shown}", flush=True)


def figures_of_growth(path: Path) -> dict[str, float]:
    """What somebody waits for who opens an index and asks it, searching exactly."""
    took = {"opening s": lasted(lambda: FolderIndex.open(path).close(), 3)}
    queries = Embedding.point(locations(1000, seed=-1))
    with FolderIndex.open(path) as index:
        took["one query ms"] = 1e3 * lasted(lambda: index.search(queries[:1], K), 20)
        took["1,000 queries s"] = lasted(lambda: index.search(queries, K), 3)
        for name, where in FILTERS.items():
            took[f"{name}, first ms"] = 1e3 * lasted(
                lambda where=where: index.search(queries[:1], K, where=where)
            )
            took[f"{name} ms"] = 1e3 * lasted(
                lambda where=where: index.search(queries[:1], K, where=where), 10
            )
    return took


def figures_of_hnsw(path: Path) -> dict[str, float]:
    """What building the approximate index takes that galleries of such a size have, and what it is worth."""
    took, query = {}, Embedding.point(locations(1, seed=-1))
    with FolderIndex.open(path, writable=True) as index:
        took["HNSW, asked for by compact, s"] = lasted(index.compact)
        began = time.perf_counter()
    took["closing s"] = time.perf_counter() - began
    with FolderIndex.open(path) as index:
        took["one query by HNSW ms"] = 1e3 * lasted(lambda: index.search(query, K), 20)
        took["its recall@10"] = float(index.stats()["recall@10"])
    return took


def filled_index(path: Path, items: int) -> None:
    """An index of so many items, on the disk."""
    with FolderIndex.create(path, family="point", dim=DIM) as index:
        for start in range(0, items, BATCH):
            numbers = range(start, min(items, start + BATCH))
            metadata = [{"shelf": n % 1000, "wing": f"w{n % 10}", "half": n % 2 == 0} for n in numbers]
            location = locations(len(numbers), seed=start)
            index.add(Embedding.point(location), [f"item-{n:07d}" for n in numbers], metadata=metadata)


def lasted(work: Callable[[], object], rounds: int = 1) -> float:
    """Seconds on the wall, the least of some rounds: others use the machine too."""
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - began)
    return best


def measure_filters(items: int) -> None:
    """Searches under a filter on metadata: the first by a key, which reads it of all items, and those after it."""
    print(
        f"Milliseconds of one filtered search on the wall, {items:,} × {DIM}, {torch.get_num_threads()} threads"
    )
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        filled_index(Path(folder) / "index", items)
        print(f"  built in {time.perf_counter() - began:.0f} s", flush=True)
        began = time.perf_counter()
        with FolderIndex.open(Path(folder) / "index") as index:
            queries = Embedding.point(locations(1, seed=-1))
            index.search(queries, K)
            print(f"  opened and searched in {time.perf_counter() - began:.1f} s", flush=True)
            for name, where in FILTERS.items():
                spent = []
                for _ in range(6):
                    began = time.perf_counter()
                    index.search(queries, K, where=where)
                    spent.append(1e3 * (time.perf_counter() - began))
                print(f"  {name}: first {spent[0]:.0f}, then {sorted(spent[1:])[2]:.1f}", flush=True)
            began = time.perf_counter()
            index.search(queries, K)
            print(f"  without a filter: {1e3 * (time.perf_counter() - began):.1f}", flush=True)


FILTERS: dict[str, dict[str, object]] = {
    "one shelf of 1,000": {"shelf": 7},
    "999 shelves named, one item in ten": {"shelf": list(range(900, 1899))},
    "one wing of ten": {"wing": "w3"},
    "one wing, one shelf": {"wing": "w3", "shelf": 13},
    "half of all": {"half": True},
}
BATCH = 50_000


def timed(work: Callable[[], object], rounds: int = 3) -> tuple[object, float]:
    """The answer, and the least CPU seconds it took: on a machine that others use too."""
    best, found = float("inf"), None
    for _ in range(rounds):
        began = time.process_time()
        found = work()
        best = min(best, time.process_time() - began)
    return found, best


PARTS: dict[str, tuple[Callable[[int], None], int]] = {
    "bytes": (measure_bytes, 50_000),
    "recall": (measure_recall, ITEMS),
    "precision": (measure_precision, 20_000),
    "images": (measure_images, 0),
    "decoding": (measure_decoding, 200_000),
    "filters": (measure_filters, 300_000),
    "growth": (measure_growth, 100_000),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--items", type=int, default=None)
    given = parser.parse_args()
    for part in given.parts:
        function, count = PARTS[part]
        function(given.items or count)
