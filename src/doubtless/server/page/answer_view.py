"""An answer as HTML: the decision, the hits with probability bars and coloured frames, the covering set, the doubt.

Pure functions from an `Answer` to text. Whatever comes from the index passes `text`, which escapes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from doubtless.report.markup import text
from doubtless.retrieval.answer import Answer, AnswerHit
from doubtless.server.page.wording import (
    PARTS,
    covering_sentence,
    decision_sentence,
    name_of,
    percent,
    score,
)

LIKELY, POSSIBLE = 0.8, 0.4
"""Probabilities from which a frame is green, or yellow; below it is red."""
SHOWN = 8
"""Hits that are pictured."""
SIGNS = {"answer": "✓", "abstain": "?", "not-in-gallery": "∅", "bare": "≈", "error": "!"}

Thumbnails = Mapping[str, str]
"""Id → address of a small picture; items without one are shown by their names."""


def decision_view(answer: Answer) -> str:
    """The decision in words, why, and what it cannot promise."""
    bare = answer.decision == "answer" and bool(answer.hits) and answer.hits[0].probability is None
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


def hits_view(answer: Answer, thumbnails: Thumbnails) -> str:
    """The first hits as pictures, best first."""
    if not answer.hits:
        return ""
    inside = frozenset(answer.covering_set or ())
    shown = answer.hits[:SHOWN]
    entries = "".join(_hit(hit, place, thumbnails, hit.id in inside) for place, hit in enumerate(shown, 1))
    return f'<section class="part"><h2>Nearest in the gallery</h2><ol class="hits">{entries}</ol></section>'


def covering_view(answer: Answer, *, confidence: float) -> str:
    """What the covering set promises and what is in it, counted by label."""
    if not answer.hits:
        return ""
    names = {hit.id: name_of(hit) for hit in answer.hits}
    counted = Counter(names.get(id, f"item {id}") for id in answer.covering_set or ())
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
        _part(heading, what, answer.parts[part])
        for part, (heading, what) in PARTS.items()
        if part in answer.parts
    )
    total = _part("Altogether", "how little the first item is to be trusted", answer.doubt, kind=" total")
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


def _hit(hit: AnswerHit, place: int, thumbnails: Thumbnails, inside: bool) -> str:
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


def _part(heading: str, what: str, value: float, *, kind: str = "") -> str:
    width = f"{100 * min(1.0, max(0.0, value)):.1f}%"
    return (
        f'<div class="row{kind}"><dt>{heading}<small>{what}</small></dt><dd><span class="bar" aria-hidden="true">'
        f'<i style="width:{width}"></i></span><b>{value:.2f}</b></dd></div>'
    )
