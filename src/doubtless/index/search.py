"""A search: FAISS proposes a few more than k in float32, the proposals are measured again in float64 and sorted.

So scores and distances are exact for what was found, ties go by row, and on a Flat index what was found is what
looking at every item would have found, up to the rounding of a float32 inner product at the border of k + 6.

Also what an index says about itself: counts, sizes, and how much its approximate search misses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError, nearest
from doubtless.index.database.store import Store
from doubtless.index.forms import ITEM, Floats, Integers, fitting, searchable, spread, unpacked
from doubtless.index.proposals import DEPTH, SAMPLE, Approximate, Piece, propose, recall_of
from doubtless.index.settings import IndexScore, Settings
from doubtless.index.vector_cache import Matrix, VectorCache
from doubtless.search.hits import Hits
from doubtless.search.scores import ScoreName, query_vectors

SPARE = 6  # proposals beyond k: what float32 cannot tell apart at the border is settled among these
PADDED = 1_000  # places that are given where k asks for more than there are items
FEW = 100_000  # filtered rows up to which an exact search is quick, whatever the kind of index
GATHERED = 65_536  # rows of a filtered search that are copied together at a time
MEASURED = 2**22  # numbers measured again at a time

Doubles = NDArray[np.float64]


class Vectors(Protocol):
    """Items where a search can measure them: a whole cache, or those that somebody else proposed."""

    settings: Settings
    has_labels: bool

    def __len__(self) -> int: ...

    @property
    def items(self) -> NDArray[np.void]:
        """(positions,) of ITEM."""

    def matrix(self, score: str) -> Matrix:
        """The vectors searched by a score."""


@dataclass
class Candidates:
    """Some items in memory, where `measured` finds them: all of a small index, or what a backend proposed."""

    settings: Settings
    has_labels: bool
    items: NDArray[np.void]  # (positions,) of ITEM
    matrices: dict[str, Floats]

    @classmethod
    def of(
        cls,
        embedding: Embedding,
        rows: Tensor | Integers,
        labels: Tensor | Integers,
        settings: Settings,
        *,
        has_labels: bool,
    ) -> Candidates:
        """Of stored distributions, their rows (n,), rising, and label codes (n,)."""
        form = searchable(embedding, settings, rows=np.asarray(rows), labels=np.asarray(labels))
        return cls(settings, has_labels, form.items, form.matrices)

    def __len__(self) -> int:
        return len(self.items)

    def matrix(self, score: str) -> Matrix:
        """The vectors searched by a score; points have one kind for both."""
        return Matrix(self.matrices.get(score, self.matrices["direction"]))


@dataclass(frozen=True)
class Queries:
    """n queries, ready to be compared with the vectors of a cache."""

    vectors: Floats
    """(n, D) or (n, D + 1): multiplied with the cache's matrix of the score."""
    compared: Doubles
    """(n, D): directions of unit families, locations of Gaussians."""
    spread: Doubles  # (n,)
    uncertainty: Tensor | None  # (n,)

    @classmethod
    def of(cls, embedding: Embedding, settings: Settings, score: ScoreName) -> Queries:
        """Of `fitting` embeddings; refuses a query that has no direction where directions are compared."""
        without = ~embedding.direction.any(1)
        if bool(without.any()) and not (settings.is_gaussian and score == "expected-distance"):
            raise InputError(
                f"Query {int(without.nonzero()[0, 0])} has a location of length 0 and so no direction to "
                "compare; leave it out or embed it again."
            )
        compared = embedding.location if settings.is_gaussian else embedding.direction
        return cls(
            np.ascontiguousarray(query_vectors(score, embedding).numpy(), dtype=np.float32),
            compared.double().numpy(),
            spread(embedding).numpy(),
            embedding.uncertainty,
        )

    def __len__(self) -> int:
        return len(self.vectors)


def checked_k(k: object) -> None:
    """Refuses what is no number of hits."""
    if not isinstance(k, int | np.integer) or isinstance(k, bool):
        raise InputError(f"k is a whole number of hits, got {k!r}.")
    if k < 1:
        raise InputError(f"k must be at least 1, got {k}.")


def clamped(k: int, items: int) -> int:
    """As many hits as there can be, where k is more: a thousand million places take memory, and hold nothing.

    >>> clamped(10, items=3), clamped(10**9, items=3), clamped(10**9, items=5000)
    (10, 1000, 5000)
    """
    return min(int(k), max(items, PADDED))


