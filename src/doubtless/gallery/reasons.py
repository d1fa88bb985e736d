"""Why a query was answered or not, in a sentence read off the numbers that decided: the two cannot disagree.

A sentence has a code and its numbers, so that a page in another language can say the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from doubtless.calibration.sentence import Sentence
from doubtless.gallery.answer import Choice, Decision, LabelChance

if TYPE_CHECKING:
    from doubtless.gallery.answers import Terms

NAMED = 3
"""Labels that a refusal lies between, at most."""
WORTH_NAMING = 0.1
"""Of the most probable one: what is less probable is not named."""
NONE = "none of the labels found"


def of_labels(
    decision: Decision,
    labels: Sequence[LabelChance],
    none: float,
    least: float | None,
    promised: float | None,
) -> Sentence:
    """From the labels, the most probable first, the probability of none of them, and what is promised from where.

    >>> chances = [LabelChance("garlic", 0.6), LabelChance("ginger", 0.35)]
    >>> of_labels("abstain", chances, 0.05, 0.8, 0.05)
    'No answer: it lies between garlic (0.60) and ginger (0.35); from 0.80 on at most 5.0% of answers are wrong.'
    >>> of_labels("not-in-gallery", [LabelChance("garlic", 0.4)], 0.6, 0.8, 0.05)
    'Not in the gallery: none of the labels found is right with probability 0.60, garlic with 0.40.'
    """
    if not labels:
        return Sentence("Not in the gallery: no item that was found has a label.", "no-label")
    best = labels[0]
    known = {"label": best.label, "probability": best.probability, "none": none}
    if decision == "not-in-gallery":
        return Sentence(
            f"Not in the gallery: {NONE} is right with probability {none:.2f}, {best.label} with "
            f"{best.probability:.2f}.",
            "absent",
            **known,
        )
    if decision == "answer":
        words = f"{best.label} with probability {best.probability:.2f}, {NONE} with {none:.2f}."
        return Sentence(words, "answer", **known)
    ordered = in_question(labels, none)
    choices, code = _choices(ordered), "between" if len(ordered) > 1 else "too-unsure"
    if least is None or promised is None or least > 1:
        words = f"No answer: {choices}; no small share of wrong answers can be promised."
        return Sentence(words, code, **known, least=None, promised=None)
    words = f"No answer: {choices}; from {least:.2f} on at most {promised:.1%} of answers are wrong."
    return Sentence(words, code, **known, least=least, promised=promised)


def in_question(labels: Sequence[LabelChance], none: float) -> list[Choice]:
    """What an answer lies between, in falling order: labels, the most probable given first, and none of them.

    >>> [one.label for one in in_question([LabelChance("garlic", 0.6), LabelChance("leek", 0.01)], 0.3)]
    ['garlic', None]
    """
    if not labels:
        return []
    least = WORTH_NAMING * labels[0].probability
    chances = [*(Choice(one.label, one.probability) for one in labels[:NAMED]), Choice(None, none)]
    return sorted((one for one in chances if one.probability >= least), key=lambda one: -one.probability)[
        :NAMED
    ]


def _choices(ordered: Sequence[Choice]) -> str:
    named = [f"{one.label or NONE} ({one.probability:.2f})" for one in ordered]
    if len(named) == 1:
        return f"{ordered[0].label or NONE} has probability {ordered[0].probability:.2f}"
    return f"it lies between {', '.join(named[:-1])} and {named[-1]}"


def of_absence(p_value: float, false_alarm: float | None) -> Sentence:
    """From a test of presence alone, in galleries whose labels were not calibrated."""
    assert false_alarm is not None
    return Sentence(
        f"Not in the gallery: of queries that are in it, {p_value:.1%} look so little at home; below "
        f"{false_alarm:.1%} is called absent.",
        "absent-by-test",
        p_value=p_value,
        false_alarm=false_alarm,
    )


def of_refusal(terms: Terms, doubt: float, chance: float | None) -> Sentence:
    """From a doubt above the promised one, and the first hit's probability."""
    assert terms.threshold is not None
    assert terms.target_error is not None
    right = "" if chance is None else f"; the first hit is right with probability {chance:.2f}"
    known = {"doubt": doubt, "target_error": terms.target_error, "probability": chance}
    if terms.threshold == float("-inf"):
        words = f"No answer: an error of at most {terms.target_error:.1%} cannot be promised for any query{right}."
        return Sentence(words, "nothing-promised", **known)
    return Sentence(
        f"No answer: its doubt {doubt:.3g} is above {terms.threshold:.3g}, up to which at most "
        f"{terms.target_error:.1%} of answers are wrong{right}.",
        "doubtful",
        **known,
        threshold=terms.threshold,
    )


def of_nearest(chance: float | None) -> Sentence:
    """Where nothing but the first hit decides."""
    if chance is None:
        return Sentence(
            "The nearest item; its probability is unknown until the index is calibrated.", "nearest"
        )
    return Sentence(f"The first hit is right with probability {chance:.2f}.", "first-hit", probability=chance)
