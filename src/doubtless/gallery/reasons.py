"""Why a query was answered or not, in a sentence read off the numbers that decided: the two cannot disagree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from doubtless.gallery.answer import Decision, LabelChance

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
) -> str:
    """From the labels, the most probable first, the probability of none of them, and what is promised from where.

    >>> chances = [LabelChance("garlic", 0.6), LabelChance("ginger", 0.35)]
    >>> of_labels("abstain", chances, 0.05, 0.8, 0.05)
    'No answer: it lies between garlic (0.60) and ginger (0.35); from 0.80 on at most 5.0% of answers are wrong.'
    >>> of_labels("not-in-gallery", [LabelChance("garlic", 0.4)], 0.6, 0.8, 0.05)
    'Not in the gallery: none of the labels found is right with probability 0.60, garlic with 0.40.'
    """
    if not labels:
        return "Not in the gallery: no item that was found has a label."
    best = labels[0]
    if decision == "not-in-gallery":
        return (
            f"Not in the gallery: {NONE} is right with probability {none:.2f}, {best.label} with "
            f"{best.probability:.2f}."
        )
    if decision == "answer":
        return f"{best.label} with probability {best.probability:.2f}, {NONE} with {none:.2f}."
    choices = _choices(labels, none)
    if least is None or promised is None or least > 1:
        return f"No answer: {choices}; no small share of wrong answers can be promised."
    return f"No answer: {choices}; from {least:.2f} on at most {promised:.1%} of answers are wrong."


def in_question(labels: Sequence[LabelChance], none: float, called: str = NONE) -> list[LabelChance]:
    """What a refusal lies between, in falling order: labels, the most probable given first, and none of them.

    >>> [one.label for one in in_question([LabelChance("garlic", 0.6), LabelChance("leek", 0.01)], 0.3)]
    ['garlic', 'none of the labels found']
    """
    least = WORTH_NAMING * labels[0].probability
    chances = [*labels[:NAMED], LabelChance(called, none)]
    return sorted((one for one in chances if one.probability >= least), key=lambda one: -one.probability)[
        :NAMED
    ]


def _choices(labels: Sequence[LabelChance], none: float) -> str:
    ordered = in_question(labels, none)
    named = [f"{one.label} ({one.probability:.2f})" for one in ordered]
    if len(named) == 1:
        return f"{ordered[0].label} has probability {ordered[0].probability:.2f}"
    return f"it lies between {', '.join(named[:-1])} and {named[-1]}"


def of_absence(p_value: float, false_alarm: float | None) -> str:
    """From a test of presence alone, in galleries whose labels were not calibrated."""
    assert false_alarm is not None
    return (
        f"Not in the gallery: of queries that are in it, {p_value:.1%} look so little at home; below "
        f"{false_alarm:.1%} is called absent."
    )


def of_refusal(terms: Terms, doubt: float, chance: float | None) -> str:
    """From a doubt above the promised one, and the first hit's probability."""
    assert terms.threshold is not None
    assert terms.target_error is not None
    right = "" if chance is None else f"; the first hit is right with probability {chance:.2f}"
    if terms.threshold == float("-inf"):
        return f"No answer: an error of at most {terms.target_error:.1%} cannot be promised for any query{right}."
    return (
        f"No answer: its doubt {doubt:.3g} is above {terms.threshold:.3g}, up to which at most "
        f"{terms.target_error:.1%} of answers are wrong{right}."
    )


def of_nearest(chance: float | None) -> str:
    """Where nothing but the first hit decides."""
    if chance is None:
        return "The nearest item; its probability is unknown until the index is calibrated."
    return f"The first hit is right with probability {chance:.2f}."
