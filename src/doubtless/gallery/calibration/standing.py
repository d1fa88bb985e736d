"""`Standings`: which judge is right for the gallery as it is now, or for the part of it that a filter lets through.

A part, and a gallery that is no longer the one that was calibrated, is another gallery: its nearest wrong item is
farther away or nearer. So its own labelled items, or the calibration queries from outside, search it as they would
have at a calibration, and distribution, promise and covering sets are fitted anew. That is kept in memory, per
filter, until a tenth of what the filter lets through is another. Where it cannot be done, the judge says so and
answers nothing.

What became of the whole gallery is looked at with every change. Up to a quarter of it may be new or gone, as long
as its promise is not contradicted: at `LOOKS` shares some of the items are asked, and an exact test, at `LEVEL`
over all looks, says whether more answers are wrong than promised. Beyond, or after an alarm, the promise is
withdrawn.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING

from doubtless.calibration.kept_searches import Items
from doubtless.calibration.part import (
    CANARIES,
    CHANGED,
    LEVEL,
    LOOKS,
    MOST_ABSENT,
    MOST_KNOWN,
    contradicted,
    drawn,
)
from doubtless.calibration.sentence import Sentence
from doubtless.calibration.together import fit_together
from doubtless.errors import InputError
from doubtless.gallery.calibration.kept import Change, Sketch
from doubtless.gallery.calibration.labels import fitted_on, items_of
from doubtless.gallery.judge import Judge
from doubtless.index.base import Index

if TYPE_CHECKING:
    from doubtless.index.filters import Where

MOST_FILTERS = 32
"""Filters whose judges are kept in memory."""
SAME = 0.1
"""What has changed by no more than this share since it was fitted is still told by that fit."""
FEWEST_KNOWN, FEWEST_LABELS = 50, 2
"""Below which nothing is said of a part."""
MOST_PRODUCTS = 4e10
"""Numbers that may be multiplied while somebody waits for an answer: about a second's worth."""
FEWEST_QUERIES = 300
MOST_PHOTOS_ASKED = 2_000
"""Queries that groups of photos are made of."""


@dataclass(frozen=True, eq=False)
class Standing:
    """A judge, and of what: the index at a version, of which these items were searched."""

    judge: Judge
    version: tuple[int, ...]
    sketch: Sketch


