"""`PairAnswer`: what is said of two pictures, with the reason."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch

from doubtless.calibration.evidence.surroundings import Both
from doubtless.calibration.pairs.pairs import PairCalibrator, check_prior
from doubtless.calibration.pairs.promise import Side, least_score, promised
from doubtless.calibration.promise import Promise
from doubtless.calibration.sentence import Sentence
from doubtless.embedding import Embedding

Decision = Literal["same", "different", "cannot-tell"]
NOTHING_PROMISED = (
    "nothing is promised: the calibration knows no labels of its pairs, or is older than promises; calibrate "
    "again."
)


@dataclass(frozen=True)
class PairAnswer:
    """Two images beside each other; without a calibration of pairs `same` and `probability` are None."""

    decision: Decision
    reason: str
    same: bool | None
    """None where it cannot be told."""
    probability: float | None
    prior: float
    cosine: float
    expected_squared_distance: float
    uncertainty: tuple[float, float] | None


def answer_pair(
    one: Embedding,
    other: Embedding,
    pairs: PairCalibrator | None,
    *,
    prior: float = 0.5,
    target_error: float | None = None,
    around: Both | None = None,
) -> PairAnswer:
    """Whether two embeddings of one item each are of the same; `prior`: how likely that is beforehand.

    target_error   share of the pairs decided alike that may be wrong; None: as calibrated
    around         what the gallery holds around each, where the calibration `searches`

    >>> point = Embedding.point(torch.tensor([[1.0, 0.0]]))
    >>> answer_pair(point, point, None).decision
    'cannot-tell'
    """
    check_prior(prior)
    chance = None
    decision: Decision = "cannot-tell"
    reason = Sentence(
        "Cannot tell: pairs are not calibrated here, so a cosine is all that is known.", "not-calibrated"
    )
    if pairs is not None:
        odds = pairs.odds(one, other, around)
        chance = float(pairs.chance(odds, prior=prior))
        decision, reason = decided(pairs, float(odds), chance, prior=prior, target_error=target_error)
    doubts = None
    if one.uncertainty is not None and other.uncertainty is not None:
        doubts = float(one.uncertainty), float(other.uncertainty)
    return PairAnswer(
        decision=decision,
        reason=reason,
        same=None if decision == "cannot-tell" else decision == "same",
        probability=chance,
        prior=prior,
        cosine=float((one.direction * other.direction).sum()),
        expected_squared_distance=max(0.0, float(one.expected_squared_distance(other))),  # of rounding
        uncertainty=doubts,
    )


def decided(
    pairs: PairCalibrator, odds: float, chance: float, *, prior: float, target_error: float | None
) -> tuple[Decision, Sentence]:
    """The decision on a pair of these log-odds and this P(same), and why."""
    side: Side = "same" if chance > 0.5 else "different"
    if pairs.outcomes is None:
        return side, Sentence(
            f"{side.capitalize()}, as the likelier of the two; {NOTHING_PROMISED}", "likelier"
        )
    target = pairs.terms.target_error if target_error is None else target_error
    terms = replace(pairs.terms, prior=prior, target_error=target)
    promise = pairs.promise(side, prior=prior, target_error=target)
    why = promised(promise, side, terms)
    score = odds if side == "same" else -odds
    known = {
        "side": side,
        "target_error": target,
        "bound": promise.bound if promise.is_worth_keeping else None,
        "confidence": terms.confidence,
        "prior": prior,
        "unknown": 0.0 if terms.known == "drawn" else terms.unknown,
    }
    if score >= least_score(promise) and chance != 0.5:
        return side, Sentence(f"{side.capitalize()}. {why}", "promised", **known)
    if promise.is_worth_keeping:
        needed = _needed(pairs, promise, chance, prior)
        words = f"Cannot tell: {_not_enough(chance, needed)}. {why}"
        return "cannot-tell", Sentence(words, "not-enough", **known, needed=needed)
    return "cannot-tell", Sentence(f"Cannot tell: {why[0].lower()}{why[1:]}", "nothing-promised", **known)


def _needed(pairs: PairCalibrator, promise: Promise, chance: float, prior: float) -> float:
    """The probability of being the same from which on, or up to which, such a pair is decided."""
    limit = torch.tensor([promise.fallback if chance > 0.5 else -promise.fallback], dtype=torch.double)
    return float(pairs.chance(limit, prior=prior))


def _not_enough(chance: float, needed: float) -> str:
    """How sure it is and how sure it would have to be, where the two can be told apart in print."""
    said = f"the probability {chance:.3f} of being the same is not enough"
    return said if f"{needed:.3f}" == f"{chance:.3f}" else f"{said}, {needed:.3f} would be"