def prepared(
    embedding: Embedding, k: int, settings: Settings, *, score: IndexScore | None, model: str | None
) -> tuple[IndexScore, Queries]:
    """What to rank by, and the queries; a search that no index like this could do is refused."""
    score = score or settings.score
    if score not in get_args(IndexScore):
        raise InputError(
            f"There is no score {score!r} to search an index by{nearest(score, get_args(IndexScore))}"
        )
    checked_k(k)
    score = "direction" if settings.family == "point" else score  # both rank points alike
    return score, Queries.of(fitting(embedding, settings, model=model), settings, score)


def search(
    cache: VectorCache,
    queries: Queries,
    k: int,
    *,
    score: ScoreName,
    positions: Integers | None = None,
    exact: bool = False,
) -> Hits:
    """The k best items of each query, among all or those at some positions."""
    approximate, k = cache.approximate, clamped(k, len(cache))
    if positions is None and approximate is not None and 2 * int(cache.alive.sum()) < len(cache):
        positions = np.flatnonzero(cache.alive)  # most were removed: links of HNSW lead through them
    few = positions is not None and len(positions) <= FEW
    if approximate is None or approximate.recipe.score != score or exact or few:
        pieces = cache.matrix(score).pieces() if positions is None else _gathered(cache, score, positions)
        proposed = propose(queries.vectors, pieces, k + SPARE)  # (n, c)
    else:
        proposed = _approximately(cache, approximate, queries.vectors, k + SPARE, positions)
    return measured(cache, queries, proposed, k, score=score)


def search_all(candidates: Candidates, queries: Queries, k: int, *, score: ScoreName) -> Hits:
    """The k best of some items for each query, every one of them looked at."""
    k = clamped(k, len(candidates))
    proposed = propose(queries.vectors, candidates.matrix(score).pieces(), k + SPARE)
    return measured(candidates, queries, proposed, k, score=score)


def measured(vectors: Vectors, queries: Queries, proposed: Integers, k: int, *, score: ScoreName) -> Hits:
    """The best k of what was proposed for each query: positions (n, c), −1 where there is nothing."""
    chunks = [
        _measured(vectors, queries, rows, proposed[rows], k, score) for rows in _chunks(proposed, vectors)
    ]
    positions, cosine, distance = (np.concatenate(values) for values in zip(*chunks, strict=True))
    return _hits(vectors, queries, positions, cosine, distance)


def _approximately(
    cache: VectorCache, approximate: Approximate, vectors: Floats, count: int, positions: Integers | None
) -> Integers:
    """Positions (n, c): approximate where it reaches, exact for what came later."""
    matrix, reach = cache.matrix(approximate.recipe.score), len(approximate)
    if positions is None:
        allowed = None if cache.alive[:reach].all() else cache.alive
        rest: Iterable[Piece] = matrix.pieces(reach)
    else:
        allowed = np.zeros(len(cache), bool)
        allowed[positions] = True
        rest = _gathered(cache, approximate.recipe.score, positions[positions >= reach])
    near = approximate.propose(vectors, min(count, reach), allowed=allowed)
    return np.concatenate([near, propose(vectors, rest, count)], axis=1)


def _gathered(cache: VectorCache, score: str, positions: Integers) -> Iterator[tuple[Integers, Floats]]:
    matrix = cache.matrix(score)
    for start in range(0, len(positions), GATHERED):
        chosen = positions[start : start + GATHERED]
        yield chosen, matrix.take(chosen)


