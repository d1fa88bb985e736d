"""Test images of a run made worse and cut: embedded again at every step, and every uncertainty asked again.

A picture searches what it always searches, its own undisturbed twin left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from doubtless.data import ImageSet, Progress
from doubtless.data.corruptions import CORRUPTIONS, crop
from doubtless.data.geometry import short_side_to
from doubtless.doubt.doubt import Doubt
from doubtless.evaluation.disturbed import RIGHT, crop_curves, worse_curves
from doubtless.methods import Described
from doubtless.metrics.measure import Curve
from doubtless.metrics.uncertainty import DEPTH, free_uncertainties
from doubtless.progress import phase
from doubtless.runs.doubt import Labelled, Reader, doubts_of
from doubtless.search import Positions
from doubtless.search.relevance import is_right
from doubtless.search.scores import ScoreName, Search

STRENGTHS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
AREAS = (1.0, 0.8, 0.6, 0.4, 0.25, 0.1)
CROPS = "crops"
BATCH = 64  # pictures that are read, and then disturbed in every way

Change = Callable[[Tensor, int], Tensor]
"""A picture (C, H, W) and the seed of what is drawn → the same picture made worse."""


@dataclass(frozen=True, eq=False)
class Asked:
    """What is asked of every embedded picture."""

    searched: Labelled
    doubt: Doubt | None
    score: ScoreName
    closed: bool
    alone: bool  # the queries search among themselves

    def of(self, described: Described, truth: Tensor | Positions, rows: Tensor) -> dict[str, Tensor]:
        """Every uncertainty (n,) of the pictures `rows` of the queries, and whether their first hit is right."""
        embedding, gallery = described.embedding, self.searched.embedding
        rows = rows.to(embedding.device)
        itself = rows if self.alone else None
        search = Search(self.score, gallery)
        found = search.nearest(embedding, k=min(DEPTH, len(gallery) - self.alone), exclude=itself)
        values = free_uncertainties(search.cosines(embedding, found), embedding.location)
        if embedding.uncertainty is not None:
            values["uncertainty"] = embedding.uncertainty.double()
        if self.doubt is not None:
            asking = Labelled(embedding, described.features, truth)
            values |= doubts_of(
                self.doubt, asking, self.searched, score=self.score, closed=self.closed, itself=itself
            )
        truth, held = truth.to(embedding.device), self.searched.truth.to(embedding.device)
        values[RIGHT] = is_right(truth, held, rows=rows, found=found.index[:, 0])
        return {name: value.cpu() for name, value in values.items()}


@dataclass(frozen=True, eq=False)
class Steps:
    """What was asked of all pictures at each step of one way to disturb them; the first is untouched."""

    changes: Sequence[Change]
    values: Sequence[dict[str, Tensor]]


@dataclass(frozen=True, eq=False)
class Disturbed:
    """Pictures of a set, disturbed in every way."""

    images: ImageSet
    rows: Tensor  # (n,) which of them
    ways: dict[str, Steps]

    @property
    def curves(self) -> dict[str, dict[str, Curve]]:
        """Figures "disturbed/blur", …, and "crops"."""
        figures = {}
        for way, steps in self.ways.items():
            if way == CROPS:
                figures[CROPS] = crop_curves(steps.values, AREAS)
            else:
                figures[f"disturbed/{way}"] = worse_curves(steps.values, STRENGTHS)
        return figures

    @property
    def middling(self) -> int:
        """Which of the pictures has the median uncertainty: the learned one, else the distance."""
        still = self.ways[CROPS].values[0]
        return int(
            still.get("uncertainty", still["distance"]).argsort(stable=True)[(len(self.rows) - 1) // 2]
        )


@phase("disturbed")
def disturb_images(
    read: Reader, images: ImageSet, truth: Tensor | Positions, asked: Asked, *, count: int
) -> Disturbed:
    """At most `count` images, drawn by a fixed seed, at every step of every way; each has noise of its own."""
    drawn = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    rows = drawn[:count].sort().values
    ways = {way: _changes(way) for way in (*CORRUPTIONS, CROPS)}
    found: dict[tuple[str, int], list[Described]] = {
        (way, step): [] for way, changes in ways.items() for step in range(len(changes))
    }
    for pictures in _pictures(images, rows, read.progress):
        for (way, step), parts in found.items():
            parts.append(_described(read, images, pictures, ways[way][step]))
    values = {place: asked.of(Described.cat(parts), truth, rows) for place, parts in found.items()}
    return Disturbed(
        images,
        rows,
        {
            way: Steps(changes, [values[way, step] for step in range(len(changes))])
            for way, changes in ways.items()
        },
    )


def _changes(way: str) -> list[Change]:
    if way == CROPS:
        return [partial(_cropped, area) for area in AREAS]
    return [partial(_corrupted, way, strength) for strength in STRENGTHS]


def _cropped(area: float, picture: Tensor, seed: int) -> Tensor:
    return crop(picture, area, seed=seed)


def _corrupted(way: str, strength: float, picture: Tensor, seed: int) -> Tensor:
    return CORRUPTIONS[way](picture, strength, seed=seed)


Read = list[tuple[int, Tensor]]
"""Pictures (C, H, W), each with the seed of what is drawn for it."""


def _pictures(images: ImageSet, rows: Tensor, progress: Progress | None) -> Iterator[Read]:
    parts = rows.split(BATCH)
    for part in progress(parts, "disturbed images", len(parts)) if progress else parts:
        yield [(int(images.index[row]), images.source.image(int(images.index[row]))) for row in part.tolist()]


def _described(read: Reader, images: ImageSet, pictures: Read, change: Change) -> Described:
    batch = torch.stack([changed(images, picture, seed, change) for seed, picture in pictures])
    with torch.no_grad():
        described = read.method.describe(batch)
    return Described(described.embedding, read.narrowed(described.features))


def changed(images: ImageSet, picture: Tensor, seed: int, change: Change) -> Tensor:
    """A picture of a set, made worse and prepared as the set's are, (C, size, size).

    What will be scaled down is scaled down before it is blurred, which costs less and looks the same; crops are
    taken from all the pixels there are.
    """
    size = images.preparation.size
    if size is not None and min(picture.shape[1:]) > size and getattr(change, "func", None) is _corrupted:
        picture = short_side_to(picture, size)
    return images.preparation(change(picture, seed))
