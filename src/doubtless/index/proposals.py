"""Approximate search, for galleries in which looking at every vector takes too long: HNSW or IVF of FAISS.

Both want distances, so inner products become some: a coordinate more makes all vectors of a unit family equally
long, [R·direction, √(1 − R²)] against [direction, 0], and a Gaussian's doubt a distance of its own, [μ, √tr Σ]
against [μ, 0]. Then ‖·‖² ranks as the expected distance does, exactly.

What it covers are the first rows of a cache; rows that came later are searched exactly beside it. It only
proposes: what it misses is its recall, which is measured, and what it finds is measured again.

    kind    chosen by "auto"       built with
    flat    below 250,000 items    nothing: exact
    hnsw    below 2,000,000        32 links; searched with as much effort as gives recall@10 ≥ 0.95
    ivf     from there on          4·√n lists; probed as often as gives recall@10 ≥ 0.95
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from doubtless.index.forms import Floats, Integers
from doubtless.index.settings import Settings

FLAT_BELOW, HNSW_BELOW = 250_000, 2_000_000
LINKS, CARE = 32, 64  # of HNSW: neighbours kept per item, and looked at while building
LIST_FACTOR, LEAST_IN_LIST = 4, 39  # FAISS warns where a list has fewer than 39 vectors to be trained with
TRAINED_WITH = 256  # vectors per list at most
WANTED_RECALL, SAMPLE, DEPTH = 0.95, 100, 10
LEAST_EFFORT, MOST_EFFORT = 16, 4096
GROWN = 4  # times as many positions: built again instead of extended
UNCOVERED = 65_536  # positions searched exactly beside it, or a tenth of all, before it is extended
CHUNK = 65_536  # vectors handed to FAISS at a time

Piece = tuple[int | Integers, Floats]
"""(position of the first row, rows), or (positions of the rows, rows)."""


def propose(vectors: Floats, pieces: Iterable[Piece], count: int) -> Integers:
    """Positions (n, c) of the best `count` of each piece, −1 where there are none; NaN rows are never among them.

    >>> propose(np.eye(2, dtype=np.float32), [(5, np.eye(2, dtype=np.float32))], 1)
    array([[5],
           [6]])
    """
    import faiss

    proposed = [np.full((len(vectors), 0), -1, np.int64)]
    for place, rows in pieces:
        plain = np.asarray(
            rows
        )  # FAISS's torch bindings refuse memory maps, which are arrays of their own kind
        _, near = faiss.knn(vectors, plain, min(count, len(rows)), metric=faiss.METRIC_INNER_PRODUCT)
        positions = place[near] if isinstance(place, np.ndarray) else near + place
        proposed.append(np.where(near < 0, -1, positions))
    return np.concatenate(proposed, axis=1)


@dataclass(frozen=True)
class Recipe:
    """How an approximate index was built; its record in the cache's stamp."""

    kind: str
    score: str
    count: int
    """Positions it covers, from the first on."""
    trained: int
    """Positions it was built for; far beyond these it is built again."""
    effort: int
    """Candidates HNSW keeps, or lists IVF probes."""
    recall: float
    items: int
    """Of these positions, those whose item was there when they came into it; the others have no vector in it."""

    def record(self) -> dict[str, Any]:
        """As it is written down."""
        return asdict(self)


def kind_for(settings: Settings, count: int) -> str:
    """Flat, HNSW or IVF for so many items."""
    if settings.kind != "auto":
        return settings.kind
    if count < FLAT_BELOW:
        return "flat"
    return "hnsw" if count < HNSW_BELOW else "ivf"


