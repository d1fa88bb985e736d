"""Does what a gallery promised still hold? What was said of its answers, told in a sentence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from doubtless.calibration.watch import NOT_ASKED, RIGHT, UNSAID, WRONG, Counted, Drawn, Verdict, verdict
from doubtless.gallery.feedback.store import Feedback, FeedbackStore, Shown, moment

NAMED_BY = ("target_error", "confidence", "unknown", "bound", "threshold", "queries", "labels")
"""What of a promise tells it from another one."""


def promise_name(promise: Mapping[str, Any] | None) -> str:
    """A short name of what is promised; "" where nothing is. The same calibration gives the same name again."""
    if promise is None:
        return ""
    named = json.dumps([promise.get(name) for name in NAMED_BY])
    return hashlib.sha256(named.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Watch:
    """What people's judgements say of the promise in force.

    standing    "holds", "no longer holds", "too little was said"; None: nothing is promised
    sentence    the same in words
    verdict     the figures behind it; None where nothing is promised
    since       when the answers were given from which on more of them are wrong
    noticed     when the answer was given at which that was shown
    waiting     answers that were drawn, and that nobody has judged
    given       answers that were counted, by a service
    volunteered answers judged by whoever wanted to, of which `complaints` were called wrong
    """

    standing: str | None
    sentence: str
    verdict: Verdict | None = None
    since: str | None = None
    noticed: str | None = None
    waiting: int = 0
    given: int = 0
    volunteered: int = 0
    complaints: int = 0

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        told = self.verdict
        return {
            "standing": self.standing,
            "sentence": self.sentence,
            "promised": None if told is None else told.rate,
            "level": None if told is None else told.level,
            "judged": 0 if told is None else told.judged,
            "wrong": 0 if told is None else told.wrong,
            "share_wrong": None if told is None else told.share,
            "since": self.since,
            "noticed": self.noticed,
            "more_needed": None if told is None else told.more,
            "waiting": self.waiting,
            "given": self.given,
            "volunteered": self.volunteered,
            "complaints": self.complaints,
        }


def watch(store: FeedbackStore, promise: Mapping[str, Any] | None) -> Watch:
    """Looks at all that was said of answers under the promise in force."""
    if promise is None or promise.get("threshold") is None:
        return Watch(None, "Nothing is promised, so nothing is watched.")
    name, rate = promise_name(promise), float(promise["bound"])
    answers = [(shown, said) for shown, said in store.answers(name) if shown.decision == "answer"]
    drawn = [(shown, said) for shown, said in answers if shown.drawn]
    others = [(shown, said) for shown, said in answers if not shown.drawn and said is not None]
    placed = sorted(
        (shown.place, shown.time) for shown, said in answers if shown.place is not None and _is_wrong(said)
    )
    counted = Counted(store.given(name), np.array([place for place, _ in placed], dtype=np.int64))
    told = verdict(_sample(drawn), counted, rate=rate)
    since = noticed = None
    if told.since is not None and told.noticed is not None:
        since, noticed = (_when(number, told, drawn, placed) for number in (told.since, told.noticed))
    waiting = sum(shown.asked and said is None for shown, said in drawn)
    complaints = sum(_is_wrong(said) for _, said in others)
    return Watch(
        told.standing,
        _sentence(told, since, noticed, waiting, len(others)),
        told,
        since=since,
        noticed=noticed,
        waiting=waiting,
        given=counted.answers,
        volunteered=len(others),
        complaints=complaints,
    )


def _is_wrong(said: Feedback | None) -> bool:
    return said is not None and said.verdict == "wrong"


def _sample(drawn: list[tuple[Shown, Feedback | None]]) -> Drawn:
    """What was drawn, as the test takes it."""
    codes = {"right": RIGHT, "wrong": WRONG}
    said = [
        NOT_ASKED if not shown.asked else UNSAID if one is None else codes.get(one.verdict or "", UNSAID)
        for shown, one in drawn
    ]
    return Drawn(
        np.array(said, dtype=np.int8),
        np.array([1 - (shown.probability or 0.0) if shown.thinned else 0.0 for shown, _ in drawn]),
        np.array([shown.share for shown, _ in drawn]),
        np.array([shown.thinned for shown, _ in drawn], dtype=bool),
    )


def _when(
    number: int, told: Verdict, drawn: list[tuple[Shown, Feedback | None]], placed: list[tuple[int, float]]
) -> str:
    """When the answer of this number was given; of counted ones, the next one that was called wrong."""
    if told.by == "drawn":
        return moment(drawn[number][0].time)
    following = [when for place, when in placed if place >= number]
    return moment(following[0] if following else placed[-1][1])


def _sentence(told: Verdict, since: str | None, noticed: str | None, waiting: int, others: int) -> str:
    promised = f"that at most {told.rate:.1%} of answers are wrong"
    seen = f"of {told.judged:,} answers drawn at random and judged {told.wrong:,} are wrong"
    if told.standing == "holds":
        return f"The promise {promised} holds: {seen}."
    if told.standing == "no longer holds":
        shown = seen if told.by == "drawn" else "so many answers were called wrong"
        return (
            f"The promise {promised} no longer holds since {since}, as was seen at the answer of {noticed}: "
            f"{shown}. Calibrate again, on queries like these."
        )
    asked = f" {waiting:,} wait to be judged." if waiting else ""
    chosen = (
        f" {others:,} more were judged by whoever wanted to, which tells of wrong answers and not of right ones."
        if others
        else ""
    )
    return (
        f"Too little was said to tell whether the promise {promised} holds: {seen}; {told.more:,} more, all of "
        f"them right, would show it.{asked}{chosen}"
    )
