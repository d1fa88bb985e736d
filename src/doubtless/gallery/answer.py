"""`Answer`: what one query is told, in plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from doubtless.calibration.sentence import code_of as code_of
from doubtless.calibration.sentence import values_of as values_of

if TYPE_CHECKING:
    from doubtless.embedding import Embedding

Decision = Literal["answer", "abstain", "not-in-gallery"]
DECISIONS: tuple[Decision, ...] = ("answer", "abstain", "not-in-gallery")
"""Codes of `Answers.decision` → what they mean."""
ANSWER, ABSTAIN, NOT_IN_GALLERY = range(3)
PARTS = ("image", "model", "gallery", "distance", "novelty")
"""What a doubt may come from."""


@dataclass(frozen=True)
class AnswerHit:
    """One item that was found."""

    id: str
    label: str | None
    score: float
    """Cosine."""
    probability: float | None
    """Of its label, where the gallery was calibrated on labels, else of itself; None before calibration."""
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
class LabelChance:
    """A label that was found, and how probable it is."""

    label: str
    probability: float


@dataclass(frozen=True)
class Choice:
    """One of what an answer lies between: a label or, by None, none of the labels found."""

    label: str | None
    probability: float


@dataclass(frozen=True)
class Answer:
    """What one query is told.

    decision       "answer" | "abstain" | "not-in-gallery"
    hits           what was found, nearest first
    labels, none   labels that were found, the most probable first, and the probability of none of these; all of
                   them add up to 1. () and None where nothing was calibrated, or pairs of items were
    between        of these, what it lies between, the most probable first
    covering_set   labels that contain the true one with the confidence asked for; without labels ids of hits. None
                   where that is not calibrated, or more is asked than all that was found can promise
    doubt, parts   how unsure, and from what: 1 − doubt is the product of all 1 − part. gallery: labels contest it;
                   distance: none of these; novelty, image, model: the picture is unlike all that is known. What was
                   not measured is not there
    reason         a sentence
    warnings       what this answer cannot promise
    uncertainty    of the query's own embedding; None for points
    id             the same for the same query and the same answer: feedback refers to it
    promised       the share of wrong answers that was promised, at most; None where nothing is
    query          what was asked, one embedding
    """

    decision: Decision
    hits: tuple[AnswerHit, ...]
    covering_set: tuple[str, ...] | None
    doubt: float | None
    parts: Mapping[str, float]
    reason: str
    warnings: tuple[str, ...] = ()
    uncertainty: float | None = None
    labels: tuple[LabelChance, ...] = ()
    none: float | None = None
    between: tuple[Choice, ...] = ()
    id: str | None = None
    promised: float | None = None
    query: Embedding | None = field(default=None, repr=False, compare=False)

    @property
    def label(self) -> str | None:
        """What is answered; None where nothing is, or the item has no label."""
        if self.decision != "answer":
            return None
        if self.labels:
            return self.labels[0].label
        return self.hits[0].label if self.hits else None

    @property
    def probability(self) -> float | None:
        """Of the most probable label, answered or not, or of the first hit; None before calibration."""
        if self.labels:
            return self.labels[0].probability
        return self.hits[0].probability if self.hits else None

    @property
    def unmeasured(self) -> list[str]:
        """Parts of the doubt that nobody looked at; none where nothing is known of the doubt at all."""
        return [] if self.doubt is None else [part for part in PARTS if part not in self.parts]

    def to_json(self) -> dict[str, Any]:
        """The one form of an answer in JSON, the same from Python, the command line and over HTTP.

        Sentences come with a code and the values that they were made of, for whoever speaks another language.

        >>> sorted(Answer("abstain", (), None, 0.5, {}, "No answer.").to_json())[:4]
        ['between', 'covering_set', 'decision', 'doubt']
        """
        return {
            "id": self.id,
            "decision": self.decision,
            "label": self.label,
            "probability": finite(self.probability),
            "labels": [{"label": one.label, "probability": one.probability} for one in self.labels],
            "none": finite(self.none),
            "between": [{"label": one.label, "probability": one.probability} for one in self.between],
            "reason": str(self.reason),
            "reason_code": code_of(self.reason),
            "reason_values": plain(values_of(self.reason)),
            "doubt": finite(self.doubt),
            "parts": {name: finite(value) for name, value in self.parts.items()},
            "unmeasured": self.unmeasured,
            "uncertainty": finite(self.uncertainty),
            "covering_set": None if self.covering_set is None else list(self.covering_set),
            "warnings": [str(one) for one in self.warnings],
            "warning_codes": [
                {"code": code_of(one), "values": plain(values_of(one))} for one in self.warnings
            ],
            "hits": [hit.to_json(rank) for rank, hit in enumerate(self.hits, start=1)],
        }


def finite(value: float | None) -> float | None:
    """None where a number is infinite or missing: JSON has no word for that."""
    return value if value is not None and math.isfinite(value) else None


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values with None in place of numbers that JSON has no word for."""
    return {name: finite(value) if isinstance(value, float) else value for name, value in values.items()}
