"""Scores for choosing a posterior's scale on validation data, higher is better.

Each takes an `Embedding` and labels (n,), and retrieves leave-one-out: every item's neighbours are all the
others, found by direction. They are what `tune` maximises, not what is reported: `doubtless.evaluation` does that.

`tune` scores many posteriors of the same items at once, a `Grid`: on a GPU a question to the device takes as long
as the answer's arithmetic, so it is asked once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.metrics.calibration import BINS, consensus_sums
from doubtless.metrics.ranking import Ranking, area_under_roc

Criterion = Callable[[Embedding, Tensor], float]
Draw = Callable[[Tensor], Iterable[Tensor]]
"""Rows (r,) to draws (draws, r, D) of them, for one point of a grid after the other."""

ELEMENTS = {"cpu": 2**24, "cuda": 2**26}  # similarities of as many rows as are drawn, or scored, at a time
AT_ONCE = {"cpu": 2**19, "cuda": 2**26}  # of them in memory: as a cache holds, or as keep a GPU busy
BLOCK = 64  # on a CPU the largest of a block is found several times faster than its place
FURTHEST = 4  # times as many images as there are: so far the votes of a larger gallery are extrapolated
SUREST = 1e12  # a concentration above this is as good as none: the soft maximum is a maximum


class Grid(NamedTuple):
    """G distributions of the same n items: Gaussians around one location, pushed onto the sphere."""

    location: Tensor  # (n, D)
    variance: Tensor  # (G, n, D)
    direction: Tensor  # (G, n, D)
    uncertainty: Tensor  # (G, n)
    queries: Tensor  # (q,), which items are scored; all n are their neighbours


def error_auroc(embedding: Embedding, labels: Tensor) -> float:
    """How well uncertainty tells wrong nearest neighbours from right ones: the chance that a wrong one is less
    sure than a right one, ties half. ½ where all are wrong or all are right."""
    return float(_error_auroc(embedding.direction, _uncertainty(embedding), labels, _all(labels)))


def match_likelihood(embedding: Embedding, labels: Tensor) -> float:
    """Mean log probability of a right match, where item i picks j with probability ∝ exp(κ_i u_i·u_j).

    κ_i = 1/uncertainty: sure items bet on their nearest neighbours, unsure ones spread their bet. The density
    of a von Mises-Fisher query at each of the others, normalised over them: too sure and too unsure both cost.
    Items whose label no other has are left out.
    """
    return float(_match_likelihood(embedding.direction, _uncertainty(embedding), labels, _all(labels)))


def negative_consensus_ece(
    embedding: Embedding,
    labels: Tensor,
    *,
    draws: int = 100,
    bins: int = BINS,
    doublings: float | None = None,
    generator: torch.Generator | None = None,
) -> float:
    """Minus the expected calibration error of votes: every item is drawn many times, each draw votes for the
    label of its nearest neighbour, and the winner's share should be how often winners are right.

    Less what voting costs: the share of right answers that nearest neighbours have and winners have not. A
    posterior so wide that its draws know nothing is well calibrated too: a vote among ten labels that is won by a
    fifth is right about as often.

    Draws agree less where neighbours lie denser. `doublings` says how many times the gallery meant is twice as
    large as this one, and what votes do is extrapolated: see `doublings_to`. What is off on the whole counts once
    more then, also for a gallery as large as this one, 0: it is known from all queries, a bin from a tenth of them.
    """

    def draw(rows: Tensor) -> Iterator[Tensor]:
        yield embedding[rows].sample(draws, generator=generator)

    directions, queries = embedding.direction.unsqueeze(0), _all(labels)
    return -float(_consensus_ece(directions, labels, queries, draw, doublings, draws=draws, bins=bins))


def negative_consensus_ece_of_scales(
    embedding: Embedding,
    labels: Tensor,
    *,
    scales: Sequence[float],
    generator: torch.Generator,
    queries: Tensor | None = None,
    draws: int = 100,
    bins: int = BINS,
    doublings: float | None = None,
) -> Tensor:
    """`negative_consensus_ece` of an embedding of any family with its variance times each scale, (scales,).

    Only what is drawn is scaled: the draws of `queries` (q,), all by default, search the directions as they are.
    """
    directions = embedding.direction.unsqueeze(0).expand(len(scales), -1, -1)

    def draw(rows: Tensor) -> Iterator[Tensor]:
        return embedding[rows].sample_scaled(draws, scales, generator=generator)

    asking = _all(labels) if queries is None else queries
    return -_consensus_ece(directions, labels, asking, draw, doublings, draws=draws, bins=bins)


def doublings_to(meant_for: int, images: int) -> float:
    """How many times a gallery of `images` must be doubled to be as large as the one it is `meant_for`.

    The gap between winners' shares and how often they are right changes evenly with the logarithm of the gallery's
    size, so half and all of the validation images tell what twice as many would do (tuned/cifar10-tried.yaml).

    >>> doublings_to(10_000, 5_000)
    1.0
    """
    if not images <= meant_for <= FURTHEST * images:
        raise InputError(
            f"The size a gallery is meant_for must lie between the {images} validation images there are and "
            f"{FURTHEST} times as many, "
            f"got {meant_for}; further than that they cannot tell."
        )
    return math.log2(meant_for / images)


def error_auroc_of_grid(grid: Grid, labels: Tensor) -> Tensor:
    """`error_auroc` of every point, (G,)."""
    pairs = zip(grid.direction, grid.uncertainty, strict=True)
    return torch.stack([_error_auroc(direction, doubt, labels, grid.queries) for direction, doubt in pairs])


def match_likelihood_of_grid(grid: Grid, labels: Tensor) -> Tensor:
    """`match_likelihood` of every point, (G,)."""
    pairs = zip(grid.direction, grid.uncertainty, strict=True)
    return torch.stack(
        [_match_likelihood(direction, doubt, labels, grid.queries) for direction, doubt in pairs]
    )


def negative_consensus_ece_of_grid(
    grid: Grid,
    labels: Tensor,
    *,
    generator: torch.Generator,
    draws: int = 100,
    bins: int = BINS,
    doublings: float | None = None,
) -> Tensor:
    """`negative_consensus_ece` of every point, (G,), all with the same standard normal draws."""
    location, deviation = grid.location, grid.variance.sqrt()

    def draw(rows: Tensor) -> Iterator[Tensor]:
        shape = (draws, len(rows), location.shape[1])
        noise = torch.randn(shape, generator=generator, dtype=location.dtype, device=location.device)
        for point in deviation:  # not normalised: neighbours are the same
            yield torch.addcmul(location[rows], point[rows], noise)

    return -_consensus_ece(grid.direction, labels, grid.queries, draw, doublings, draws=draws, bins=bins)


@torch.no_grad()
def _error_auroc(direction: Tensor, uncertainty: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
    uncertainty = uncertainty[queries]
    wrong = labels[_nearest(direction[queries], direction, without=queries)] != labels[queries]  # (q,)
    ranking = Ranking.unchecked(uncertainty)
    area = area_under_roc(ranking.totals(wrong.double()), ranking.totals((~wrong).double()))
    return area.nan_to_num(nan=0.5)


@torch.no_grad()
def _match_likelihood(direction: Tensor, uncertainty: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
    concentration = uncertainty.double().reciprocal().clamp_max(SUREST)
    total = torch.zeros((), dtype=torch.float64, device=direction.device)
    counted = torch.zeros((), dtype=torch.int64, device=direction.device)
    for rows in _few(queries, direction):
        itself = torch.arange(len(rows), device=rows.device), rows
        bets = (direction[rows] @ direction.T).double().mul_(concentration[rows].unsqueeze(1))  # (rows, n)
        bets[itself] = -torch.inf
        matches = labels[rows].unsqueeze(1) == labels
        matches[itself] = False
        right = bets.masked_fill(~matches, -torch.inf).logsumexp(1)
        matched = matches.any(1)
        total += torch.where(matched, right - bets.logsumexp(1), 0.0).sum()
        counted += matched.sum()
    return total / counted.clamp_min(1)


@torch.no_grad()
def _consensus_ece(
    directions: Tensor,
    labels: Tensor,
    queries: Tensor,
    draw: Draw,
    doublings: float | None,
    *,
    draws: int,
    bins: int,
) -> Tensor:
    """Error and cost of the votes of G points, (G,): directions (G, n, D), labels (n,), queries (q,)."""
    labels = labels.unique(return_inverse=True)[1]
    votes = _votes(directions, labels, queries, draw, _galleries(labels, doublings), draws=draws)
    whole, total = consensus_sums(votes.agreeing, votes.right, samples=draws, bins=bins)
    sizes, gaps = whole.double(), total.double() / draws  # (galleries, G, bins)
    lost = (votes.neighbour_right.double() - votes.right.double()).sum(2)
    error, cost = gaps[0].abs().sum(1), lost[0]
    if doublings is not None:
        # A doubling changes as much as the one from half to all did, and everyone alike: bin by bin the change
        # would be known from a tenth of the queries, that is, hardly. So what is off on the whole counts too.
        change = _per_doubling(gaps.sum(2)) * doublings / len(queries)
        foreseen = gaps[0] + change.unsqueeze(1) * sizes[0]
        error = foreseen.abs().sum(1) + foreseen.sum(1).abs()
        cost = lost[0] + doublings * _per_doubling(lost)
    return (error + cost.clamp_min(0)) / len(queries)


class _Votes(NamedTuple):
    """What q queries' draws elect among several galleries at G points, (galleries, G, q) each."""

    agreeing: Tensor  # draws that agree with the winner
    right: Tensor  # whether the winner is right
    neighbour_right: Tensor  # whether the nearest neighbour of the query itself is


