"""Pairs that are known to be the same or not, drawn from labelled items the way questions are expected to come.

A label is drawn, each as likely as the others, and one of its photos. Its partner is another photo of the label;
or, among the pairs that are not the same, in a stated share the nearest item of another label, else any item of
another one. Each pair is looked at twice: in the gallery as it is, and as if neither thing were in it, with both
labels taken out of what is found around them; a stated share of questions is expected to be of the second kind.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from doubtless.calibration.evidence.surroundings import Both, SearchAround, Surroundings, search_among
from doubtless.embedding import Embedding
from doubtless.errors import InputError

PAIRS = 5_000
"""Pairs of each kind that are drawn at most."""
DEEP = 100
"""Items searched around a picture, so that some are left when two labels are taken out."""


@dataclass(frozen=True)
class Recipe:
    """How pairs are drawn."""

    pairs: int = PAIRS
    """That are the same, and as many that are not."""
    near: float = 0.5
    """Share of those that are not the same whose second item is the nearest of another label."""
    unknown: float = 0.1
    """Share of the pairs whose labels are not in the gallery."""

    def __post_init__(self) -> None:
        for name in ("near", "unknown"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(
                    f"The share of {name} pairs must lie between 0 and 1, got {getattr(self, name)}."
                )


@dataclass(frozen=True, eq=False)
class Around:
    """A gallery that items are compared in: how it is searched, and read at rows."""

    search: SearchAround
    read: Callable[[Tensor], Embedding]

    @classmethod
    def items(cls, embedding: Embedding, labels: Tensor) -> Around:
        """Items in memory; their places are their rows."""
        return cls(search_among(embedding, labels), lambda rows: embedding[rows])


@dataclass(frozen=True, eq=False)
class LabelledPairs:
    """m pairs: both items, the label codes of both (m, 2), and what is around them."""

    first: Embedding
    second: Embedding
    label: Tensor
    near: Tensor
    """(m,) bool: the second item was drawn as the nearest of another label."""
    apart: Tensor
    """(m,) bool: pairs of which no two share a photo, but for those that photos are nearest to."""
    unknown: Tensor
    """(m,) bool: drawn to stand for pairs whose labels are not in the gallery."""
    around: Both
    beyond: Both
    """What is around them without both labels."""

    @property
    def same(self) -> Tensor:
        """(m,) bool."""
        return self.label[:, 0] == self.label[:, 1]

    @classmethod
    def drawn(
        cls,
        embedding: Embedding,
        labels: Tensor,
        recipe: Recipe,
        *,
        rows: Tensor | None = None,
        gallery: Around | None = None,
        generator: torch.Generator,
    ) -> LabelledPairs:
        """From labelled items (n,), at `rows` (n,) of a gallery; rows None: they are not in it.

        Without a gallery the items are their own.
        """
        if gallery is None:
            gallery, rows = Around.items(embedding, labels), torch.arange(len(labels))
        rows = torch.full_like(labels, -2) if rows is None else rows
        first, second = draw_pairs(labels, recipe.pairs, generator=generator)
        wanted = recipe.pairs + torch.arange(round(recipe.near * recipe.pairs))
        apart = sharing_nothing(first, second.index_copy(0, wanted, first[wanted]), generator=generator)
        searched = _Searched(gallery, embedding, first, second)
        found, code = searched.first[wanted].nearest_other(labels[first[wanted]])
        there = found >= 0
        near, found, code = wanted[there], found[there], code[there]
        item, label = (
            torch.stack([rows[first], rows[second]], 1),
            torch.stack([labels[first], labels[second]], 1),
        )
        item[near, 1], label[near, 1] = found, code
        sides = searched.first, searched.replaced(near, found)
        flag = torch.zeros(len(first), dtype=torch.bool)
        flag[near] = True
        return cls(
            embedding[first],
            _put(embedding[second], near, gallery.read(found)),
            label,
            near=flag,
            apart=apart,
            unknown=torch.rand(len(first), generator=generator) < recipe.unknown,
            around=(sides[0].without(item), sides[1].without(item)),
            beyond=(sides[0].without(item, label), sides[1].without(item, label)),
        )


class _Searched:
    """What is around both items of every pair, each item searched once."""

    def __init__(self, gallery: Around, embedding: Embedding, first: Tensor, second: Tensor) -> None:
        self.gallery = gallery
        every, place = torch.cat([first, second]).unique(return_inverse=True)
        found = gallery.search(embedding[every], DEEP)
        self.first, self.second = found[place[: len(first)]], found[place[len(first) :]]

    def replaced(self, pairs: Tensor, rows: Tensor) -> Surroundings:
        """Around the second items, those of some pairs (p,) now at rows (p,) of the gallery."""
        if not len(pairs):
            return self.second
        every, place = rows.unique(return_inverse=True)
        found = self.gallery.search(self.gallery.read(every), DEEP)[place]

        def put(value: Tensor, new: Tensor) -> Tensor:
            value = value.clone()
            value[pairs] = new.to(value.dtype)
            return value

        return Surroundings(
            put(self.second.row, found.row),
            put(self.second.label, found.label),
            put(self.second.score, found.score),
        )


def _put(embedding: Embedding, places: Tensor, new: Embedding) -> Embedding:
    """The embedding with other items at some places."""
    if not len(places):
        return embedding
    order = torch.arange(len(embedding))
    order[places] = len(embedding) + torch.arange(len(places))
    return Embedding.cat([embedding, new])[order]


def sharing_nothing(first: Tensor, second: Tensor, *, generator: torch.Generator) -> Tensor:
    """Whether each pair (m,) is among some that share no item, chosen in random order.

    >>> pairs = torch.tensor([[0, 1], [2, 3]])
    >>> sharing_nothing(pairs[:, 0], pairs[:, 1], generator=torch.Generator()).tolist()
    [True, True]
    """
    chosen = torch.zeros(len(first), dtype=torch.bool)
    used: set[int] = set()
    order = torch.randperm(len(first), generator=generator)
    for pair, *both in torch.stack([order, first[order], second[order]], 1).tolist():
        if used.isdisjoint(both):
            used.update(both)
            chosen[pair] = True
    return chosen


def draw_pairs(labels: Tensor, count: int, *, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Rows of `count` pairs of one label, then of as many of two; no item with itself.

    Labels of at least two items take turns, so none is drawn more than once more than another; of the label an item
    is drawn at random, and its partner at random among the label, or among all others.

    >>> first, second = draw_pairs(torch.tensor([4, 4, 6]), 2, generator=torch.Generator().manual_seed(0))
    >>> (first + second).tolist()[:2]
    [1, 1]
    """
    order = labels.argsort(stable=True)
    classes, size = torch.unique(labels, return_counts=True)
    shared = (size > 1).nonzero().squeeze(1)
    if not len(shared) or len(classes) < 2:
        raise InputError(
            "Pairs need at least two classes and one class of at least two items, got "
            f"{len(labels)} items of {len(classes)} classes."
        )
    start = size.cumsum(0) - size  # of each class in `order`
    turns = [
        shared[torch.randperm(len(shared), generator=generator)] for _ in range(-(-count // len(shared)))
    ]
    drawn = torch.cat(turns)[:count]

    def below(limit: Tensor) -> Tensor:
        return (torch.rand(count, generator=generator, dtype=torch.double) * limit).long()

    one = below(size[drawn])
    item = order[start[drawn] + one]
    partner = order[start[drawn] + (one + 1 + below(size[drawn] - 1)) % size[drawn]]
    first = order[start[drawn] + below(size[drawn])]
    # Items of other classes: all places in `order` but its class's.
    jump = below(len(labels) - size[drawn])
    at = jump + torch.where(jump >= start[drawn], size[drawn], 0)
    return torch.cat([item, first]), torch.cat([partner, order[at]])
