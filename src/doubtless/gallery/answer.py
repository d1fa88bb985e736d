"""`Answer`: what one query is told; `Answers`: a batch of them as tensors, made into objects when asked for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from doubtless.search.hits import Hits

Decision = Literal["answer", "abstain", "not-in-gallery"]
DECISIONS: tuple[Decision, ...] = ("answer", "abstain", "not-in-gallery")
"""Codes of `Answers.decision` → what they mean."""
ANSWER, ABSTAIN, NOT_IN_GALLERY = range(3)


class _Item(Protocol):
    """What an index knows of an item."""

    @property
    def id(self) -> str: ...
    @property
    def label(self) -> str | None: ...
    @property
    def path(self) -> str | None: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...


class _Lookup(Protocol):
    """Where items are looked up: an `Index`."""

    def items(self, rows: Tensor) -> Sequence[_Item]: ...


class Doubted(Protocol):
    """A combined doubt of n queries with its parts: `DoubtParts` of a fitted `Doubt`."""

    @property
    def total(self) -> Tensor:
        """(n,) in [0, 1]."""

    @property
    def parts(self) -> Mapping[str, Tensor]:
        """Source → (n,)."""

    def reason(self, query: int) -> str:
        """A sentence that names the largest part."""


@dataclass(frozen=True)
class AnswerHit:
    """One item that was found."""

    id: str
    label: str | None
    score: float
    """Cosine."""
    probability: float | None
    """That it is right; None before calibration."""
    expected_squared_distance: float
    uncertainty: float | None = None
    """Of the item; None: the gallery holds points."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    path: str | None = None

    def to_json(self, rank: int) -> dict[str, Any]:
        """Plain values; `image` is where its picture lies: a path here, an address where it is served."""
        return {
            "rank": rank,
            "id": self.id,
            "label": self.label,
            "probability": finite(self.probability),
            "score": finite(self.score),
            "expected_squared_distance": finite(self.expected_squared_distance),
            "uncertainty": finite(self.uncertainty),
            "image": self.path,
            "metadata": dict(self.metadata),
        }


@dataclass(frozen=True)
class Answer:
    """What one query is told.

    decision       "answer" | "abstain" | "not-in-gallery"
    hits           what was found, nearest first
    covering_set   ids of the first hits that contain a true match with the confidence asked for; None where that
                   is not calibrated, or more is asked than all hits together can promise
    doubt, parts   how unsure, and from what: image, model, gallery, distance, novelty
    reason         a sentence
    warnings       what this answer cannot promise
    uncertainty    of the query's own embedding; None for points
    """

    decision: Decision
    hits: tuple[AnswerHit, ...]
    covering_set: tuple[str, ...] | None
    doubt: float | None
    parts: Mapping[str, float]
    reason: str
    warnings: tuple[str, ...] = ()
    uncertainty: float | None = None

    @property
    def label(self) -> str | None:
        """What is answered; None where nothing is, or the item has no label."""
        return self.hits[0].label if self.decision == "answer" and self.hits else None

    @property
    def probability(self) -> float | None:
        """That the first hit is right, answered or not; None before calibration."""
        return self.hits[0].probability if self.hits else None

    def to_json(self) -> dict[str, Any]:
        """The one form of an answer in JSON, the same from Python, the command line and over HTTP.

        >>> sorted(Answer("abstain", (), None, 0.5, {}, "No answer.").to_json())[:4]
        ['covering_set', 'decision', 'doubt', 'hits']
        """
        return {
            "decision": self.decision,
            "label": self.label,
            "probability": finite(self.probability),
            "reason": self.reason,
            "doubt": finite(self.doubt),
            "parts": {name: finite(value) for name, value in self.parts.items()},
            "uncertainty": finite(self.uncertainty),
            "covering_set": None if self.covering_set is None else list(self.covering_set),
            "warnings": list(self.warnings),
            "hits": [hit.to_json(rank) for rank, hit in enumerate(self.hits, start=1)],
        }


def finite(value: float | None) -> float | None:
    """None where a number is infinite or missing: JSON has no word for that."""
    return value if value is not None and math.isfinite(value) else None