def _votes(
    directions: Tensor,
    labels: Tensor,
    queries: Tensor,
    draw: Draw,
    galleries: Sequence[_Gallery],
    *,
    draws: int,
) -> _Votes:
    """Each draw votes for the label of its nearest neighbour, in every gallery; labels (n,) are codes from 0."""
    shape = len(galleries), len(directions), len(queries)
    count = torch.empty(shape, dtype=torch.int64, device=labels.device)
    winner, neighbour = torch.empty_like(count), torch.empty_like(count)
    classes, start = len(labels.unique()), 0
    for rows in _few(queries, directions[0], copies=draws):
        part = slice(start, start := start + len(rows))
        places = [gallery.place[rows] for gallery in galleries]
        themselves = [place.repeat(draws) for place in places]
        for point, (direction, sampled) in enumerate(zip(directions, draw(rows), strict=True)):
            for number, gallery in enumerate(galleries):
                items = direction[gallery.items]
                hits = _nearest(sampled.flatten(0, 1), items, without=themselves[number])
                votes = gallery.labels[hits].view(draws, len(rows)).T  # (rows, draws)
                first = gallery.labels[_nearest(direction[rows], items, without=places[number])]
                neighbour[number, point, part] = first
                elected = _elected(votes, first, classes)
                count[number, point, part], winner[number, point, part] = elected
    return _Votes(count, winner == labels[queries], neighbour == labels[queries])


