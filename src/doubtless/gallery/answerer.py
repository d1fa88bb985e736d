"""`Answerer`: searches an index and says of every hit how likely it is right, and of every query whether to answer.

All of it is a few operations over (queries, hits); a plain search costs about as much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from doubtless.calibration import calibrator, conformal, risk
from doubtless.calibration.calibrator import Calibrator
from doubtless.calibration.conformal import CoveringSets, Presence
from doubtless.calibration.features import DEPTH
from doubtless.calibration.fit import Calibration
from doubtless.calibration.risk import RiskControl
from doubtless.doubt.doubt import ATTACHMENT as DOUBT
from doubtless.doubt.doubt import Doubt
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery.answer import ABSTAIN, ANSWER, NOT_IN_GALLERY, Answers, Parts, Promise, check_k
from doubtless.search.hits import Hits

if TYPE_CHECKING:
    from doubtless.index.base import Index


ABOUT = "calibration"
"""The part that says under which conditions the others were calibrated."""
GROWN = 1.25
"""A gallery that has grown or shrunk by this factor since is warned of."""

KINDS: dict[str, Any] = {
    calibrator.ATTACHMENT: Calibrator,
    conformal.COVERING: CoveringSets,
    conformal.PRESENCE: Presence,
    risk.ATTACHMENT: RiskControl,
}
"""Name of a part, and of its field of `Answering` → who reads it."""
NOTHING = {"nothing": True}
COMBINED, PROBABILITY = "combined", "probability"
"""What abstention was calibrated for: the combined doubt, or 1 − P(first hit right)."""


class DoubtLike(Protocol):
    """A fitted combined doubt."""

    def of(
        self, hits: Hits, features: Tensor | None = None, *, queries: Embedding | None = None
    ) -> Parts: ...


@dataclass(frozen=True, eq=False)
class Answering:
    """The calibrated parts of an index; any of them may be missing."""

    calibrator: Calibrator | None = None
    covering: CoveringSets | None = None
    presence: Presence | None = None
    risk: RiskControl | None = None
    about: Mapping[str, Any] | None = None

    @classmethod
    def of(cls, made: Calibration, about: Mapping[str, Any] | None = None) -> Answering:
        by = PROBABILITY if made.doubt_of is None else COMBINED
        return cls(made.calibrator, made.covering, made.presence, made.risk, {**(about or {}), "doubt": by})

    @classmethod
    def load(cls, index: Index) -> Answering:
        """What was saved with an index."""
        found = {name: _read(index, name) for name in KINDS}
        made = {name: None if part is None else KINDS[name].from_state(*part) for name, part in found.items()}
        about = _read(index, ABOUT)
        return cls(**made, about=None if about is None else about[1])

    def save(self, index: Index) -> None:
        """Keeps every part in the index; one that is not there takes the place of an older one all the same."""
        for name in KINDS:
            part = getattr(self, name)
            index.attach(name, *(({}, NOTHING) if part is None else part.state()))
        index.attach(ABOUT, {}, dict(self.about or {}))


def _read(index: Index, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    part = index.attached(name)
    return None if part is None or part[1] == NOTHING else part


def _load_doubt(index: Index) -> DoubtLike | None:
    part = _read(index, DOUBT)
    return None if part is None else Doubt.from_state(*part)


class Answerer:
    """Answers from an index.

    >>> answerer = Answerer(FolderIndex.open("shoes"))                               # doctest: +SKIP
    >>> answers = answerer.answer(model.embed(["shoe.jpg"]), k=5)              # doctest: +SKIP
    >>> answers[0].decision, answers[0].hits[0].probability                    # doctest: +SKIP
    """

    def __init__(
        self,
        index: Index,
        *,
        parts: Answering | None = None,
        doubt: DoubtLike | None = None,
        target_error: float | None = None,
        error_confidence: float | None = None,
        false_alarm: float | None = None,
    ) -> None:
        """`target_error`, `error_confidence`, `false_alarm` ask for another promise than the calibrated one.

        A `doubt` that abstention was not calibrated for adds its parts to answers, and decides nothing.
        """
        self.index = index
        parts = Answering.load(index) if parts is None else parts
        self.combined = (parts.about or {}).get("doubt") == COMBINED
        self.doubt = _load_doubt(index) if doubt is None and self.combined else doubt
        if parts.risk is not None and (target_error, error_confidence) != (None, None):
            parts = replace(parts, risk=parts.risk.at(target_error=target_error, confidence=error_confidence))
        self.parts = parts
        own = None if parts.presence is None else parts.presence.false_alarm
        self.false_alarm = own if false_alarm is None else false_alarm
        if own is not None and self.false_alarm != own:
            raise InputError(
                f"answers were calibrated for {own:.1%} false alarms, got {self.false_alarm:.1%}; abstention rests "
                "on that number: calibrate the index again with another one."
            )

    def answer(
        self,
        embedding: Embedding,
        k: int = 10,
        *,
        where: Mapping[str, Any] | None = None,
        confidence: float = 0.9,
        features: Tensor | None = None,
    ) -> Answers:
        """Answers to n queries.

        where        only items for which it holds are searched, as in `Index.search`
        confidence   1 − α of the covering sets, in (0, 1)
        features     (n, F) of the queries before the head, where the doubt looks at them
        """
        check_k(k)
        hits = self.index.search(embedding, max(k, DEPTH), where=where)
        return self.of_hits(
            hits, embedding, k=k, confidence=confidence, features=features, filtered=bool(where)
        )

    def of_hits(
        self,
        hits: Hits,
        embedding: Embedding,
        *,
        k: int = 10,
        confidence: float = 0.9,
        features: Tensor | None = None,
        filtered: bool = False,
    ) -> Answers:
        """Answers from hits that were searched before, at least `DEPTH` of them where the gallery has so many."""
        parts = self.parts
        chance = None if parts.calibrator is None else parts.calibrator.probability(hits)
        p_value = None if parts.presence is None else parts.presence.p_value(hits)
        doubt = None if self.doubt is None else self.doubt.of(hits, features, queries=embedding)
        total = None if chance is None else 1 - chance[:, 0]
        if doubt is not None and (self.combined or total is None):
            total = doubt.total
        sizes = None
        if parts.covering is not None and chance is not None:
            sizes = parts.covering.sizes(chance[:, :DEPTH], confidence=confidence)
        return Answers(
            gallery=self.index,
            hits=hits,
            k=k,
            decision=self._decide(hits, total, p_value),
            promise=self._promise(confidence),
            probability=chance,
            covering=sizes,
            presence=p_value,
            total_doubt=total,
            doubt=doubt,
            warnings=self._warnings(filtered, by_vector=features is None and self._wants_features()),
        )

    def _decide(self, hits: Hits, total: Tensor | None, p_value: Tensor | None) -> Tensor:
        """(n,) codes: absent where presence is too unlikely, else answered up to the threshold of doubt."""
        decision = torch.full((len(hits),), ANSWER)
        if self.parts.risk is not None and total is not None:
            decision[~self.parts.risk.answers(total)] = ABSTAIN
        if p_value is not None:
            assert self.false_alarm is not None
            decision[p_value <= self.false_alarm] = NOT_IN_GALLERY
        decision[~hits.found[:, 0]] = NOT_IN_GALLERY
        return decision

    def _promise(self, confidence: float) -> Promise:
        control = self.parts.risk
        return Promise(
            threshold=None if control is None else control.threshold,
            target_error=None if control is None else control.target_error,
            error_confidence=None if control is None else control.confidence,
            false_alarm=self.false_alarm,
            set_confidence=confidence,
        )

    def _wants_features(self) -> bool:
        return isinstance(self.doubt, Doubt) and self.doubt.wants_features

    def _warnings(self, filtered: bool, *, by_vector: bool = False) -> tuple[str, ...]:
        if self.parts.calibrator is None:
            return ("The index is not calibrated: no probability, and every query is answered.",)
        warnings = []
        control, about = self.parts.risk, self.parts.about or {}
        if control is not None and not control.met:
            warnings.append(control.sentence())
        items, then = len(self.index), about.get("items")
        if then and not 1 / GROWN <= items / then <= GROWN:
            warnings.append(
                f"The gallery had {then} items when it was calibrated and has {items} now; calibrate it again."
            )
        if filtered:
            warnings.append(
                "Probabilities were calibrated on the whole gallery, not on the part that was searched."
            )
        if by_vector:
            warnings.append(
                "Asked with a vector: whether its image is unlike all others was not looked at; the promise is of "
                "images."
            )
        return tuple(warnings)
