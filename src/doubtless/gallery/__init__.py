"""The front door: an index, its model, its calibration and its doubt, asked together.

Names are imported when first used: `doubtless.gallery.place` is asked before anything heavy is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from doubtless.calibration.pairs.answer import PairAnswer as PairAnswer
    from doubtless.calibration.sentence import Sentence as Sentence
    from doubtless.gallery.answer import Answer as Answer
    from doubtless.gallery.answer import AnswerHit as AnswerHit
    from doubtless.gallery.answer import LabelChance as LabelChance
    from doubtless.gallery.answers import Answers as Answers
    from doubtless.gallery.feedback.store import Feedback as Feedback
    from doubtless.gallery.feedback.watching import Watch as Watch
    from doubtless.gallery.gallery import Gallery as Gallery
    from doubtless.gallery.gallery import open_gallery as open
    from doubtless.gallery.queries import Queries as Queries
    from doubtless.index.items import Item as Item

_HOMES = {
    "Gallery": ("gallery.gallery", "Gallery"),
    "Queries": ("gallery.queries", "Queries"),
    "Item": ("index.items", "Item"),
    "Answer": ("gallery.answer", "Answer"),
    "Answers": ("gallery.answers", "Answers"),
    "AnswerHit": ("gallery.answer", "AnswerHit"),
    "LabelChance": ("gallery.answer", "LabelChance"),
    "PairAnswer": ("calibration.pairs.answer", "PairAnswer"),
    "Sentence": ("calibration.sentence", "Sentence"),
    "Feedback": ("gallery.feedback.store", "Feedback"),
    "Watch": ("gallery.feedback.watching", "Watch"),
    "open": ("gallery.gallery", "open_gallery"),  # `doubtless.open(PLACE)`
}

__all__ = [
    "Gallery",
    "Queries",
    "Item",
    "Answer",
    "Answers",
    "AnswerHit",
    "LabelChance",
    "Feedback",
    "Watch",
    "PairAnswer",
    "Sentence",
    "open",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'doubtless.gallery' has no attribute {name!r}")
    home, known_as = _HOMES[name]
    value = getattr(import_module(f"doubtless.{home}"), known_as)
    globals()[name] = value
    return value