def _per_doubling(values: Tensor) -> Tensor:
    """What the step from half of the gallery to all of it changed, (G,): values (galleries, G), all of it first."""
    return values[0] - values[1:].mean(0) if len(values) > 1 else torch.zeros_like(values[0])


class _Gallery(NamedTuple):
    """Some of n items, as neighbours."""

    items: Tensor | slice  # which, (m,)
    labels: Tensor  # theirs, (m,)
    place: Tensor  # (n,), where among them an item is, −1 for others


def _galleries(labels: Tensor, doublings: float | None) -> list[_Gallery]:
    """All items; to extrapolate also two halves of them."""
    everywhere = _all(labels)
    galleries = [_Gallery(slice(None), labels, everywhere)]
    if not doublings:
        return galleries
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0)).to(labels.device)
    for half in order.chunk(2):
        place = torch.full_like(everywhere, -1)
        place[half] = _all(half)
        galleries.append(_Gallery(half, labels[half], place))
    return galleries


def _elected(votes: Tensor, first: Tensor, classes: int) -> tuple[Tensor, Tensor]:
    """How many of the votes (rows, draws) the winner has, and who it is, (rows,) each.

    Ties go to the label of the nearest neighbour, `first`, if it is among the winners.
    """
    ballot = torch.zeros(len(votes), classes, dtype=torch.int64, device=votes.device)
    ballot.scatter_add_(1, votes, torch.full_like(votes, 2))
    ballot.scatter_add_(1, first.unsqueeze(1), torch.ones_like(first).unsqueeze(1))
    most, winner = ballot.max(1)
    return most // 2, winner


