"""`Answers`: what many queries are told, as tensors; single `Answer`s are made of it when they are asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from doubtless.calibration.distribution import Distribution
from doubtless.calibration.sentence import Sentence, values_of
from doubtless.embedding import Embedding
from doubtless.gallery import reasons
from doubtless.gallery.answer import DECISIONS, Answer, AnswerHit, Choice, Decision, LabelChance
from doubtless.search.hits import Hits

SHOWN_LABELS = 5
"""Labels that an answer names beside its own hits' ones, the most probable first."""


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
    """Where items and labels are looked up: an `Index`."""

    @property
    def label_names(self) -> list[str]: ...
    def items(self, rows: Tensor) -> Sequence[_Item]: ...


class Doubted(Protocol):
    """What the doubt of n queries comes from."""

    @property
    def total(self) -> Tensor:
        """(n,) in [0, 1]."""

    @property
    def parts(self) -> Mapping[str, Tensor]:
        """Source → (n,), of those that were measured."""

    def reason(self, query: int) -> str:
        """A sentence that names the largest part."""


@dataclass(frozen=True, eq=False)
class Terms:
    """What decisions and sets were made by; None: not calibrated."""

    threshold: float | None = None
    """The largest doubt that is answered; −inf: nothing is."""
    least: float | None = None
    """The smallest probability of a label that is answered; inf: none is. None: not decided by labels."""
    promised_error: float | None = None
    """Share of wrong answers up to that doubt, at most; 1: nothing can be promised."""
    target_error: float | None = None
    false_alarm: float | None = None
    set_confidence: float | None = None


