"""`Judge`: from what a search found to answers: how likely every label is, and whether a query is answered.

A gallery whose labels were calibrated is judged by one distribution over the labels found and none of these, from
which decision, reason, parts of the doubt and the hits' numbers are read. One that was calibrated on pairs, or has
a single label, is judged item by item. All of it is a few operations over (queries, hits).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from doubtless.calibration.distribution import DEPTH as LABEL_DEPTH
from doubtless.calibration.distribution import Distribution
from doubtless.calibration.evidence.evidence import LabelHits
from doubtless.calibration.features import DEPTH
from doubtless.calibration.pairs.asked import AskedPairs
from doubtless.calibration.pairs.unlabelled import ASSUMES
from doubtless.calibration.sentence import Sentence
from doubtless.calibration.together import FittedTogether, Pooling
from doubtless.doubt.doubt import Doubt
from doubtless.embedding import Embedding
from doubtless.gallery.answer import ABSTAIN, ANSWER, NOT_IN_GALLERY, finite
from doubtless.gallery.answers import Answers, Doubted, Terms, watched_doubt
from doubtless.gallery.calibration.calibrated import Calibrated
from doubtless.gallery.label_doubt import LabelDoubt, covering_of, oddness
from doubtless.gallery.together import as_one, odd_as_one
from doubtless.index.base import Index
from doubtless.search.hits import Hits

GROWN = 1.25
"""A gallery that has grown or shrunk by this factor since is warned of, where nothing was kept to look closer."""


ABSENT = 0.5
"""Probability of none of the labels above which a thing is said not to be there."""


class DoubtLike(Protocol):
    """A fitted combined doubt."""

    def of(self, hits: Hits, features: Tensor | None = None, *, queries: Embedding | None = None) -> Doubted:
        """The doubt of n queries and its parts."""


class Judge:
    """Says what to think of hits, by what was calibrated."""

    def __init__(
        self,
        calibrated: Calibrated,
        *,
        doubt: DoubtLike | None = None,
        target_error: float | None = None,
        error_confidence: float | None = None,
        unknown: float | None = None,
    ) -> None:
        """`target_error`, `error_confidence` and `unknown` ask for another promise than the calibrated one.

        A `doubt` that abstention was not calibrated for adds its parts to answers, and decides nothing.
        """
        self.doubt: DoubtLike | None = calibrated.doubt if doubt is None else doubt
        # Features before the head are what only an image has: a vector's novelty is then not looked at.
        self.wants_features = isinstance(self.doubt, Doubt) and self.doubt.wants_features
        control, kept = calibrated.risk, calibrated.promise
        if control is not None and (target_error, error_confidence) != (None, None):
            control = control.at(target_error=target_error, confidence=error_confidence)
            calibrated = replace(calibrated, risk=control)
        asked = {"target_error": target_error, "confidence": error_confidence, "unknown": unknown}
        others = {name: value for name, value in asked.items() if value is not None}
        if kept is not None and others:
            calibrated = replace(calibrated, promise=kept.at(**others))
        self.calibrated = calibrated
        self.why_not = Sentence(
            "The index is not calibrated: no probability, and every query is answered.", "not-calibrated"
        )
        self.false_alarm = None if calibrated.presence is None else calibrated.presence.false_alarm
        self.notes: tuple[str, ...] = ()
        """What every answer is warned of."""
        self.instead: str | None = None
        """Said in place of numbers: nothing is answered."""
        self.withdrawn: str | None = None
        """Why what was promised at the calibration holds no longer; None: it does."""
        self.pooling: Pooling | None = None
        """All queries are photos of one thing, and become one answer."""

    @classmethod
    def of_nothing(cls, score: str) -> Judge:
        """For hits by another score than the calibrated one: they are shown and not judged."""
        judge = cls(Calibrated())
        judge.why_not = Sentence(
            f"Ranked by {score}, for which nothing was calibrated: no probability, and no refusal.",
            "other-score",
            score=score,
        )
        return judge

    def with_fit(self, made: Calibrated) -> Judge:
        """The same with another distribution, promise and covering sets: of another gallery, or of a part."""
        fit = replace(
            self.calibrated, distribution=made.distribution, promise=made.promise, covering=made.covering
        )
        return Judge(fit, doubt=self.doubt)

    def of_photos(self, made: FittedTogether) -> Judge:
        """The same for several photos of one thing, of which this was fitted."""
        fit = replace(self.calibrated, promise=made.promise, covering=covering_of(made.present, made.label))
        judge = Judge(fit, doubt=self.doubt)
        judge.notes, judge.withdrawn, judge.pooling = self.notes, self.withdrawn, made.pooling
        return judge

    def noting(self, note: str, *, withdrawn: bool = False) -> Judge:
        """The same with a warning in every answer; `withdrawn`: it says why the calibrated promise is."""
        judge = Judge(self.calibrated, doubt=self.doubt)
        judge.notes = (note,)
        judge.withdrawn = note if withdrawn else None
        return judge

    def saying_nothing(self, why: str) -> Judge:
        """The same without a number: no query is answered, and every one is told why."""
        judge = self.noting(
            why if isinstance(why, Sentence) else Sentence(why, "nothing-said"), withdrawn=True
        )
        judge.instead = why
        return judge

    def for_part(self) -> Judge:
        """For a part of a gallery of whose calibration no query was kept."""
        if not self.calibrated.is_there:
            return self
        return self.noting(
            Sentence(
                "Probabilities were calibrated on the whole gallery, not on the part that was searched.",
                "part-not-calibrated",
            )
        )

    def depth(self, k: int) -> int:
        """Hits that must be searched for k of them to be judged."""
        if self.calibrated.distribution is not None:
            return max(k, LABEL_DEPTH)
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
        together: bool = False,
    ) -> Answers:
        """Answers from hits in an index, at least `DEPTH` of them where the gallery has so many.

        features   (n, F) of the queries before the head, where the doubt looks at them
        together   all are photos of one thing and, last, their mean (`with_mean`): one answer, by `of_photos`
        """
        by_vector = features is None and self.wants_features
        warnings = self._warnings(index, by_vector=by_vector)
        if self.instead is not None:
            hits = as_one(hits[:-1]) if together else hits
            there = hits.found[:, :1].any(1)
            nothing = torch.where(there, ABSTAIN, NOT_IN_GALLERY)
            return Answers(
                index,
                hits,
                k,
                nothing,
                self.terms(confidence),
                warnings=warnings,
                instead=self.instead,
                queries=embedding[-1:] if together else embedding,
            )
        if self.calibrated.distribution is not None:
            return self._by_labels(hits, embedding, index, k, confidence, features, warnings)
        calibrated = self.calibrated
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
        return Answers(
            index=index,
            hits=hits,
            k=k,
            decision=self._decide(hits, total, p_value),
            terms=self.terms(confidence),
            probability=chance,
            covering=sizes,
            presence=p_value,
            total_doubt=total,
            doubt=doubt,
            warnings=warnings,
            queries=embedding,
        )

    def _by_labels(
        self,
        hits: Hits,
        embedding: Embedding,
        index: Index,
        k: int,
        confidence: float,
        features: Tensor | None,
        warnings: tuple[str, ...],
    ) -> Answers:
        """Everything from one distribution over the labels found and none of these."""
        calibrated, kept = self.calibrated, self.calibrated.promise
        assert calibrated.distribution is not None
        assert kept is not None
        first = LabelHits.of(hits.first(LABEL_DEPTH), embedding.direction)  # whatever more was asked for
        near = calibrated.distribution(first, vectors=index.directions, unknown=kept.terms.unknown)
        asked = embedding
        if self.pooling is not None:  # the last one is the mean of the photos, and itself none
            asked, embedding = embedding[-1:], embedding[:-1]
            near, hits = self.pooling(near, len(near)), as_one(hits[:-1])
        odd = oddness(self._following(index), embedding, features)
        if self.pooling is not None:
            odd = odd_as_one(odd)
        told = near.with_foreign(odd.foreign).by_probability()
        assert hits.label is not None
        sizes = None
        if calibrated.covering is not None:
            sizes = calibrated.covering.sizes(told.probability, confidence=confidence)
            # Never fewer than the distribution needs: a set of one beside a probability of .7 contradicts it.
            sizes = torch.maximum(sizes, told.holding(confidence)).masked_fill(sizes == 0, 0)
            sizes = torch.minimum(sizes, (told.label >= 0).sum(1))
        terms = self.terms(confidence)
        return Answers(
            index=index,
            hits=hits,
            k=k,
            decision=_decided(told, terms),
            terms=terms,
            distribution=told,
            probability=told.of(hits.label).masked_fill(hits.label < 0, torch.nan),
            covering=sizes,
            total_doubt=1 - told.first[1],
            doubt=LabelDoubt.of(near, odd),
            warnings=warnings,
            queries=asked,
        )

    def tested_doubts(self) -> Tensor | None:
        """Doubts (m,) of the calibration queries that nothing was fitted on or chosen by; None: not calibrated."""
        if self.calibrated.promise is not None:
            return watched_doubt(self.calibrated.promise.outcomes.score)
        if self.calibrated.risk is None:
            return None
        return self.calibrated.risk.tested

    def promise(self) -> dict[str, Any] | None:
        """What is promised, in plain values; None where nothing is."""
        if self.instead is not None:
            return None
        control, kept, terms = self.calibrated.risk, self.calibrated.promise, self.terms(None)
        if kept is not None:
            return {
                "sentence": kept.sentence(),
                "target_error": kept.terms.target_error,
                "confidence": kept.terms.confidence,
                "unknown": kept.terms.unknown,
                "met": kept.met,
                "bound": kept.bound,
                "threshold": finite(terms.threshold),
                "coverage": kept.known_answered if terms.threshold != -torch.inf else 0.0,
                "queries": len(kept.outcomes.score),
                "labels": kept.labels,
                "false_alarm": None,
            }
        if control is None:
            return None
        return {
            "sentence": control.sentence(),
            "target_error": control.target_error,
            "confidence": control.confidence,
            "unknown": None if isinstance(control, AskedPairs) else 0.0,
            "met": control.met,
            "bound": control.bound,
            "threshold": finite(control.threshold),
            "coverage": control.coverage,
            "queries": control.queries,
            "labels": None,
            "false_alarm": self.false_alarm,
        }

    def status(self) -> dict[str, Any]:
        """What was calibrated and what is promised, in plain values."""
        calibrated = self.calibrated
        return {
            "calibrated": calibrated.is_there,
            "pairs_calibrated": calibrated.pairs is not None,
            "promise": self.promise(),
            "withdrawn": self.withdrawn,
            "calibration": None if not calibrated.record else dict(calibrated.record),
        }

    def _following(self, index: Index) -> Any:
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

    def terms(self, confidence: float | None) -> Terms:
        """What is decided by; where the target cannot be promised, what can be, unless that is too little."""
        control, kept = self.calibrated.risk, self.calibrated.promise
        if kept is not None:
            least = kept.fallback if kept.is_worth_keeping else torch.inf
            return Terms(
                threshold=1 - least,
                least=least,
                promised_error=kept.bound,
                target_error=kept.terms.target_error,
                set_confidence=confidence,
            )
        return Terms(
            threshold=None if control is None else control.threshold,
            promised_error=None if control is None else control.bound,
            target_error=None if control is None else control.promised,
            false_alarm=self.false_alarm,
            set_confidence=confidence,
        )

    def _warnings(self, index: Index, *, by_vector: bool) -> tuple[str, ...]:
        if not self.calibrated.is_there:
            return (self.why_not,)
        if self.instead is not None:
            return self.notes
        warnings = list(self.notes)
        if self.calibrated.unlabelled is not None:
            warnings.append(Sentence(ASSUMES, "no-labels"))
        control, kept = self.calibrated.risk, self.calibrated.promise
        if kept is not None and not kept.met:
            silent = self.terms(None).threshold == -torch.inf
            warnings.append(_of_target(kept.terms.target_error, None if silent else kept.bound))
        elif kept is None and control is not None and not control.met:
            words = control.sentence()
            told = Sentence(words, "target-not-met", target_error=control.target_error, bound=None)
            warnings.append(words if isinstance(words, Sentence) else told)
        if self.calibrated.kept is None:
            warnings += self._of_size(len(index))
        if by_vector:
            warnings.append(
                Sentence(
                    "Asked with a vector: whether its image is unlike all others was not looked at; the promise is "
                    "of images.",
                    "asked-with-vector",
                )
            )
        return tuple(warnings)

    def _of_size(self, items: int) -> list[str]:
        then = (self.calibrated.record or {}).get("items")
        if not then or 1 / GROWN <= items / then <= GROWN:
            return []
        words = (
            f"The gallery had {then} items when it was calibrated and has {items} now; calibrate it again."
        )
        return [Sentence(words, "size-changed", then=then, now=items)]


def _of_target(target: float, bound: float | None) -> Sentence:
    """That the target cannot be promised, and what can be in its place; None: nothing is answered."""
    instead = "nothing is answered" if bound is None else f"{bound:.1%} can"
    words = f"At most {target:.1%} wrong answers cannot be promised for this gallery; {instead}."
    return Sentence(words, "target-not-met", target_error=target, bound=bound)


def _decided(told: Distribution, terms: Terms) -> Tensor:
    """(n,) codes: answered where the most probable label is probable enough, absent where none of them is, more
    likely than not: *none* may be the most probable of many and still most probably wrong."""
    assert terms.least is not None
    decision = torch.full_like(told.label[:, 0], ABSTAIN)
    decision[told.sureness >= terms.least] = ANSWER
    decision[told.none > ABSENT] = NOT_IN_GALLERY
    return decision