def _nearest(queries: Tensor, gallery: Tensor, *, without: Tensor) -> Tensor:
    """Where in the gallery (n, D) each query (q, D) has its largest inner product, (q,); not at `without` (q,),
    which is −1 for queries that are not in it."""
    _check_count(gallery)
    size = max(1, _of_device(AT_ONCE, gallery) // len(gallery))
    # One piece of memory for all: new memory each time costs a CPU more than the product.
    similarities, places = gallery.new_empty(min(size, len(queries)), len(gallery)), []
    for some, itself in zip(queries.split(size), without.split(size), strict=True):
        similarity = torch.mm(some, gallery.T, out=similarities[: len(some)])
        column, inside = itself.clamp_min(0).unsqueeze(1), (itself >= 0).unsqueeze(1)
        similarity.scatter_(1, column, similarity.gather(1, column).masked_fill_(inside, -torch.inf))
        places.append(_first_largest(similarity))
    return torch.cat(places)


def _first_largest(values: Tensor) -> Tensor:
    """argmax over the columns of (q, n), (q,); on a CPU by the largest of each block of columns."""
    columns = values.shape[1]
    if values.device.type != "cpu" or columns < 4 * BLOCK:
        return values.argmax(1)
    whole = columns // BLOCK
    largest = values[:, : whole * BLOCK].unflatten(1, (whole, BLOCK)).amax(2)
    if whole * BLOCK < columns:
        largest = torch.cat((largest, values[:, whole * BLOCK :].amax(1, keepdim=True)), 1)
    start = largest.argmax(1, keepdim=True).mul_(BLOCK)
    # The last block may be short; its last column, once more, comes after the first largest.
    places = (start + torch.arange(BLOCK)).clamp_max_(columns - 1)
    return start.squeeze(1) + values.gather(1, places).argmax(1)


def _few(queries: Tensor, gallery: Tensor, copies: int = 1) -> Iterable[Tensor]:
    """Queries (q,), as many at a time as have few enough similarities with a gallery (n, D)."""
    _check_count(gallery)
    return queries.split(max(1, _of_device(ELEMENTS, gallery) // (copies * max(gallery.shape))))


def _all(labels: Tensor) -> Tensor:
    return torch.arange(len(labels), device=labels.device)


def _of_device(sizes: Mapping[str, int], tensor: Tensor) -> int:
    return sizes.get(tensor.device.type, sizes["cpu"])


def _check_count(gallery: Tensor) -> None:
    if len(gallery) < 2:
        raise InputError(f"Leave-one-out retrieval needs at least 2 items, got {len(gallery)}.")


def _uncertainty(embedding: Embedding) -> Tensor:
    if embedding.uncertainty is None:
        raise InputError(f"An embedding of family {embedding.family} has no uncertainty to score.")
    return embedding.uncertainty
