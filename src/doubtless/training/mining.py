"""Hard negatives from a cache of embeddings, shown as tuples: one anchor, one positive, several negatives.

The mining of Warburg, Jørgensen, Civera and Hauberg, *Bayesian Triplet Loss* (2021), section 4, after
Arandjelović et al., *NetVLAD* (2016): every so many steps other images are embedded by the network as it then
is; an anchor's negatives are its nearest ones among them, and only tuples that violate the triplet constraint
are shown. For places an anchor is a query, its positive and negatives are of the database, and "same" is within
the radius.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize
from torch.utils.data import DataLoader

from doubtless.data import Batch, ImageSet, Places, Progress
from doubtless.distributed import gather_objects, rank, world_size
from doubtless.errors import InputError
from doubtless.methods import Method
from doubtless.methods.triplet_family import TripletFamily
from doubtless.runs.data import embed_images
from doubtless.search.relevance import within

ANCHOR_CHUNK = 1024
NEVER = -1


class TupleBatches:
    """A training loader that mines its own batches: set its `epoch` before iterating.

    A batch has `tuples · (2 + negatives)` rows, tuple by tuple. Which tuples a step shows depends on the
    seed, the number of the refresh and what that refresh found, so a checkpoint holds no more than that, and
    every process draws the same tuples and takes its share.
    """

    def __init__(self, method: Method, images: ImageSet, *, progress: Progress | None = None) -> None:
        assert isinstance(method, TripletFamily)
        self.method = method
        self.images = images
        self.options = method.mining
        self.progress = progress
        self.epoch = 0
        self.refreshed = NEVER
        self.tuples = torch.empty(0, 2 + self.options.negatives, dtype=torch.long)
        held = images.in_memory()
        self._held = None if held is None else held.to(method.device)

    def __len__(self) -> int:
        """Steps of an epoch: as many as show about the number of training images."""
        return max(1, len(self.images) // (self.options.tuples * (2 + self.options.negatives)))

    def __iter__(self) -> Iterator[Batch]:
        if self.options.tuples % world_size():
            raise InputError(
                f"mining.tuples {self.options.tuples} must be a multiple of the {world_size()} processes."
            )
        self.images.epoch = self.epoch
        step, end = self.epoch * len(self), (self.epoch + 1) * len(self)
        while step < end:
            number = step // self.options.refresh
            if number != self.refreshed:
                self.refresh(number)
            stop = min(end, (number + 1) * self.options.refresh)
            yield from self._batches([self.rows_of(which) for which in range(step, stop)])
            step = stop

    def refresh(self, number: int) -> None:
        """Embeds other images and keeps the tuples among them that violate the constraint."""
        seed = hash((self.method.config.seed, number)) & 0x7FFFFFFF
        generator = torch.Generator().manual_seed(seed)
        chosen = self._cache(generator)
        points, places = self._embed(chosen), self.images.places
        violating = violating_tuples(
            points,
            self.images.labels[chosen].to(points.device),
            places=None if places is None else places[chosen],
            margin=self.method.margin,
            negatives=self.options.negatives,
            at_least=self.options.tuples,
            generator=generator,
        )
        self.tuples, self.refreshed = chosen[violating.cpu()], number

    def _cache(self, generator: torch.Generator) -> Tensor:
        """Positions of the images to embed: any; for places, queries with one of their positives each."""
        if self.images.places is None:
            return torch.randperm(len(self.images), generator=generator)[: self.options.cache]
        return cache_of_places(self.images.places, self.options.cache, generator=generator)

    def rows_of(self, step: int) -> list[int]:
        """Positions of this process's images in a step; tuples come around again when all were shown."""
        count, share = self.options.tuples, self.options.tuples // world_size()
        first = (step - self.refreshed * self.options.refresh) * count + rank() * share
        shown = torch.arange(first, first + share) % len(self.tuples)
        return self.tuples[shown].flatten().tolist()

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"refreshed": self.refreshed, "tuples": self.tuples}

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on with what a checkpoint kept."""
        self.refreshed, self.tuples = int(state["refreshed"]), state["tuples"].cpu()

    def _embed(self, chosen: Tensor) -> Tensor:
        """Unit vectors (cache, D) of images; every process embeds its share."""
        count = len(chosen)
        share = chosen[rank() * count // world_size() : (rank() + 1) * count // world_size()]
        part = self.images.without_augmentation().part(share)
        points = embed_images(self.method, part, progress=self._named_progress()).direction
        if world_size() == 1:
            return points
        shares: Any = gather_objects(points.cpu())
        return torch.cat(shares).to(points.device)

    def _named_progress(self) -> Progress | None:
        inner = self.progress
        if inner is None:
            return None
        return lambda items, text, total: inner(items, "mining", total)

    def _batches(self, plan: list[list[int]]) -> Iterator[Batch]:
        if self._held is None:
            workers = self.method.config.data.workers
            pinned = torch.cuda.is_available()
            yield from DataLoader(self.images, batch_sampler=plan, num_workers=workers, pin_memory=pinned)
            return
        labels = self.images.labels.to(self._held.device)
        for rows in torch.tensor(plan, device=self._held.device):
            yield Batch(self._held[rows], labels[rows], rows)


def violating_tuples(
    points: Tensor,
    labels: Tensor,
    *,
    places: Places | None = None,
    margin: float,
    negatives: int,
    at_least: int = 1,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Tuples (t, 2 + negatives) of rows of points (n, D), in random order: anchor, positive, nearest negatives.

    Every row with a second of its label is an anchor once, its positive drawn from the others of its label. With
    places every query is one that has database rows within the radius; negatives are database rows beyond it.
    Those with ``‖a − p‖² > ‖a − n‖² − m`` for the nearest negative are kept; where none is left, the
    `at_least` tuples that come nearest to it.

    >>> points = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
    >>> violating_tuples(points, torch.tensor([0, 0, 1]), margin=0.1, negatives=1).sort(dim=0).values
    tensor([[0, 0, 2],
            [1, 1, 2]])
    """
    points = normalize(points, dim=-1)
    here = None if places is None else _on(places, points.device)
    drawn = _drawn_positives(labels, generator) if here is None else _drawn_near(here, generator)
    anchors, positives = drawn
    if len(anchors) == 0:
        word = "label has two images" if here is None else "place has a query and another image"
        raise InputError(f"No {word} in the mining cache; raise mining.cache.")
    tuples, excess = [], []
    for a, p in zip(anchors.split(ANCHOR_CHUNK), positives.split(ANCHOR_CHUNK), strict=True):
        barred = labels[a, None] == labels if here is None else _near(here, a) | here.query
        fewest = int((~barred).sum(1).min())
        if fewest < negatives:
            raise InputError(
                f"The mining cache has only {fewest} images of other {'labels' if here is None else 'places'} "
                f"for some anchors; raise mining.cache, or lower mining.negatives from {negatives}."
            )
        cosine = (points[a] @ points.T).masked_fill_(barred, -torch.inf)
        nearest = cosine.topk(negatives, dim=1)
        to_positive = (points[a] * points[p]).sum(-1)
        excess.append(2 * (nearest.values[:, 0] - to_positive) + margin)  # ‖a−p‖² − ‖a−n‖² + m
        tuples.append(torch.cat((a[:, None], p[:, None], nearest.indices), dim=1))
    candidates, beyond = torch.cat(tuples), torch.cat(excess)
    kept = candidates[beyond > 0]
    if len(kept) == 0:
        kept = candidates[beyond.argsort(descending=True)[:at_least]]
    return kept[torch.randperm(len(kept), generator=generator).to(kept.device)]