def _chunks(proposed: Integers, cache: Vectors) -> list[slice]:
    """Queries that are measured together; one chunk, of none, where there are none."""
    size = max(1, MEASURED // max(1, proposed.shape[1] * cache.settings.dim))
    return [slice(start, start + size) for start in range(0, max(1, len(proposed)), size)]


def _measured(
    cache: Vectors, queries: Queries, rows: slice, proposed: Integers, k: int, score: ScoreName
) -> tuple[Integers, Floats, Floats]:
    """Positions, cosines and expected squared distances (c, k) of the best k proposals, best first."""
    # Positions are in the order of rows: stable sorting settles ties by row.
    proposed = np.sort(proposed, axis=1)
    missing = proposed < 0
    cosine, distance, rank = _compared(cache, queries, rows, np.where(missing, 0, proposed))
    key = (cosine if score == "direction" else rank).astype(np.float32)  # what rounding tells apart is no tie
    key[missing] = -np.inf
    order = np.argsort(-key, axis=1, kind="stable")[:, :k]

    def best(values: NDArray[np.generic], nothing: float) -> NDArray[np.generic]:
        chosen = np.take_along_axis(np.where(missing, nothing, values), order, axis=1)
        less = k - chosen.shape[1]
        return np.pad(chosen, ((0, 0), (0, less)), constant_values=nothing) if less else chosen

    return (
        best(proposed, -1).astype(np.int64),
        best(cosine.clip(-1, 1), -np.inf).astype(np.float32),
        best(distance.clip(0), np.inf).astype(np.float32),
    )


def _compared(
    cache: Vectors, queries: Queries, rows: slice, positions: Integers
) -> tuple[Doubles, Doubles, Doubles]:
    """Cosines, E‖z − w‖² and a rank by it (higher is nearer) of queries and the items at positions (c, m)."""
    query, query_spread = queries.compared[rows, :, None], queries.spread[rows, None]  # (c, D, 1), (c, 1)
    if len(cache) == 0:
        return (np.zeros(positions.shape),) * 3
    item_spread = cache.items["spread"][positions]  # (c, m)
    if not cache.settings.is_gaussian:  # E‖u − v‖² = 2 − 2 R R' cos
        cosine = (cache.matrix("direction").take(positions).astype(np.float64) @ query)[..., 0]
        return cosine, 2 - 2 * query_spread * item_spread * cosine, item_spread * cosine
    means = cache.matrix("expected-distance").take(positions)[..., :-1].astype(np.float64)  # (c, m, D)
    inner = (means @ query)[..., 0]
    lengths = np.linalg.norm(means, axis=-1) * np.linalg.norm(query, axis=1)
    cosine = np.divide(inner, lengths, out=np.zeros_like(inner), where=lengths > 0)
    means -= query.transpose(0, 2, 1)
    distance = np.einsum("cmd,cmd->cm", means, means) + query_spread + item_spread
    return cosine, distance, -distance


def _hits(cache: Vectors, queries: Queries, positions: Integers, cosine: Floats, distance: Floats) -> Hits:
    missing = positions < 0
    some = cache.items if len(cache) else np.zeros(1, ITEM)
    items = some[np.where(missing, 0, positions)]  # (n, k)

    def column(name: str, nothing: float, kind: type) -> Tensor:
        return torch.from_numpy(np.where(missing, nothing, items[name]).astype(kind))

    return Hits(
        column("row", -1, np.int64),
        torch.from_numpy(cosine),
        torch.from_numpy(distance),
        label=column("label", -1, np.int64) if cache.has_labels else None,
        uncertainty=None if queries.uncertainty is None else column("uncertainty", np.inf, np.float32),
        query_uncertainty=queries.uncertainty,
    )


def statistics(store: Store, cache: VectorCache) -> dict[str, Any]:
    """Inside one reading transaction, with the cache brought to it."""
    state, settings = store.state(), cache.settings
    searched_by = "flat" if cache.approximate is None else cache.approximate.recipe.kind
    return {
        **settings.public_record(),
        "items": state.items,
        "labels": int((np.unique(cache.items["label"][cache.alive]) >= 0).sum()),
        "removed": store.removed_count(),
        "attachments": store.attachments(),
        "bytes": sum(file.stat().st_size for file in store.folder.rglob("*") if file.is_file()),
        "searched_by": searched_by,
        "recall@10": measured_recall(store, cache),
    }


def measured_recall(store: Store, cache: VectorCache) -> float:
    """Share of the ten nearest others of some stored items that a search finds; 1 where it looks at everything."""
    live = np.flatnonzero(cache.alive)
    if cache.approximate is None or not len(live):
        return 1.0
    chosen = np.unique(live[np.linspace(0, len(live) - 1, min(SAMPLE, len(live))).astype(np.int64)])
    rows = cache.items["row"][chosen]
    distributions = unpacked(store.chosen(rows.tolist()).numbers, cache.settings)
    score = cache.settings.ranking_score
    queries = Queries.of(distributions, cache.settings, score)

    def nearest_rows(*, exact: bool) -> Integers:
        hits = search(cache, queries, DEPTH + 1, score=score, exact=exact)
        return np.asarray(hits.row.numpy())

    return recall_of(nearest_rows(exact=False), nearest_rows(exact=True), rows)
