"""What calibration queries found, kept so that a gallery that changed, or a part of it, needs no new calibration.

Every query is kept with its label and with what it found in the gallery, once without itself and once without its
label, a few hits deeper than answers look. Items that came are compared with the queries and merged into what they
had found; of items that went the hits are dropped, and only queries that lost too many are searched again. What
comes out is what a search of everything would find.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from torch import Tensor

from doubtless.calibration.distribution import DEPTH
from doubtless.calibration.evidence.evidence import LabelHits, Vectors
from doubtless.calibration.searches import Sample, Searches

SPARE = 14
"""Hits kept beyond those that answers look at: so many may be removed before a query is searched again."""
SCORES_AT_ONCE = 2**22
SPARSE = 4
"""Rows per item up to which their places are kept in a table."""

LabelOf = Callable[[Tensor], Tensor]
"""Rows of items in any shape → their label codes; −1 of one that is not there, or has none."""


def some_of(rows: Tensor, most: int, seed: int) -> Tensor:
    """At most so many of the rows, in their order."""
    if len(rows) <= most:
        return rows
    drawn = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))[:most]
    return rows[drawn.sort().values]


@dataclass(frozen=True, eq=False)
class Items:
    """Items of a gallery: rows (m,), rising, and their labels (m,), −1 without one; vectors are had by row."""

    row: Tensor
    label: Tensor
    vectors: Vectors | None
    """None: nobody can look at them; all is told from scores."""

    def __len__(self) -> int:
        return len(self.row)

    def __getitem__(self, chosen: Tensor) -> Items:
        return Items(self.row[chosen], self.label[chosen], self.vectors)

    def label_of(self, rows: Tensor) -> Tensor:
        """Label codes of rows in any shape; −1 of one that is not among these items, or has none."""
        if not len(self.row):
            return torch.full_like(rows, -1)
        place, there = self._places(rows)
        return torch.where(there, self.label[place], -1)

    def has(self, rows: Tensor) -> Tensor:
        """Whether rows, in any shape, are among these items."""
        if not len(self.row):
            return torch.zeros_like(rows, dtype=torch.bool)
        return self._places(rows)[1]

    def _places(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Where rows stand among these items, anywhere if they do not, and whether they do."""
        if self._place_of is None:
            place = torch.searchsorted(self.row, rows.contiguous()).clamp_max(len(self.row) - 1)
        else:
            place = self._place_of[rows.clamp(0, len(self._place_of) - 1)]
        return place, self.row[place] == rows

    @cached_property
    def _place_of(self) -> Tensor | None:
        """Row → its place among these items, anything for rows that are none; None where rows are too far apart.

        Looking up is several times as quick as searching, and a gallery that lost few items has few gaps.
        """
        size = int(self.row[-1]) + 1
        if size > SPARSE * len(self.row):
            return None
        return torch.zeros(size, dtype=torch.long).index_copy_(0, self.row, torch.arange(len(self.row)))

    def counted(self, label: Tensor) -> Tensor:
        """How many of these items carry each label (n,)."""
        size = int(max(label.max() if len(label) else 0, self.label.max() if len(self.label) else 0)) + 1
        return self.label[self.label >= 0].bincount(minlength=size)[label]


@dataclass(frozen=True, eq=False)
class Found:
    """Rows (n, K) and cosines (n, K) of what n queries found, best first; −1 and −inf where there is nothing."""

    row: Tensor
    score: Tensor

    def __getitem__(self, chosen: Tensor) -> Found:
        return Found(self.row[chosen], self.score[chosen])

    @property
    def count(self) -> Tensor:
        """(n,) how many there are."""
        return (self.row >= 0).sum(1)

    def without(self, gone: Tensor) -> Found:
        """The same without hits that are gone (n, K); what follows moves up."""
        order = gone.to(torch.uint8).argsort(dim=1, stable=True)
        row, score = self.row.masked_fill(gone, -1), self.score.masked_fill(gone, -torch.inf)
        return Found(row.gather(1, order), score.gather(1, order))

    def merged(self, other: Found) -> Found:
        """The best K of both."""
        score = torch.cat([self.score, other.score], dim=1)
        best = score.topk(self.row.shape[1], dim=1)
        return Found(torch.cat([self.row, other.row], dim=1).gather(1, best.indices), best.values)

    def cut(self, count: Tensor) -> Found:
        """The first count (n,) of each."""
        beyond = torch.arange(self.row.shape[1]) >= count.unsqueeze(1)
        return Found(self.row.masked_fill(beyond, -1), self.score.masked_fill(beyond, -torch.inf))


