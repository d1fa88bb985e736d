"""Exact nearest neighbours by inner product, ties by index, never all pairs in memory.

The score of a pair is the inner product of the two rows as float32 numbers, summed in float64 and rounded to
float32; equal scores go by position in the gallery. That makes the answer one thing, whatever the machine,
the chunk or the library that found it: identical gallery rows tie exactly.

On a GPU chunks of all scores are computed in float64 and cut to the first k. On a CPU FAISS proposes a few
more than k in float32, which is faster than chunks of torch, the proposals are scored again,
and the few queries whose k-th place FAISS could not settle are searched densely.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.errors import InputError

SHALLOW = 64  # up to this depth FAISS proposes; deeper, all scores are sorted out at once
SPARE = 6  # proposals of FAISS beyond k: ties and rounding at the border of k are settled among these
DENSE_SCORES = {"cpu": 2**22, "cuda": 2**27}  # scores in memory at a time, about 30 bytes each
PROPOSED = 2**28  # pairs FAISS sees at a time; with few it falls back to a slower loop
RESCORED = 2**22  # numbers gathered at a time to score proposals again
LOW_WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Neighbors:
    """The first k of the gallery for each query, best first."""

    score: Tensor  # (n, k) float32 inner products, falling
    index: Tensor  # (n, k) positions in the gallery


def nearest(queries: Tensor, gallery: Tensor, *, k: int, exclude: Tensor | None = None) -> Neighbors:
    """The k gallery rows with the largest inner product for each query.

    queries (n, D) and gallery (m, D) are unit rows; `exclude` (n,) is a gallery position each query must not
    find: itself, in leave-one-out. Duplicates of a query stay in.

    >>> rows = torch.tensor([[1.0, 0.0], [0.6, 0.8], [1.0, 0.0]])
    >>> nearest(rows, rows, k=2, exclude=torch.arange(3)).index.tolist()
    [[2, 1], [0, 2], [0, 1]]
    """
    check_depth(queries, gallery, k=k, exclude=exclude)
    queries, gallery = queries.detach().float(), gallery.detach().float()
    if queries.device.type == "cpu":
        return _proposed(queries, gallery, k, exclude)
    score = queries.new_empty(len(queries), k)
    index = torch.empty_like(score, dtype=torch.long)
    depth = torch.full_like(index[:, 0], k)
    for rows, part in _dense(_inner_products(queries, gallery), len(gallery), depth, exclude):
        score[rows], index[rows] = part.score, part.index
    return Neighbors(score, index)


def ranked(
    queries: Tensor, gallery: Tensor, *, depth: Tensor, exclude: Tensor | None = None
) -> Iterator[tuple[Tensor, Neighbors]]:
    """The first depth[i] ≥ 1 neighbours of query i, for depths in the thousands, a chunk of queries at a time.

    Yields the rows of the chunk (c,) and their neighbours down to the chunk's largest depth; rows come in
    order of their depth, so a chunk is about as deep as each of its queries needs.
    """
    if not len(queries):
        return
    check_depth(queries, gallery, k=int(depth.max()), exclude=exclude)
    queries, gallery, depth = queries.detach().float(), gallery.detach().float(), depth.to(queries.device)
    deep = torch.arange(len(queries), device=queries.device)
    if queries.device.type == "cpu":
        rows, deep = deep[depth <= SHALLOW], deep[depth > SHALLOW]
        if len(rows):
            k, without = int(depth[rows].max()), None if exclude is None else exclude[rows]
            yield rows, _proposed(queries[rows], gallery, k, without)
    without = None if exclude is None else exclude[deep]
    scores = _inner_products(queries[deep], gallery)
    for chunk, part in _dense(scores, len(gallery), depth[deep], without):
        yield deep[chunk], part


Rows = Callable[[Tensor], Tensor]
"""Positions of queries (c,) → their scores with the whole gallery (c, m)."""


def nearest_by(
    scores: Rows, shape: tuple[int, int], *, k: int, device: torch.device, exclude: Tensor | None = None
) -> Neighbors:
    """As `nearest`, for any score of n queries and m gallery items, `shape` = (n, m), on the scores' device."""
    depth = torch.full((shape[0],), k, device=device)
    # Room for all of them at once: what is kept of every chunk would lie between the scores of the next, and these
    # would need new memory each time, 20 GB in the end where a million items were searched.
    found = Neighbors(depth.new_empty(shape[0], k, dtype=torch.float32), depth.new_empty(shape[0], k))
    for rows, part in ranked_by(scores, shape, depth=depth, exclude=exclude):
        found.score[rows], found.index[rows] = part.score, part.index
    return found


def ranked_by(
    scores: Rows, shape: tuple[int, int], *, depth: Tensor, exclude: Tensor | None = None
) -> Iterator[tuple[Tensor, Neighbors]]:
    """As `ranked`, for any score of n queries and m gallery items, `shape` = (n, m), depth on their device."""
    if shape[0]:
        _check_k(int(depth.max()), shape[1] - (exclude is not None), without_itself=exclude is not None)
    yield from _dense(scores, shape[1], depth, exclude)


def check_depth(queries: Tensor, gallery: Tensor, *, k: int, exclude: Tensor | None = None) -> None:
    """Refuses shapes that do not fit and a k that the gallery cannot serve."""
    if queries.dim() != 2 or gallery.dim() != 2 or queries.shape[1] != gallery.shape[1]:
        raise InputError(
            "Neighbours need queries (n, D) and a gallery (m, D) of one dimension, got "
            f"{tuple(queries.shape)} and {tuple(gallery.shape)}."
        )
    _check_k(k, len(gallery) - (exclude is not None), without_itself=exclude is not None)