@dataclass(frozen=True, eq=False)
class Promise:
    """What decisions and sets were made by; None: not calibrated."""

    threshold: float | None = None
    target_error: float | None = None
    error_confidence: float | None = None
    false_alarm: float | None = None
    set_confidence: float | None = None


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers to n queries. `answers[i]` is an `Answer`; nothing is looked up before that.

    hits may be deeper than k, the number shown: covering sets reach further.
    """

    index: _Lookup
    hits: Hits
    k: int
    decision: Tensor  # (n,) codes of DECISIONS
    promise: Promise
    probability: Tensor | None = None  # (n, depth)
    covering: Tensor | None = None  # (n,) size of the covering set, 0: none
    presence: Tensor | None = None  # (n,) p-value of being in the gallery
    total_doubt: Tensor | None = None  # (n,) what is decided by: combined, or 1 − P(first hit right)
    doubt: Doubted | None = None
    warnings: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.decision)

    def __iter__(self) -> Iterator[Answer]:
        return (self[i] for i in range(len(self)))

    @property
    def parts(self) -> Mapping[str, Tensor]:
        """Name → (n,)."""
        return {} if self.doubt is None else self.doubt.parts

    def decisions(self) -> list[Decision]:
        """Of every query, in words."""
        return [DECISIONS[code] for code in self.decision.tolist()]

    def __getitem__(self, index: int) -> Answer:
        if not -len(self) <= index < len(self):
            raise IndexError(f"There are {len(self)} answers, got index {index}.")
        index = index % len(self)
        size = 0 if self.covering is None else int(self.covering[index])
        shown = max(self.k, size)
        row = self.hits.row[index, :shown]
        found = self._found(index, row[row >= 0])
        total, uncertainty = self.total_doubt, self.hits.query_uncertainty
        return Answer(
            decision=DECISIONS[int(self.decision[index])],
            hits=found[: self.k],
            covering_set=tuple(hit.id for hit in found[:size]) if size else None,
            doubt=None if total is None else float(total[index]),
            parts={name: float(value[index]) for name, value in self.parts.items()},
            reason=self._reason(index, found),
            warnings=self._warnings(size),
            uncertainty=None if uncertainty is None else float(uncertainty[index]),
        )

    def _found(self, index: int, rows: Tensor) -> tuple[AnswerHit, ...]:
        items = self.index.items(rows)
        score, distance = self.hits.score[index], self.hits.expected_squared_distance[index]
        doubts = self.hits.uncertainty
        return tuple(
            AnswerHit(
                id=item.id,
                label=item.label,
                score=float(score[place]),
                probability=None if self.probability is None else float(self.probability[index, place]),
                expected_squared_distance=float(distance[place]),
                uncertainty=None if doubts is None else float(doubts[index, place]),
                metadata=dict(item.metadata),
                path=None if item.path is None else str(item.path),
            )
            for place, item in enumerate(items)
        )

    def _warnings(self, size: int) -> tuple[str, ...]:
        asked = self.promise.set_confidence
        if self.covering is None or size or asked is None:
            return self.warnings
        return (
            *self.warnings,
            f"Even the first {self.hits.depth} hits together do not contain a match with probability {asked:.4g}; "
            "ask for less.",
        )

    def _reason(self, index: int, found: Sequence[AnswerHit]) -> str:
        """Why this was decided, and what the doubt is made of."""
        code = int(self.decision[index])
        if not found:
            return "The gallery is empty."
        if code == NOT_IN_GALLERY:
            assert self.presence is not None
            assert self.promise.false_alarm is not None
            return (
                f"Not in the gallery: of queries that are in it, {float(self.presence[index]):.1%} look so little "
                f"at home; below {self.promise.false_alarm:.1%} is called absent.{self._named(index)}"
            )
        first = found[0].probability
        chance = "" if first is None else f"the first hit is right with probability {first:.2f}"
        if code == ABSTAIN:
            return f"No answer: {self._why_not(index, chance)}.{self._named(index)}"
        if not chance:
            return "The nearest item; its probability is unknown until the index is calibrated."
        return f"{chance[0].upper()}{chance[1:]}.{self._named(index)}"

    def _why_not(self, index: int, chance: str) -> str:
        promise, total = self.promise, self.total_doubt
        assert promise.threshold is not None
        assert promise.target_error is not None
        assert total is not None
        if promise.threshold == -torch.inf:
            return (
                f"an error of at most {promise.target_error:.1%} cannot be promised for any query; {chance}"
            )
        return (
            f"its doubt {float(total[index]):.3g} is above {promise.threshold:.3g}, up to which at most "
            f"{promise.target_error:.1%} of answers are wrong; {chance}"
        )

    def _named(self, index: int) -> str:
        return "" if self.doubt is None else f" {self.doubt.reason(index)}"