def next_step(settings: Settings, have: Recipe | None, *, count: int) -> str:
    """What a writer does when `count` positions are in its files: "build", "extend", "drop" or "keep"."""
    kind = kind_for(settings, count)
    if kind == "flat" or not count:
        return "drop" if have else "keep"
    if have is None or have.kind != kind or count > GROWN * have.trained:
        return "build"
    return "extend" if count - have.count > max(UNCOVERED, count // 10) else "keep"


class Source:
    """The vectors of a cache as an approximate index wants them, a chunk at a time."""

    def __init__(
        self, matrix: Floats, spread: NDArray[np.float64], *, settings: Settings, score: str
    ) -> None:
        self.matrix, self.spread = matrix, spread
        self.settings, self.score = settings, score
        self.kind = kind_for(settings, len(matrix))

    def __len__(self) -> int:
        return len(self.matrix)

    def lifted(self, positions: slice | Integers) -> Floats:
        """(c, D) or (c, D + 1) vectors whose Euclidean distances rank; NaN where the item was removed."""
        vectors, spread = self.matrix[positions], self.spread[positions]
        if self.score != "direction" and self.settings.family != "point":
            gaussian = self.settings.is_gaussian
            more = spread if gaussian else (1 - spread**2).clip(0)
            vectors = np.column_stack([vectors[:, :-1] if gaussian else vectors, np.sqrt(more)])
        return np.array(vectors, dtype=np.float32, order="C")  # a copy: it may be removed meanwhile

    def there(self) -> Integers:
        """Positions (m,) of items that were not removed."""
        return np.flatnonzero(np.isfinite(self.matrix[:, 0]))

    def chunks(self, start: int, size: int = CHUNK) -> Iterator[tuple[Integers, Floats]]:
        """Positions of items that are there, from one on, and their `lifted` vectors, some at a time."""
        for first in range(start, len(self), size):
            vectors = self.lifted(slice(first, first + size))
            there = np.isfinite(vectors).all(1)
            yield first + np.flatnonzero(there), vectors[there]

    def queries(self, positions: Integers) -> Floats:
        """Some of the items as queries of the exact search."""
        vectors = np.array(self.matrix[positions])
        if self.score != "direction" and self.settings.is_gaussian:
            vectors[:, -1] = 1
        return vectors


def lifted_queries(vectors: Floats, settings: Settings, score: str) -> Floats:
    """Vectors of an exact search (n, D) or (n, D + 1) as an approximate one wants them."""
    if score == "direction" or settings.family == "point":
        return vectors
    locations = vectors[:, :-1] if settings.is_gaussian else vectors
    return np.column_stack([locations, np.zeros(len(locations), np.float32)])


class Approximate:
    """A FAISS index over the first positions of a cache."""

    def __init__(self, faiss_index: Any, recipe: Recipe, settings: Settings) -> None:
        self._index, self.recipe, self._settings = faiss_index, recipe, settings

    def __len__(self) -> int:
        return self.recipe.count

    @classmethod
    def empty(cls, source: Source) -> Approximate:
        """Of nothing yet, for everything in the source."""
        import faiss

        width = source.lifted(slice(0, 1)).shape[1]
        index: Any
        if source.kind == "hnsw":
            links = faiss.IndexHNSWFlat(width, LINKS)
            links.hnsw.efConstruction = CARE
            index = faiss.IndexIDMap2(links)
        else:
            there = source.there()
            lists = max(1, min(int(LIST_FACTOR * len(there) ** 0.5), len(there) // LEAST_IN_LIST))
            index = faiss.IndexIVFFlat(faiss.IndexFlatL2(width), width, lists)
            some = np.linspace(0, len(there) - 1, min(len(there), lists * TRAINED_WITH)).astype(np.int64)
            vectors = source.lifted(there[some])
            index.train(vectors[np.isfinite(vectors).all(1)])  # some may have been removed since
        recipe = Recipe(source.kind, source.score, 0, len(source), LEAST_EFFORT, 0.0, 0)
        return cls(index, recipe, source.settings)

    def extended(
        self, source: Source, *, piece: int = CHUNK, stop: Callable[[], bool] = lambda: False
    ) -> Approximate | None:
        """With the rest of the source added, and as much effort as the recall wanted takes.

        None where it was stopped, which is asked after every piece. Items that were removed get no vector: many
        equal ones, such as zeros, would take all links of HNSW to themselves.
        """
        items = self.recipe.items
        for positions, vectors in source.chunks(len(self), piece):
            if stop():
                return None
            self._index.add_with_ids(vectors, positions)
            items += len(positions)
        return self._tuned(source, items)

    def propose(self, vectors: Floats, count: int, *, allowed: NDArray[np.bool_] | None = None) -> Integers:
        """Positions (n, count) for vectors of an exact search; `allowed` (positions,) leaves others out."""
        import faiss

        selector, bits, share = None, None, 1.0
        if allowed is not None:
            bits = np.packbits(allowed[: len(self)], bitorder="little")  # must outlive the search
            selector = faiss.IDSelectorBitmap(len(self), faiss.swig_ptr(bits))
            # What is not allowed takes the places of what is: among few that are, more must be looked at.
            share = int(allowed[: len(self)].sum()) / max(1, self.recipe.items)
        effort = min(4 * MOST_EFFORT, int(max(self.recipe.effort, count) / max(share, 1e-3)))
        if self.recipe.kind == "hnsw":
            parameters: Any = faiss.SearchParametersHNSW(efSearch=effort, sel=selector)  # type: ignore[attr-defined]
        else:
            probes = min(self._index.nlist, int(self.recipe.effort / max(share, 1e-3)))
            parameters = faiss.SearchParametersIVF(nprobe=probes, sel=selector)  # type: ignore[call-arg]
        queries = np.ascontiguousarray(lifted_queries(vectors, self._settings, self.recipe.score), np.float32)
        positions = np.empty((len(queries), count), np.int64)
        away = np.empty((len(queries), count), np.float32)
        # Not `search`: importing faiss.contrib.torch_utils, as pytorch-metric-learning does, replaces that by a
        # function that takes no parameters.
        self._index.search_c(
            len(queries),
            faiss.swig_ptr(queries),
            count,
            faiss.swig_ptr(away),
            faiss.swig_ptr(positions),
            parameters,
        )
        return positions

    def write(self, path: Path) -> None:
        """Into a file."""
        import faiss

        faiss.write_index(self._index, str(path))

    @classmethod
    def read(cls, path: Path, recipe: Recipe, settings: Settings, *, mapped: bool = True) -> Approximate:
        """From a file; one that is mapped can be searched, but not extended."""
        import faiss

        return cls(faiss.read_index(str(path), faiss.IO_FLAG_MMAP_IFC if mapped else 0), recipe, settings)

    def _tuned(self, source: Source, items: int) -> Approximate:
        """Twice the effort until the recall of a sample is what is wanted."""
        chosen = np.linspace(0, len(source) - 1, min(SAMPLE, len(source))).astype(np.int64)
        chosen = chosen[np.isfinite(source.matrix[chosen]).all(1)]
        queries, whole = source.queries(chosen), (0, source.matrix)
        exact = propose(queries, [whole], DEPTH + 1)
        recipe = replace(self.recipe, count=len(source), effort=LEAST_EFFORT, items=items)
        while True:
            tried = Approximate(self._index, recipe, self._settings)
            recall = recall_of(tried.propose(queries, DEPTH + 1), exact, chosen)
            if recall >= WANTED_RECALL or recipe.effort >= MOST_EFFORT:
                return Approximate(self._index, replace(recipe, recall=recall), self._settings)
            recipe = replace(recipe, effort=2 * recipe.effort)


def recall_of(found: Integers, exact: Integers, itself: Integers) -> float:
    """Share of the exact neighbours (n, k + 1), the query itself left out, that were found; 1 where none are."""
    hit = total = 0
    for proposed, wanted, query in zip(found, exact, itself, strict=True):
        others = {int(place) for place in wanted if place not in (-1, query)}
        hit += len(others & {int(place) for place in proposed})
        total += len(others)
    return hit / total if total else 1.0
