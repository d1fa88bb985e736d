"""The front door: an index, its model, its calibration and its doubt, asked together."""

from doubtless.calibration.pair_answer import PairAnswer
from doubtless.gallery.answer import Answer, AnswerHit, LabelChance
from doubtless.gallery.answers import Answers
from doubtless.gallery.feedback import Feedback
from doubtless.gallery.gallery import Gallery
from doubtless.gallery.queries import Queries
from doubtless.gallery.watching import Watch
from doubtless.index.items import Item

open = Gallery.open  # `doubtless.open(PLACE)`

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
    "open",
]