def search_items(
    queries: Tensor, items: Items, *, own: Tensor, label: Tensor | None = None, depth: int = DEPTH + SPARE
) -> Found:
    """The nearest items of queries (n, D), none of them the query's own row (n,), nor of its `label` (n,) if given.

    >>> items = Items(torch.tensor([3, 4, 5]), torch.tensor([0, 1, 0]), lambda rows: torch.eye(3)[rows - 3])
    >>> near = torch.nn.functional.normalize(torch.tensor([[0.1, 0.9, 0.3]]))
    >>> search_items(near, items, own=torch.tensor([4]), label=None, depth=2).row.tolist()
    [[5, 3]]
    """
    return _searched(queries, items, own, [label], depth)[0]


def search_twice(
    queries: Tensor, items: Items, *, own: Tensor, label: Tensor, depth: int = DEPTH + SPARE
) -> tuple[Found, Found]:
    """The nearest items of queries (n, D), and the nearest that are not of the query's label (n,)."""
    present, absent = _searched(queries, items, own, [None, label], depth)
    return present, absent


def _searched(
    queries: Tensor, items: Items, own: Tensor, labels: Sequence[Tensor | None], depth: int
) -> list[Found]:
    """What queries find, once per labels (n,) that are left out beside those before; None: none is."""
    parts = [
        Found(torch.full((len(queries), depth), -1), torch.full((len(queries), depth), -torch.inf))
        for _ in labels
    ]
    if not len(items) or not len(queries):
        return parts
    assert items.vectors is not None  # who searches items can look at them
    vectors = items.vectors(items.row).float().T  # (D, m)
    count = min(depth, len(items))
    for part in torch.arange(len(queries)).split(max(1, SCORES_AT_ONCE // len(items))):
        cosine = queries[part].float() @ vectors
        cosine.masked_fill_(items.row == own[part].unsqueeze(1), -torch.inf)
        for found, label in zip(parts, labels, strict=True):
            if label is not None:
                cosine.masked_fill_(items.label == label[part].unsqueeze(1), -torch.inf)
            best = cosine.topk(count, dim=1)
            found.score[part, :count] = best.values
            found.row[part, :count] = torch.where(best.values.isfinite(), items.row[best.indices], -1)
    return parts


@dataclass(frozen=True, eq=False)
class KeptSearches:
    """n calibration queries and what they found."""

    own: Tensor
    """(n,) its row in the gallery; −1: it is from outside."""
    label: Tensor
    """(n,) codes as the gallery's."""
    foreign: Tensor
    """(n,) float64: the probability that it shows nothing of the kind."""
    present: Found
    absent: Found
    """Without items of its label; nothing where it was not searched for."""
    outside: Tensor | None = None
    """(n, D) vectors of queries from outside; None: they are items."""

    def __len__(self) -> int:
        return len(self.label)

    def __getitem__(self, chosen: Tensor) -> KeptSearches:
        return KeptSearches(
            self.own[chosen],
            self.label[chosen],
            self.foreign[chosen],
            self.present[chosen],
            self.absent[chosen],
            None if self.outside is None else self.outside[chosen],
        )

    def vectors(self, items: Items) -> Tensor:
        """(n, D) of the queries; `items` must hold those that are items."""
        if self.outside is not None:
            return self.outside
        assert items.vectors is not None  # items that are queries were looked at
        return items.vectors(self.own)

    def among(self, part: Items, vectors: Tensor) -> KeptSearches:
        """The same queries, whose vectors (n, D) these are, searched in a part of the gallery alone."""
        found = search_twice(vectors, part, own=self.own, label=self.label)
        return KeptSearches(self.own, self.label, self.foreign, *found, self.outside)

    def findable(self, items: Items) -> Tensor:
        """Positions of queries that have another item of their label among these: the known ones."""
        return (items.counted(self.label) > items.has(self.own).long()).nonzero().squeeze(1)

    def searches(self, items: Items, sample: Items) -> tuple[Searches, Tensor, Tensor]:
        """As a distribution is fitted on them, and which queries are its known and its absent ones.

        items    everything that was searched
        sample   some of these, labelled, from which the metric within labels is fitted
        """
        known, absent = self.findable(items), (self.absent.count > 0).nonzero().squeeze(1)
        vectors = self.vectors(items).float()
        place = None
        if self.outside is None:
            at = torch.searchsorted(sample.row, self.own[known]).clamp_max(len(sample) - 1)
            place = torch.where(sample.row[at] == self.own[known], at, -1)
        made = Searches(
            hits_of(self.present[known], items.label_of, vectors[known]),
            self.label[known],
            hits_of(self.absent[absent], items.label_of, vectors[absent]),
            self.label[absent],
            vectors=items.vectors,
            sample=None if items.vectors is None else Sample(items.vectors(sample.row), sample.label, place),
        )
        return made, known, absent

    def tensors(self) -> dict[str, Tensor]:
        """For `Index.attach`."""
        kept = {"own": self.own, "label": self.label, "foreign": self.foreign}
        for name, found in (("present", self.present), ("absent", self.absent)):
            kept |= {f"{name}.{field.name}": getattr(found, field.name) for field in fields(found)}
        return kept if self.outside is None else {**kept, "outside": self.outside}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> KeptSearches:
        """The searches whose `tensors` these are."""
        present, absent = (
            Found(tensors[f"{name}.row"], tensors[f"{name}.score"]) for name in ("present", "absent")
        )
        return cls(
            tensors["own"], tensors["label"], tensors["foreign"], present, absent, tensors.get("outside")
        )


def hits_of(found: Found, label_of: LabelOf, query: Tensor) -> LabelHits:
    """What was found (n, K) with labels, as deep as answers look, for queries' vectors (n, D)."""
    row, score = found.row[:, :DEPTH], found.score[:, :DEPTH]
    return LabelHits(torch.where(row >= 0, label_of(row), -1), score, row, query)


def after_change(kept: KeptSearches, items: Items, *, last: int) -> tuple[KeptSearches, int]:
    """The same queries in the gallery as it is now, and how many of them were searched anew.

    items   everything that is in the gallery
    last    the highest row when they were searched; higher ones are new

    Queries whose own item went are left out. New items are compared with every query, old ones only with queries
    that lost so many hits that fewer than answers look at are known to be the best.
    """
    kept = kept[((kept.own < 0) | items.has(kept.own)).nonzero().squeeze(1)]
    vectors, new = kept.vectors(items), items[items.row > last]
    searched = torch.zeros(len(kept), dtype=torch.bool)
    parts = []
    came = search_twice(vectors, new, own=kept.own, label=kept.label)
    for found, added, label in (
        (kept.present, came[0], None),
        (kept.absent, came[1], kept.label),
    ):
        whole = found.count < found.row.shape[1]  # everything there was
        left = found.without((found.row >= 0) & ~items.has(found.row))
        known = torch.where(whole, found.row.shape[1], left.count)
        merged = left.merged(added).cut(known)
        again = (known < DEPTH).nonzero().squeeze(1)
        if len(again):
            some = None if label is None else label[again]
            fresh = search_items(vectors[again], items, own=kept.own[again], label=some)
            merged.row[again], merged.score[again] = fresh.row, fresh.score
        searched[again] = True
        parts.append(merged)
    changed = KeptSearches(kept.own, kept.label, kept.foreign, parts[0], parts[1], kept.outside)
    return changed, int(searched.sum())
