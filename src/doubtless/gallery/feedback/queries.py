"""Judged answers as labelled queries: what people really ask, instead of a gallery's items, which resemble it.

They take the items' place and are not mixed with them: a promise is of queries like those it was calibrated on, and
a few hundred real ones among thousands of items would be outvoted. Only answers that were drawn count, since those
that people complain of are not like the others. Of the drawn ones the sure were asked for less often (`share`); of
the others as many are left out again, by a coin, so that all are there with the same chance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from doubtless.calibration.fit import FEWEST
from doubtless.calibration.watch import LEAST_SHARE
from doubtless.errors import InputError
from doubtless.gallery.feedback.pairs import PROMISE as PAIRS
from doubtless.gallery.feedback.store import Feedback, FeedbackStore, Shown
from doubtless.index.forms import unpacked
from doubtless.ingest.shards import EmbeddedShard

if TYPE_CHECKING:
    from doubtless.index.settings import Settings

DRAWN, EVERYTHING = "feedback", "feedback:all"
PLACES = (DRAWN, EVERYTHING)
"""What labelled queries may be called instead of the place of a file."""
MOST_UNNAMED = 0.05
"""Share of judged answers of which nobody said what they show; without more the gallery would look too good."""


def labelled_feedback(store: FeedbackStore, settings: Settings, place: str = DRAWN) -> EmbeddedShard:
    """Judged answers with what they show; of `DRAWN` ones, or, where all were judged anyway, of `EVERYTHING`."""
    answers = [(shown, said) for shown, said in store.answers() if shown.promise != PAIRS]
    judged = [(shown, said) for shown, said in answers if said is not None]
    chosen = judged if place == EVERYTHING else [(shown, said) for shown, said in judged if _counts(shown)]
    if len(chosen) < FEWEST:
        others = len(judged) - len(chosen)
        besides = (
            f"; {others:,} more were judged by whoever wanted to, which `{EVERYTHING}` takes too"
            if others
            else ""
        )
        raise InputError(
            f"Calibration needs {FEWEST} judged answers that were drawn at random, got {len(chosen):,}{besides}. "
            "`doubtless review` asks for those that wait."
        )
    _must_be_named(chosen)
    numbers = store.numbers([shown for shown, _ in chosen])
    kept = [(shown, said, one) for (shown, said), one in zip(chosen, numbers, strict=True) if one is not None]
    rows = np.stack([np.frombuffer(one, dtype="<f4") for _, _, one in kept])
    return EmbeddedShard(
        unpacked(rows, settings),
        [shown.id for shown, _, _ in kept],
        [said.truth for _, said, _ in kept],
        [None] * len(kept),
        [{} for _ in kept],
    )


def _counts(shown: Shown) -> bool:
    """Whether a drawn answer stays: by a coin that its id throws, the same every time."""
    if not shown.drawn or not shown.thinned:
        return shown.drawn
    return int(shown.id[:8], 16) / 16**8 < LEAST_SHARE / shown.share


def _must_be_named(chosen: list[tuple[Shown, Feedback]]) -> None:
    unnamed = sum(said.truth is None for _, said in chosen)
    if unnamed > MOST_UNNAMED * len(chosen):
        raise InputError(
            f"Of {len(chosen):,} judged answers nobody said what {unnamed:,} show; left out, they would make the "
            "gallery look better than it is. Say their labels: doubtless review GALLERY --answer answer:ID=LABEL."
        )