def _drawn_positives(labels: Tensor, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Rows whose label has a second row, (a,), and for each another row of its label, each as likely, (a,)."""
    order = labels.argsort(stable=True)  # rows, label by label
    _, group, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    starts = counts.cumsum(0) - counts
    place = torch.empty_like(order)
    place[order] = torch.arange(len(labels), device=labels.device)
    place = place - starts[group]  # of each row within its label
    anchors = torch.nonzero(counts[group] > 1)[:, 0]
    size = counts[group[anchors]]
    draw = torch.rand(len(anchors), generator=generator, dtype=torch.float64).to(labels.device)
    step = 1 + (draw * (size - 1)).long()  # 1 … size − 1: never back to itself
    return anchors, order[starts[group[anchors]] + (place[anchors] + step) % size]


def cache_of_places(places: Places, count: int, *, generator: torch.Generator) -> Tensor:
    """Rows (≤ count,) of places to mine in: queries, one near database row of each, and other database rows.

    Out of a million images, a few thousand at random would hold hardly any two of one place.
    """
    from scipy.spatial import cKDTree

    database = torch.nonzero(~places.query)[:, 0]
    queries = torch.nonzero(places.query)[:, 0]
    queries = queries[torch.randperm(len(queries), generator=generator)[: count // 2]]
    tree = cKDTree(places.position[database].numpy())
    near = tree.query_ball_point(places.position[queries].numpy(), places.radius)
    draw = torch.rand(len(queries), generator=generator).tolist()
    partners = [found[int(share * len(found))] for found, share in zip(near, draw, strict=True) if found]
    others = torch.randperm(len(database), generator=generator)
    chosen = torch.cat([torch.tensor(partners, dtype=torch.long), others])
    kept = _without_repeats(chosen)[: max(count - len(queries), 0)]
    return torch.cat([queries, database[kept]])


def _without_repeats(values: Tensor) -> Tensor:
    """Each value once, where it first stood."""
    different, place = values.unique(return_inverse=True)
    first = torch.full((len(different),), len(values)).scatter_reduce_(
        0, place, torch.arange(len(values)), "amin"
    )
    return values[first.sort().values]


def _on(places: Places, device: torch.device) -> Places:
    region, query = places.region.to(device), places.query.to(device)
    return Places(places.position.to(device), region, query, places.radius)


def _near(places: Places, rows: Tensor) -> Tensor:
    """Which rows lie within the radius of these, (r, n)."""
    return within(places.position[rows, None], places.position, radius=places.radius)


def _drawn_near(places: Places, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Queries with a database row within the radius, (a,), and for each one such row, each as likely, (a,)."""
    anchors, positives = [], []
    for rows in torch.nonzero(places.query)[:, 0].split(ANCHOR_CHUNK):
        near = _near(places, rows) & ~places.query  # (r, n)
        draw = torch.rand(near.shape, generator=generator).to(near.device)
        has = near.any(1)
        anchors.append(rows[has])
        positives.append(torch.where(near, draw, -1.0).argmax(1)[has])
    empty = torch.empty(0, dtype=torch.long, device=places.query.device)
    return torch.cat([empty, *anchors]), torch.cat([empty, *positives])
