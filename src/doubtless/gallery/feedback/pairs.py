"""Pairs that people are asked about: is this item's first hit the same thing? Kept like what is said of answers.

An item asks as a query would, and its first hit is what it was told. Two items are one question whichever of them
asked, and what was said of them stays said when the gallery is calibrated again.
"""

from __future__ import annotations

import hashlib
import time
from typing import TYPE_CHECKING

from doubtless.errors import InputError
from doubtless.gallery.feedback.store import Feedback, FeedbackStore, Judgement, Shown

if TYPE_CHECKING:
    from doubtless.calibration.pairs.unlabelled import HitChance
    from doubtless.gallery.calibration.unlabelled import Said, Unlabelled
    from doubtless.gallery.judged import Judged
    from doubtless.index.base import Index

PREFIX = "pair:"
PROMISE = "pairs"
"""Under which pairs are kept: they are no answers, and no promise of answers is told by them."""
WORDS: dict[str, Judgement | None] = {"same": "right", "different": "wrong", "cannot-tell": None}


def waiting(gallery: Judged, most: int) -> list[Shown]:
    """Pairs whose answer would tighten the promise most, in their order; none of a gallery calibrated on labels."""
    known = _known(gallery)
    if known is None:
        return []
    chance, asked = known.told(said_of_pairs(gallery.judgements, gallery.index))
    shown = (_shown(gallery.index, known, chance, place) for place in asked.next(2 * most))
    return list({one.id: one for one in reversed(list(shown))}.values())[::-1][
        :most
    ]  # two that found each other


def say(gallery: Judged, item: str, said: Judgement | None, *, who: str | None = None) -> Feedback:
    """Writes down, durably, whether an item's first hit is the same thing; None: nobody can tell."""
    known = _known(gallery)
    if known is None:
        raise InputError(
            "Pairs are asked about where a gallery was calibrated without labels; this one was not."
        )
    row = gallery.index.rows_of([item]).get(item, -1)
    places = (known.row == row).nonzero().flatten().tolist()
    if not places:
        raise InputError(f"There is no item {item!r} whose first hit is asked about.")
    chance, _ = known.told(said_of_pairs(gallery.judgements, gallery.index))
    shown = _shown(gallery.index, known, chance, places[0])
    entry = gallery.judgements.say(shown, said, who=who)
    gallery.reload()
    return entry


def said_of_pairs(store: FeedbackStore, index: Index) -> Said:
    """The last word on every pair whose items are there; what nobody could tell counts as not the same."""
    told = [
        (tuple(id for id, _ in shown.labels), said)
        for shown, said in store.answers(PROMISE)
        if said is not None
    ]
    rows = index.rows_of([id for ids, _ in told for id in ids])
    return {
        frozenset(rows[id] for id in ids): said.verdict == "right"
        for ids, said in told
        if all(id in rows for id in ids)
    }


def _known(gallery: Judged) -> Unlabelled | None:
    known = gallery.judge.calibrated.unlabelled
    return None if known is None else known.left(gallery.index.rows)


def _shown(index: Index, known: Unlabelled, chance: HitChance, place: int) -> Shown:
    """What an item was told: that its first hit is the same thing, with this probability."""
    item, hit = (one.id for one in index.items([int(known.row[place]), int(known.hit[place])]))
    named = hashlib.sha256("\0".join(sorted((item, hit))).encode()).hexdigest()[:16]
    same = float(chance.of(known.out[place]))
    both = ((item, same), (hit, same))
    return Shown(
        named, PROMISE, time.time(), "answer", hit, same, None, both, drawn=True, asked=True, place=place
    )