class Standings:
    """Judges of a gallery and its parts; `judge` is the one that was calibrated. For any thread."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.kept = judge, judge.calibrated.kept
        self.alarm = False
        """Whether canaries have contradicted the promise."""
        self._looks = 0  # that have been taken
        self._lock = threading.Lock()
        self._known: OrderedDict[str, Standing] = OrderedDict()
        self._photos: OrderedDict[tuple[str, int], tuple[Judge, Judge]] = OrderedDict()

    def of(self, index: Index, where: Where | None = None) -> Judge:
        """The judge of answers from the items for which `where` holds, or from all."""
        if self.kept is None:
            return self.judge.for_part() if where else self.judge
        key, version = _key(where), index.version
        with self._lock:
            standing = self._known.get(key)
            if standing is None or standing.version != version:
                standing = self._renewed(index, where, version, standing)
                self._known[key] = standing
            self._known.move_to_end(key)
            while len(self._known) > MOST_FILTERS:
                self._known.popitem(last=False)
            return standing.judge

    def of_photos(self, index: Index, count: int, where: Where | None = None) -> Judge:
        """The judge of `count` photos of one thing, fitted once on groups of as many."""
        judge, key = self.of(index, where), (_key(where), count)
        if judge.instead is not None:
            return judge
        if self.kept is None or judge.calibrated.distribution is None:
            raise InputError(
                "Several photos are asked together where a gallery was calibrated on its labels, and ranks by "
                "direction; calibrate it, or ask them one by one."
            )
        with self._lock:
            base, made = self._photos.get(key, (None, None))
            if base is not judge or made is None:
                made = self._fitted_on_photos(index, judge, count, where)
                self._photos[key] = judge, made
            self._photos.move_to_end(key)
            while len(self._photos) > MOST_FILTERS:
                self._photos.popitem(last=False)
            return made

    def change(self, index: Index) -> Change | None:
        """What became of the gallery since it was calibrated; None where nothing was kept to tell by."""
        return None if self.kept is None else self.kept.sketch.change(items_of(index))

    def _renewed(
        self, index: Index, where: Where | None, version: tuple[int, ...], before: Standing | None
    ) -> Standing:
        assert self.kept is not None
        items = items_of(index, index.rows_where(where) if where else None)
        if not where:
            change = self.kept.sketch.change(items)
            if not self._is_another(items, change):
                return Standing(self.judge, version, self.kept.sketch)
            note = f"{change.sentence()}: what was promised then is withdrawn"
        if (
            before is not None
            and before.judge is not self.judge
            and before.sketch.change(items).share <= SAME
        ):
            return replace(before, version=version)
        part = "the part that was searched" if where else "the gallery as it is now"
        made = self._fitted(index, items, part)
        if where:
            return Standing(made, version, Sketch.of(items))
        if made.instead is None:
            words = f"{note}; probabilities and promise are worked out from the gallery as it is now."
            judge = made.noting(_withdrawn(words, change), withdrawn=True)
        else:
            words = f"{note}. {made.instead} Run doubtless recalibrate."
            judge = self.judge.saying_nothing(_withdrawn(words, change))
        return Standing(judge, version, Sketch.of(items))

    def _is_another(self, items: Items, change: Change) -> bool:
        """Whether the gallery is no longer what was calibrated: too much has changed, or canaries say so."""
        due = sum(change.share >= look for look in LOOKS)
        if not self.alarm and due > self._looks and change.share <= CHANGED:
            self._looks = due
            self.alarm = self._contradicted(items, seed=due)
        return self.alarm or change.share > CHANGED

    def _contradicted(self, items: Items, *, seed: int) -> bool:
        """Whether canaries, drawn from the items or from the kept queries, are answered wrongly too often."""
        assert self.kept is not None
        known = self.judge.calibrated
        assert known.distribution is not None
        assert known.promise is not None
        canaries = drawn(self.kept.searches, items, items, known=CANARIES, others=0, seed=seed)
        level = LEVEL / len(LOOKS)
        return contradicted(known.distribution, known.promise, canaries, items, level=level, seed=seed)

    def _fitted(self, index: Index, items: Items, part: str) -> Judge:
        """A judge that was fitted on what queries find among these items; one that says nothing where it cannot."""
        assert self.kept is not None
        promise = self.judge.calibrated.promise
        assert promise is not None
        affordable = int(MOST_PRODUCTS / max(1, len(items) * index.dim))
        if affordable < FEWEST_QUERIES:
            return self.judge.saying_nothing(
                f"No probability: {part} has {len(items):,} items, too many to be calibrated while you wait."
            )
        scale = min(1.0, affordable / (MOST_KNOWN + MOST_ABSENT))
        gallery = items_of(index)
        queries = drawn(
            self.kept.searches,
            items,
            gallery,
            known=int(scale * MOST_KNOWN),
            others=int(scale * MOST_ABSENT),
        )
        known = queries.findable(items)
        labels = len(queries.label[known].unique())
        if len(known) < FEWEST_KNOWN or labels < FEWEST_LABELS:
            return self.judge.saying_nothing(
                f"No probability: for {part} there are {len(known)} calibration queries of {labels} "
                f"label{'' if labels == 1 else 's'}; it takes {FEWEST_KNOWN} of {FEWEST_LABELS}."
            )
        searched = queries.among(items, queries.vectors(items))
        try:
            made = fitted_on(searched, items, promise.terms, gallery=gallery)
        except InputError as error:
            return self.judge.saying_nothing(f"No probability: {part} cannot be calibrated. {error}")
        return self.judge.with_fit(made)

    def _fitted_on_photos(self, index: Index, judge: Judge, count: int, where: Where | None) -> Judge:
        assert self.kept is not None
        calibrated = judge.calibrated
        assert calibrated.distribution is not None
        assert calibrated.promise is not None
        items = items_of(index, index.rows_where(where) if where else None)
        known = min(MOST_PHOTOS_ASKED, int(MOST_PRODUCTS / max(1, len(items) * index.dim)))
        queries = drawn(self.kept.searches, items, items, known=known, others=0)
        searched = queries.among(items, queries.vectors(items))
        try:
            made = fit_together(
                searched, items, calibrated.distribution, calibrated.promise.terms, count=count
            )
        except InputError as error:
            return judge.saying_nothing(f"No probability of {count} photos together. {error}")
        return judge.of_photos(made)


def _withdrawn(words: str, change: Change) -> Sentence:
    return Sentence(words, "withdrawn", **asdict(change), gone=change.gone)


def _key(where: Where | None) -> str:
    return json.dumps(where or None, sort_keys=True, default=list)
