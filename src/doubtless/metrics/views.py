"""What a metric may look at: one class for each kind of thing that an evaluation has at hand. Read-only.

An evaluation prepares a view once and gives it to every metric that is registered for its class. `sizes` are the
numbers of items that a bootstrap replicate draws, set by set; a metric of a view without any has no interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from doubtless.embedding import Embedding
    from doubtless.metrics.verification import PairCounts
    from doubtless.search.relevance import Truth

RISKS = (0.01, 0.05, 0.10)
FALSE_ALARMS = (0.01, 0.10)


@dataclass(frozen=True, eq=False)
class View:
    """What is at hand for one step of an evaluation."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of the items that a replicate draws, one per set."""
        return ()


@dataclass(frozen=True, eq=False)
class Ranked(View):
    """The first neighbours of the queries that have a positive; its metrics give a value for each query, (q,)."""

    relevant: Tensor  # (q, depth) bool: the i-th neighbour is right
    positives: Tensor  # (q,) right items in the gallery, at least 1
    ks: Sequence[int]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The queries."""
        return (len(self.positives),)


@dataclass(frozen=True, eq=False)
class RankedToR(View):
    """Some of the queries with at least as many neighbours as each has positives; a value for each query, (q,)."""

    relevant: Tensor  # (q, depth) bool
    positives: Tensor  # (q,) at most depth

    @property
    def sizes(self) -> tuple[int, ...]:
        """The queries."""
        return (len(self.positives),)


@dataclass(frozen=True, eq=False)
class Answered(View):
    """The queries that have a positive, and whether their first hit is right."""

    correct: Tensor  # (q,) bool
    values: Mapping[str, Tensor] = field(default_factory=dict)  # metric of `Ranked` or `RankedToR` → (q,)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The queries."""
        return (len(self.correct),)


@dataclass(frozen=True, eq=False)
class Scored(View):
    """The same queries with one uncertainty: the learned one, a free one, or one that was given."""

    uncertainty: Tensor  # (q,) higher is less sure
    correct: Tensor  # (q,) bool
    values: Mapping[str, Tensor] = field(default_factory=dict)
    risks: Sequence[float] = RISKS
    learned: bool = False
    match: Tensor | None = None  # (q,) of the query and its first hit together, beside the learned one

    @property
    def sizes(self) -> tuple[int, ...]:
        """The queries."""
        return (len(self.correct),)


@dataclass(frozen=True, eq=False)
class Separated(View):
    """One uncertainty of all queries and of the items of one out-of-distribution set."""

    inside: Tensor  # (n,)
    outside: Tensor  # (m,)
    ratio: float | None = None  # out-of-distribution items to one query in the paper compared with

    @property
    def sizes(self) -> tuple[int, ...]:
        """The queries, and the out-of-distribution items."""
        return len(self.inside), len(self.outside)


@dataclass(frozen=True, eq=False)
class OpenSet(View):
    """One uncertainty of queries whose label is in the gallery, and of queries whose label is not."""

    known: Tensor  # (n,) higher is less sure
    correct: Tensor  # (n,) bool: the first hit is right
    unknown: Tensor  # (m,)
    known_labels: Tensor  # (n,)
    unknown_labels: Tensor  # (m,)
    share: float  # of queries whose label is not in the gallery, where known and unknown are counted together
    risks: Sequence[float] = RISKS
    false_alarms: Sequence[float] = FALSE_ALARMS  # shares of unknown queries that may be answered

    @property
    def sizes(self) -> tuple[int, ...]:
        """The queries whose label is in the gallery, and those whose label is not."""
        return len(self.known), len(self.unknown)


@dataclass(frozen=True, eq=False)
class Voted(View):
    """The queries that have a positive, and whether the label with the most evidence among their hits is right."""

    correct: Tensor  # (q,) bool
    labels: Tensor  # (q,) of the queries

    @property
    def sizes(self) -> tuple[int, ...]:
        """The queries."""
        return (len(self.correct),)


@dataclass(frozen=True, eq=False)
class Agreed(View):
    """What the draws of each query agree on."""

    count: Tensor  # (q,) draws that give the most frequent answer
    correct: Tensor  # (q,) bool: that answer is right
    samples: int

    @property
    def sizes(self) -> tuple[int, ...]:
        """The queries."""
        return (len(self.correct),)


@dataclass(frozen=True, eq=False)
class Rescaled(View):
    """The same where the draws' variance is times a scale that was chosen on validation images."""

    count: Tensor  # (q,)
    correct: Tensor  # (q,) bool
    samples: int
    scale: float

    @property
    def sizes(self) -> tuple[int, ...]:
        """The queries."""
        return (len(self.correct),)


@dataclass(frozen=True, eq=False)
class Matched(View):
    """Calibrated probabilities of first hits."""

    probability: Tensor  # (q,)
    correct: Tensor  # (q,) bool

    @property
    def sizes(self) -> tuple[int, ...]:
        """The queries."""
        return (len(self.correct),)


@dataclass(frozen=True, eq=False)
class Paired(View):
    """All pairs of items, counted by their cosine. Pairs share their items, so there is nothing to draw."""

    counts: PairCounts


@dataclass(frozen=True, eq=False)
class Clustered(View):
    """The queries' labels and k-means clusters. Only other starts of k-means would give an interval."""

    labels: Tensor  # (n,)
    clusters: Tensor  # (n,)


@dataclass(frozen=True, eq=False)
class Whole(View):
    """Everything that was evaluated, for what fits none of the other views."""

    embedding: Embedding  # n queries
    labels: Truth  # (n,)
    gallery: Embedding  # m items
    gallery_labels: Truth  # (m,)
    leave_one_out: bool  # the gallery is the queries, each left out of its own search
    counted: Tensor  # (q,) positions of the queries that have a positive
    neighbor: Tensor  # (q,) gallery position of their first hit
    correct: Tensor  # (q,) bool
    values: Mapping[str, Tensor]  # metric → (q,)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The queries that have a positive."""
        return (len(self.counted),)
