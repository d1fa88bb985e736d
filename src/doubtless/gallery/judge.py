"""`Judge`: from what a search found to answers: how likely every hit is right, and whether a query is answered.

All of it is a few operations over (queries, hits); a plain search costs about as much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from doubtless.calibration import calibrator, conformal, pairs, risk
from doubtless.calibration.calibrator import Calibrator
from doubtless.calibration.conformal import CoveringSets, Presence
from doubtless.calibration.features import DEPTH
from doubtless.calibration.fit import Calibration
from doubtless.calibration.pairs import PairCalibrator
from doubtless.calibration.risk import RiskControl
from doubtless.doubt.doubt import ATTACHMENT as DOUBT
from doubtless.doubt.doubt import Doubt
from doubtless.embedding import Embedding
from doubtless.errors import StoreError
from doubtless.gallery.answer import ABSTAIN, ANSWER, NOT_IN_GALLERY, Answers, Doubted, Promise, finite
from doubtless.index.base import Index
from doubtless.search.hits import Hits

RECORD = "calibration"
"""The attachment that says under which conditions the others were calibrated."""
GROWN = 1.25
"""A gallery that has grown or shrunk by this factor since is warned of."""

READERS: dict[str, Any] = {
    calibrator.ATTACHMENT: Calibrator,
    conformal.COVERING: CoveringSets,
    conformal.PRESENCE: Presence,
    risk.ATTACHMENT: RiskControl,
    pairs.ATTACHMENT: PairCalibrator,
}
"""Name of an attachment, and of its field of `Calibrated` → who reads it."""
NOTHING = {"nothing": True}
COMBINED, PROBABILITY = "combined", "probability"
"""What abstention was calibrated for: the combined doubt, or 1 − P(first hit right)."""


class DoubtLike(Protocol):
    """A fitted combined doubt."""

    def of(self, hits: Hits, features: Tensor | None = None, *, queries: Embedding | None = None) -> Doubted:
        """The doubt of n queries and its parts."""


@dataclass(frozen=True, eq=False)
class Calibrated:
    """What was calibrated for an index and is kept with it; any of it may be missing."""

    calibrator: Calibrator | None = None
    covering: CoveringSets | None = None
    presence: Presence | None = None
    risk: RiskControl | None = None
    pairs: PairCalibrator | None = None
    doubt: Doubt | None = None
    record: Mapping[str, Any] | None = None

    @classmethod
    def of(
        cls,
        calibration: Calibration,
        record: Mapping[str, Any],
        *,
        pairs: PairCalibrator | None = None,
        doubt: Doubt | None = None,
    ) -> Calibrated:
        """What `doubtless.calibration.fit.calibrate` gave; the record says by what is abstained."""
        by = PROBABILITY if calibration.doubt_of is None else COMBINED
        return cls(
            calibration.calibrator,
            calibration.covering,
            calibration.presence,
            calibration.risk,
            pairs,
            doubt,
            {**record, "doubt": by},
        )

    @classmethod
    def load(cls, index: Index) -> Calibrated:
        """What was saved with an index."""
        fields = {name: _read(index, name, reader) for name, reader in READERS.items()}
        record = _attached(index, RECORD)
        about = None if record is None else record[1]
        doubt = _read(index, DOUBT, Doubt) if (about or {}).get("doubt") == COMBINED else None
        return cls(**fields, doubt=doubt, record=about)

    def save(self, index: Index) -> None:
        """Keeps everything in the index; what is not there takes the place of an older one all the same."""
        for name in (*READERS, DOUBT):
            value = getattr(self, name)
            index.attach(name, *(({}, NOTHING) if value is None else value.state()))
        index.attach(RECORD, {}, dict(self.record or {}))

    @property
    def is_combined(self) -> bool:
        """Whether the combined doubt decides about abstention, and not 1 − P(first hit right)."""
        return (self.record or {}).get("doubt") == COMBINED


def _attached(index: Index, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    state = index.attached(name)
    return None if state is None or state[1] == NOTHING else state


def _read(index: Index, name: str, reader: Any) -> Any:
    """What a reader makes of an attachment; None where there is none."""
    state = _attached(index, name)
    try:
        return None if state is None else reader.from_state(*state)
    except (KeyError, TypeError) as error:
        raise StoreError(
            f"What {index.path} keeps as its {name} cannot be read ({error!r}); calibrate it again."
        ) from error


class Judge:
    """Says what to think of hits, by what was calibrated."""

    def __init__(
        self,
        calibrated: Calibrated,
        *,
        doubt: DoubtLike | None = None,
        target_error: float | None = None,
        error_confidence: float | None = None,
    ) -> None:
        """`target_error` and `error_confidence` ask for another promise than the calibrated one.

        A `doubt` that abstention was not calibrated for adds its parts to answers, and decides nothing.
        """
        self.doubt: DoubtLike | None = calibrated.doubt if doubt is None else doubt
        # Features before the head are what only an image has: a vector's novelty is then not looked at.
        self.wants_features = isinstance(self.doubt, Doubt) and self.doubt.wants_features
        control = calibrated.risk
        if control is not None and (target_error, error_confidence) != (None, None):
            control = control.at(target_error=target_error, confidence=error_confidence)
            calibrated = replace(calibrated, risk=control)
        self.calibrated = calibrated
        self.why_not = "The index is not calibrated: no probability, and every query is answered."
        self.false_alarm = None if calibrated.presence is None else calibrated.presence.false_alarm

    @classmethod
    def of_nothing(cls, score: str) -> Judge:
        """For hits by another score than the calibrated one: they are shown and not judged."""
        judge = cls(Calibrated())
        judge.why_not = (
            f"Ranked by {score}, for which nothing was calibrated: no probability, and no refusal."
        )
        return judge

    def depth(self, k: int) -> int:
        """Hits that must be searched for k of them to be judged."""
        return k if self.calibrated.calibrator is None else max(k, DEPTH)

    def answers(
        self,
        hits: Hits,
        embedding: Embedding,
        index: Index,
        *,
        k: int = 10,
        confidence: float = 0.9,
        features: Tensor | None = None,
        filtered: bool = False,
    ) -> Answers:
        """Answers from hits in an index, at least `DEPTH` of them where the gallery has so many.

        features   (n, F) of the queries before the head, where the doubt looks at them
        filtered   whether only some of the gallery was searched
        """
        calibrated, items = self.calibrated, len(index)
        chance = None if calibrated.calibrator is None else calibrated.calibrator.probability(hits)
        sizes = None
        if calibrated.covering is not None and chance is not None:
            sizes = calibrated.covering.sizes(chance[:, :DEPTH], confidence=confidence)
        p_value = None if calibrated.presence is None else calibrated.presence.p_value(hits)
        following = self._following(index)
        doubt = None if following is None else following.of(hits, features, queries=embedding)
        total = None if chance is None else 1 - chance[:, 0]
        if doubt is not None and (calibrated.is_combined or total is None):
            total = doubt.total
        by_vector = features is None and self.wants_features
        return Answers(
            index=index,
            hits=hits,
            k=k,
            decision=self._decide(hits, total, p_value),
            promise=self._promise(confidence),
            probability=chance,
            covering=sizes,
            presence=p_value,
            total_doubt=total,
            doubt=doubt,
            warnings=self._warnings(items, filtered=filtered, by_vector=by_vector),
        )

    def tested_doubts(self) -> Tensor | None:
        """Doubts (m,) of the calibration queries that nothing was fitted on or chosen by; None: not calibrated."""
        if self.calibrated.risk is None:
            return None
        doubt, _, pilot = self.calibrated.risk.evidence
        return doubt[~pilot]

    def promise(self) -> dict[str, Any] | None:
        """What is promised, in plain values; None where nothing is."""
        control = self.calibrated.risk
        if control is None:
            return None
        return {
            "sentence": control.sentence(),
            "target_error": control.target_error,
            "confidence": control.confidence,
            "met": control.met,
            "threshold": finite(control.threshold),
            "coverage": control.coverage,
            "queries": control.queries,
            "false_alarm": self.false_alarm,
        }

    def _following(self, index: Index) -> DoubtLike | None:
        """The doubt among what the index holds now, where the index knows that at no cost."""
        if isinstance(self.doubt, Doubt) and self.doubt.leverage is not None and index.keeps_moments:
            self.doubt = self.doubt.among(index.moments())
        return self.doubt

    def _decide(self, hits: Hits, total: Tensor | None, p_value: Tensor | None) -> Tensor:
        """(n,) codes: absent where presence is too unlikely, else answered up to the threshold of doubt."""
        decision = torch.full_like(hits.row[:, 0], ANSWER)
        if self.calibrated.risk is not None and total is not None:
            decision[~self.calibrated.risk.answers(total)] = ABSTAIN
        if p_value is not None:
            assert self.false_alarm is not None
            decision[p_value <= self.false_alarm] = NOT_IN_GALLERY
        decision[~hits.found[:, 0]] = NOT_IN_GALLERY
        return decision

    def _promise(self, confidence: float) -> Promise:
        control = self.calibrated.risk
        return Promise(
            threshold=None if control is None else control.threshold,
            target_error=None if control is None else control.target_error,
            error_confidence=None if control is None else control.confidence,
            false_alarm=self.false_alarm,
            set_confidence=confidence,
        )

    def _warnings(self, items: int, *, filtered: bool, by_vector: bool) -> tuple[str, ...]:
        if self.calibrated.calibrator is None:
            return (self.why_not,)
        warnings = []
        control, then = self.calibrated.risk, (self.calibrated.record or {}).get("items")
        if control is not None and not control.met:
            warnings.append(control.sentence())
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
