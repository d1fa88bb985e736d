"""What the page says, as pure functions of an answer: the decision in a sentence, the covering set, the parts."""

from __future__ import annotations

import math
from collections.abc import Sequence

from doubtless.retrieval.answer import Answer, AnswerHit

EQUALLY_NEAR = 0.95
"""First distance over second from which two items are equally near."""

DRIFTED = "are not like those the index was calibrated on"
"""By this the warning of drift is known (`doubtless.server.drift`)."""

PARTS = {
    "image": ("Image", "how poor the picture itself looks"),
    "model": ("Model", "how unsure the network is of it"),
    "gallery": ("Gallery", "how much the nearest items contradict each other"),
    "distance": ("Distance", "how far away the nearest item is"),
    "novelty": ("Novelty", "how unlike it is to everything known"),
}
"""Part of the doubt → its heading, and what it measures."""

BECAUSE = {
    "image": "the picture itself is too poor",
    "model": "the model is unsure about pictures like this",
    "gallery": "the nearest items contradict each other",
    "distance": "even the nearest item is far away",
    "novelty": "this is unlike anything known",
}


def decision_sentence(answer: Answer) -> str:
    """What was decided, as one would say it.

    >>> hit = AnswerHit("shoe-7", "Sneaker", 0.93, 0.97, 0.14)
    >>> decision_sentence(Answer("answer", (hit,), ("shoe-7",), 0.03, {}, ""))
    'Sneaker, 97 % sure'
    """
    if not answer.hits:
        return "The gallery is empty"
    if answer.decision == "not-in-gallery":
        return "Nothing like this in the gallery"
    if answer.decision == "abstain":
        return f"Not sure: {_why(answer)}"
    first = answer.hits[0]
    if first.probability is None:
        return f"{name_of(first)}, score {score(first.score)} (no probability before `doubtless calibrate`)"
    sure = f"{name_of(first)}, {percent(first.probability)} sure"
    return f"{sure} by a calibration that recent queries no longer fit" if drifted(answer) else sure


def drifted(answer: Answer) -> bool:
    """Whether recent queries are others than those the promises were made for."""
    return any(DRIFTED in warning for warning in answer.warnings)


def near_tie(hits: Sequence[AnswerHit]) -> bool:
    """Whether two different products, or two items nobody has named, are equally near."""
    if len(hits) < 2 or (hits[0].label is not None and hits[0].label == hits[1].label):
        return False
    first, second = (math.sqrt(max(0.0, 2 - 2 * hit.score)) for hit in hits[:2])
    return first >= EQUALLY_NEAR * second


def name_of(hit: AnswerHit) -> str:
    """What an item is called: its label, or its id where it has none."""
    return f"item {hit.id}" if hit.label is None else hit.label


def percent(probability: float) -> str:
    """Whole percent that never claim certainty.

    >>> percent(0.974), percent(0.9999), percent(0.001)
    ('97 %', 'more than 99 %', 'less than 1 %')
    """
    whole = math.floor(100 * probability + 0.5)
    if whole >= 100:
        return "more than 99 %"
    return f"{whole} %" if whole else "less than 1 %"


def score(cosine: float) -> str:
    """A similarity as a bare number, so that nobody takes it for a probability.

    >>> score(0.834), score(-0.2), score(1.0)
    ('.83', '−.20', '1.00')
    """
    sign, size = "−" if cosine < 0 else "", f"{abs(cosine):.2f}"
    return sign + (size[1:] if size.startswith("0") else size)


def covering_sentence(answer: Answer, *, confidence: float) -> str:
    """What the covering set promises at this confidence."""
    if answer.covering_set is None:
        if not answer.hits or answer.hits[0].probability is None:
            return "There is no covering set before `doubtless calibrate`."
        return (
            f"Even all items that were found together do not promise a true match with {percent(confidence)}."
        )
    count = len(answer.covering_set)
    here = "the first item alone" if count == 1 else f"the first {count} items"
    return f"{_sets(confidence)} Here it is {here}."


def _sets(confidence: float) -> str:
    """The promise is about all pictures that have a match, not about this one."""
    return f"Of pictures that have a match, {percent(confidence)} have one in their set."


def _why(answer: Answer) -> str:
    """The largest part of the doubt where it is known; else what the hits themselves show."""
    first = answer.hits[0]
    largest = max(answer.parts, key=lambda part: answer.parts[part], default="")
    if largest and largest != "gallery" and answer.parts[largest] > 0:
        return BECAUSE[largest]
    if near_tie(answer.hits):
        return _tie(answer.hits[:2])
    if largest and answer.parts[largest] > 0:
        return BECAUSE[largest]
    chance = "" if first.probability is None else percent(first.probability)
    if first.probability is not None and first.probability >= 0.5:
        return f"{name_of(first)} is {chance} likely, which is less than was asked for"
    return f"the best guess, {name_of(first)}, is {f'only {chance} likely' if chance else 'a mere guess'}"


def _tie(pair: Sequence[AnswerHit]) -> str:
    if None in (pair[0].label, pair[1].label):
        return "two items are equally near"
    return f"two products are equally near, {pair[0].label} and {pair[1].label}"