def _check_k(k: int, available: int, *, without_itself: bool) -> None:
    if k < 1:
        raise InputError(f"The number of neighbours k must be at least 1, got {k}.")
    if k > available:
        without = " without the query itself" if without_itself else ""
        raise InputError(
            f"The number of neighbours k = {k} is larger than the gallery, which has {available} items{without}; "
            f"accepted: 1 to {available}."
        )


def _proposed(queries: Tensor, gallery: Tensor, k: int, exclude: Tensor | None) -> Neighbors:
    """FAISS proposes, float64 decides; what stays open at the border of k is searched densely."""
    import faiss

    count = min(len(gallery), k + (exclude is not None) + SPARE)
    score = queries.new_empty(len(queries), k)
    index = torch.empty_like(score, dtype=torch.long)
    bound = queries.new_empty(len(queries))  # nothing that was not proposed can score above
    for rows in _even_chunks(len(queries), PROPOSED // len(gallery)):
        proposed, proposal = faiss.knn(
            queries[rows].numpy(), gallery.numpy(), count, metric=faiss.METRIC_INNER_PRODUCT
        )
        bound[rows] = torch.from_numpy(proposed)[:, -1]
        for place in torch.arange(len(rows)).split(max(1, RESCORED // (count * queries.shape[1]))):
            candidates = torch.from_numpy(proposal)[place]  # (c, count)
            without = None if exclude is None else exclude[rows[place]]
            best = _decided(queries[rows[place]], gallery, candidates, without, k)
            score[rows[place]], index[rows[place]] = best.score, best.index
    if count < len(gallery):
        rows = (score[:, -1] <= bound + _float32_error(queries, gallery)).nonzero().squeeze(1)
        without = None if exclude is None else exclude[rows]
        scores = _inner_products(queries[rows], gallery)
        for chosen, part in _dense(scores, len(gallery), torch.full_like(rows, k), without):
            score[rows[chosen]], index[rows[chosen]] = part.score, part.index
    return Neighbors(score, index)


def _decided(
    queries: Tensor, gallery: Tensor, candidates: Tensor, exclude: Tensor | None, k: int
) -> Neighbors:
    """The first k of the candidates (c, count) of each query, scored in float64."""
    exact = torch.bmm(gallery[candidates].double(), queries.double().unsqueeze(-1)).squeeze(-1).float()
    if exclude is not None:
        exact.masked_fill_(candidates == exclude.unsqueeze(1), -torch.inf)
    return _unpack(_pack(exact, candidates).sort(dim=1, descending=True).values[:, :k])


def _even_chunks(count: int, size: int) -> tuple[Tensor, ...]:
    """Positions 0 … count − 1 in chunks of about equal size, none above `size` (at least 1)."""
    return torch.arange(count).chunk(-(-count // max(1, size))) if count else ()


def _float32_error(queries: Tensor, gallery: Tensor) -> float:
    """How far a float32 inner product may lie from the true one: eight standard deviations of its rounding."""
    if not len(queries):
        return 0.0
    largest = float(queries.norm(dim=1).max() * gallery.norm(dim=1).max())
    return 8 * queries.shape[1] ** 0.5 * 2.0**-24 * largest


def _inner_products(queries: Tensor, gallery: Tensor) -> Rows:
    """Scores of some queries with all of the gallery, summed in float64."""
    wide = gallery.double().T
    return lambda rows: (queries[rows].double() @ wide).float()


def _dense(
    scores: Rows, count: int, depth: Tensor, exclude: Tensor | None
) -> Iterator[tuple[Tensor, Neighbors]]:
    """All scores of a chunk of queries with `count` gallery items, cut to the chunk's largest depth."""
    if not len(depth):
        return
    columns = torch.arange(count, device=depth.device)
    size = max(1, DENSE_SCORES.get(depth.device.type, 2**22) // count)
    order = depth.sort(stable=True).indices
    for rows in order.split(size):
        score = scores(rows).float()  # (c, m)
        if exclude is not None:
            score.scatter_(1, exclude[rows, None], -torch.inf)
        yield rows, _first(score, columns, int(depth[rows[-1]]))


def _first(score: Tensor, columns: Tensor, k: int) -> Neighbors:
    """The k best of each row of scores (c, m), ties by index."""
    if k == 1:  # one look at each score instead of several at an integer twice as wide
        best = score.argmax(1, keepdim=True)  # the first of equal ones
        return Neighbors(score.gather(1, best), best)
    return _unpack(_pack(score, columns).topk(k, dim=1).values)


def _pack(score: Tensor, index: Tensor) -> Tensor:
    """One integer per pair that sorts by score, then by falling index: no two are equal, so no tie is left."""
    bits = (score + 0.0).view(torch.int32)  # + 0.0 makes −0 and 0 one number
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()  # integers in the order of the floats
    return (rising << 32) + (LOW_WORD - index)


def _unpack(keys: Tensor) -> Neighbors:
    rising = (keys >> 32).int()
    bits = torch.where(rising < 0, rising ^ 0x7FFFFFFF, rising)
    return Neighbors(bits.view(torch.float32), LOW_WORD - (keys & LOW_WORD))