def watched_doubt(sureness: Tensor) -> Tensor:
    """1 − sureness (n,), 2 where that is not finite: drift compares ranks."""
    return (1 - sureness).nan_to_num(posinf=2.0)


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers to n queries. `answers[i]` is an `Answer`; nothing is looked up before that.

    hits may be deeper than k, the number shown: labels and covering sets reach further.
    """

    index: _Lookup
    hits: Hits
    k: int
    decision: Tensor  # (n,) codes of DECISIONS
    terms: Terms
    distribution: Distribution | None = None  # labels in falling order of probability
    probability: Tensor | None = None  # (n, depth) of the hits; NaN of one without a label
    covering: Tensor | None = None  # (n,) size of the covering set, 0: none
    presence: Tensor | None = None  # (n,) p-value of being in the gallery, without a distribution
    total_doubt: Tensor | None = None  # (n,) what is decided by
    doubt: Doubted | None = None
    warnings: tuple[str, ...] = ()
    instead: str | None = None  # the reason of all, where nothing can be said of any
    queries: Embedding | None = None  # n, as they were searched for

    def __len__(self) -> int:
        return len(self.decision)

    def __iter__(self) -> Iterator[Answer]:
        return (self[i] for i in range(len(self)))

    @property
    def parts(self) -> Mapping[str, Tensor]:
        """Name → (n,)."""
        return {} if self.doubt is None else self.doubt.parts

    @property
    def watched(self) -> Tensor | None:
        """What drift is told by, (n,): the doubt, 2 of a query for which no label is more probable than none."""
        if self.distribution is None:
            return self.total_doubt
        return watched_doubt(self.distribution.sureness)

    def decisions(self) -> list[Decision]:
        """Of every query, in words."""
        return [DECISIONS[code] for code in self.decision.tolist()]

    def __getitem__(self, index: int) -> Answer:
        if not -len(self) <= index < len(self):
            raise IndexError(f"There are {len(self)} answers, got index {index}.")
        index = index % len(self)
        size = 0 if self.covering is None else int(self.covering[index])
        by_labels = self.distribution is not None
        row = self.hits.row[index, : self.k if by_labels else max(self.k, size)]
        found = self._found(index, row[row >= 0])
        labels = self._labels(index)
        covered = [one.label for one in labels] if by_labels else [hit.id for hit in found]
        total, uncertainty = self.total_doubt, self.hits.query_uncertainty
        return Answer(
            decision=DECISIONS[int(self.decision[index])],
            hits=found[: self.k],
            covering_set=tuple(covered[:size]) if size else None,
            doubt=None if total is None else float(total[index]),
            parts={name: float(value[index]) for name, value in self.parts.items()},
            reason=self._reason(index, found, labels),
            warnings=self._warnings(size),
            uncertainty=None if uncertainty is None else float(uncertainty[index]),
            labels=labels[: max(self.k, SHOWN_LABELS)],
            none=None if self.distribution is None else float(self.distribution.none[index]),
            between=self._between(index, labels),
            id=self._id(index, labels[0].label if labels else ""),
            promised=self.terms.promised_error,
            query=None if self.queries is None else self.queries[index],
        )

    def _id(self, index: int, label: str) -> str | None:
        """The same for the same query where it is told the same."""
        if self.queries is None:
            return None
        told = hashlib.sha256(f"{int(self.decision[index])}/{self.terms.threshold}/{label}".encode())
        for _, value in sorted(self.queries[index].parameters.items()):
            told.update(value.detach().cpu().contiguous().float().numpy().tobytes())
        return told.hexdigest()[:16]

    def _labels(self, index: int) -> tuple[LabelChance, ...]:
        if self.distribution is None:
            return ()
        names = self.index.label_names
        codes, chances = self.distribution.label[index], self.distribution.probability[index]
        there = codes >= 0
        pairs = zip(codes[there].tolist(), chances[there].tolist(), strict=True)
        return tuple(LabelChance(names[code], chance) for code, chance in pairs)

    def _between(self, index: int, labels: Sequence[LabelChance]) -> tuple[Choice, ...]:
        if self.distribution is None:
            return ()
        return tuple(reasons.in_question(labels, float(self.distribution.none[index])))

    def _found(self, index: int, rows: Tensor) -> tuple[AnswerHit, ...]:
        items = self.index.items(rows)
        score, distance = self.hits.score[index], self.hits.expected_squared_distance[index]
        doubts = self.hits.uncertainty
        return tuple(
            AnswerHit(
                id=item.id,
                label=item.label,
                score=float(score[place]),
                probability=self._chance(index, place),
                expected_squared_distance=float(distance[place]),
                uncertainty=None if doubts is None else float(doubts[index, place]),
                metadata=dict(item.metadata),
                path=None if item.path is None else str(item.path),
            )
            for place, item in enumerate(items)
        )

    def _chance(self, index: int, place: int) -> float | None:
        if self.probability is None or bool(self.probability[index, place].isnan()):
            return None
        return float(self.probability[index, place])

    def _warnings(self, size: int) -> tuple[str, ...]:
        asked = self.terms.set_confidence
        if self.covering is None or size or asked is None:
            return self.warnings
        what = "all labels among the first" if self.distribution is not None else "the first"
        return (
            *self.warnings,
            Sentence(
                f"Even {what} {self.hits.depth} hits together do not contain a match with probability "
                f"{asked:.4g}; ask for less.",
                "set-too-small",
                hits=self.hits.depth,
                confidence=asked,
            ),
        )

    def _reason(self, index: int, found: Sequence[AnswerHit], labels: Sequence[LabelChance]) -> Sentence:
        if not found:
            return Sentence("The gallery is empty.", "empty", largest=None)
        if self.instead is not None:
            return Sentence(self.instead, "nothing-said", largest=None)
        told = self._decided_by(index, found[0].probability, labels)
        because = "" if self.doubt is None or told.code == "nearest" else self.doubt.reason(index)
        largest = values_of(because).get("part")
        return told.and_then(f" {because}" if because else "", largest=largest)

    def _decided_by(self, index: int, first: float | None, labels: Sequence[LabelChance]) -> Sentence:
        """What decided about a query whose first hit is right with probability `first`."""
        decision, terms = DECISIONS[int(self.decision[index])], self.terms
        if self.distribution is not None:
            none = float(self.distribution.none[index])
            return reasons.of_labels(decision, labels, none, terms.least, terms.promised_error)
        if decision == "not-in-gallery":
            assert self.presence is not None
            return reasons.of_absence(float(self.presence[index]), terms.false_alarm)
        if decision == "abstain":
            assert self.total_doubt is not None
            return reasons.of_refusal(terms, float(self.total_doubt[index]), first)
        return reasons.of_nearest(first)
