"""An answer in words and as HTML: the decision, hits with probability bars and frames, covering set, doubt.

Pure functions of an `Answer`. Whatever comes from the index passes `text`, which escapes it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from doubtless.gallery.answer import Answer, AnswerHit
from doubtless.gallery.reasons import in_question
from doubtless.report.page import text

EQUALLY_NEAR = 0.95
"""First distance over second from which two items are equally near."""

DRIFTED = "are not like those the index was calibrated on"
"""By this the warning of drift is known (`doubtless.server.service.drift`)."""

PARTS = {
    "image": ("Image", "how poor the picture itself looks"),
    "model": ("Model", "how unsure the network is of it"),
    "gallery": ("Gallery", "how much what was found contradicts itself"),
    "distance": ("Distance", "how likely it is nothing that was found"),
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
    if answer.decision == "abstain" and answer.doubt is None:
        return "No answer: nothing can be promised of what was searched"
    if answer.decision == "abstain":
        return f"Not sure: {_between(answer) if answer.labels else _why(answer)}"
    first = answer.hits[0]
    if answer.probability is None:
        return f"{name_of(first)}, score {score(first.score)} (no probability before `doubtless calibrate`)"
    sure = f"{answer.label or name_of(first)}, {percent(answer.probability)} sure"
    return f"{sure} by a calibration that recent queries no longer fit" if drifted(answer) else sure


def _between(answer: Answer) -> str:
    """The labels it lies between, most probable first, and nothing in the gallery where that is as probable."""
    ordered = in_question(answer.labels, answer.none or 0.0)
    if len(ordered) == 1:
        return f"{ordered[0].label} is {percent(ordered[0].probability)} likely, which is less than was asked for"
    return " or ".join(
        f"{one.label or 'nothing in the gallery'} ({percent(one.probability)})" for one in ordered
    )


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
        if answer.probability is None:
            return "There is no covering set before `doubtless calibrate`."
        return (
            f"Even all items that were found together do not promise a true match with {percent(confidence)}."
        )
    count, what = len(answer.covering_set), "label" if answer.labels else "item"
    here = f"the first {what} alone" if count == 1 else f"the first {count} {what}s"
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


LIKELY, POSSIBLE = 0.8, 0.4
"""Probabilities from which a frame is green, or yellow; below it is red."""
SHOWN = 8
"""Hits that are pictured."""
SIGNS = {"answer": "✓", "abstain": "?", "not-in-gallery": "∅", "bare": "≈", "error": "!"}

Addresses = Mapping[str, str]
"""Id → address of a small picture; items without one are shown by their names."""


def decision_view(answer: Answer) -> str:
    """The decision in words, why, and what it cannot promise."""
    bare = answer.decision == "answer" and bool(answer.hits) and answer.probability is None
    warnings = "".join(f"<li>{text(warning)}</li>" for warning in answer.warnings)
    return _card(
        "bare" if bare else answer.decision,
        decision_sentence(answer),
        text(answer.reason),
        f'<ul class="warnings">{warnings}</ul>' if warnings else "",
    )


def waiting_view(items: int) -> str:
    """What stands there before a picture is chosen."""
    things = f"{items:,} items are" if items != 1 else "one item is"
    return _card(
        "waiting",
        "What is it?",
        f"Drop, paste or choose a picture; {things} in the gallery to compare it with.",
    )


def error_view(sentence: str) -> str:
    """Why a picture was not looked at."""
    return _card("error", "This picture cannot be used", text(sentence[:1].upper() + sentence[1:]))


def hits_view(answer: Answer, thumbnails: Addresses) -> str:
    """The first hits as pictures, best first."""
    if not answer.hits:
        return ""
    inside, shown = frozenset(answer.covering_set or ()), answer.hits[:SHOWN]
    entries = "".join(
        _hit(hit, place, thumbnails, (hit.label if answer.labels else hit.id) in inside)
        for place, hit in enumerate(shown, 1)
    )
    return f'<section class="part"><h2>Nearest in the gallery</h2><ol class="hits">{entries}</ol></section>'


def covering_view(answer: Answer, *, confidence: float) -> str:
    """What the covering set promises and what is in it, counted by label."""
    if not answer.hits:
        return ""
    names = {} if answer.labels else {hit.id: name_of(hit) for hit in answer.hits}
    found = answer.covering_set or ()
    counted = Counter(found if answer.labels else (names.get(id, f"item {id}") for id in found))
    chips = "".join(
        f"<li>{text(name)}{f' <span>× {count}</span>' if count > 1 else ''}</li>"
        for name, count in counted.items()
    )
    listed = f'<ul class="chips">{chips}</ul>' if chips else ""
    return (
        '<section class="part covering"><h2>Covering set</h2>'
        f"<p>{text(covering_sentence(answer, confidence=confidence))}</p>{listed}</section>"
    )


def doubt_view(answer: Answer) -> str:
    """Where the doubt comes from: one bar a part, and all together."""
    if answer.doubt is None:
        return ""
    rows = "".join(
        _part(heading, what, answer.parts[part]) if part in answer.parts else _not_measured(heading, what)
        for part, (heading, what) in PARTS.items()
        if answer.parts
    )
    total = _part("Altogether", "how likely the best guess is wrong", answer.doubt, kind=" total")
    note = "" if rows else '<p class="quiet">This index knows only how likely its first item is right.</p>'
    return (
        '<section class="part"><h2>Where the doubt comes from</h2>'
        f'<dl class="doubt">{rows}{total}</dl>{note}</section>'
    )


def asked_view(address: str, description: str) -> str:
    """The picture as the model is given it."""
    return (
        f'<figure class="asked"><img src="{text(address)}" alt="The picture that is asked about">'
        f"<figcaption>{text(description)}</figcaption></figure>"
    )


def _card(kind: str, sentence: str, reason: str, more: str = "") -> str:
    sign = f'<span class="sign" aria-hidden="true">{SIGNS[kind]}</span>' if kind in SIGNS else ""
    return (
        f'<section class="decision {kind}"><h2 class="sentence">{sign}<span>{_with_code(sentence)}</span></h2>'
        f'<p class="reason">{reason}</p>{more}</section>'
    )


def _with_code(sentence: str) -> str:
    """Escaped, `commands` in between set as such."""
    pieces = text(sentence).split("`")
    if len(pieces) != 3:
        return text(sentence)
    return f"{pieces[0]}<code>{pieces[1]}</code>{pieces[2]}"


def _hit(hit: AnswerHit, place: int, thumbnails: Addresses, inside: bool) -> str:
    picture = thumbnails.get(hit.id)
    image = f'<img src="{text(picture)}" alt="">' if picture else '<span class="no-image">no picture</span>'
    if hit.probability is None:
        kind, share, said = "bare", max(0.0, hit.score), f"score {score(hit.score)}"
    else:
        kind = "high" if hit.probability >= LIKELY else "middle" if hit.probability >= POSSIBLE else "low"
        share, said = (
            hit.probability,
            percent(hit.probability).replace("more than", ">").replace("less than", "<"),
        )
    badge = '<span class="badge" title="In the covering set">in the set</span>' if inside else ""
    name = text(name_of(hit))
    return (
        f'<li class="hit {kind}"><div class="frame">{image}<span class="place" aria-hidden="true">{place}</span>'
        f'{badge}</div><div class="bar" aria-hidden="true"><i style="width:{100 * min(1.0, share):.1f}%"></i></div>'
        f'<b>{said}</b><span class="name">{name}</span><span class="id">{text(hit.id)}</span></li>'
    )


def _not_measured(heading: str, what: str) -> str:
    return f'<div class="row missing"><dt>{heading}<small>{what}</small></dt><dd>not measured</dd></div>'


def _part(heading: str, what: str, value: float, *, kind: str = "") -> str:
    width = f"{100 * min(1.0, max(0.0, value)):.1f}%"
    return (
        f'<div class="row{kind}"><dt>{heading}<small>{what}</small></dt><dd><span class="bar" aria-hidden="true">'
        f'<i style="width:{width}"></i></span><b>{value:.2f}</b></dd></div>'
    )
