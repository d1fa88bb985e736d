"""What people say of a gallery's answers: it is kept, watched, and asked for where it would tell most."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from doubtless.calibration.watch import share_asked
from doubtless.errors import InputError
from doubtless.gallery.answer import Answer
from doubtless.gallery.feedback import pairs
from doubtless.gallery.feedback.store import Feedback, FeedbackStore, Judgement, Shown
from doubtless.gallery.feedback.watching import Watch, promise_name, watch
from doubtless.gallery.upkeep import Upkeep
from doubtless.index.forms import fitting, packed

if TYPE_CHECKING:
    from doubtless.gallery.feedback.review import Looked, Review

SHOWN_LABELS = 5
"""Labels of an answer that are kept with it."""


class Judged(Upkeep):
    """A gallery whose answers are judged."""

    @cached_property
    def judgements(self) -> FeedbackStore:
        """What was said of its answers, beside it."""
        return FeedbackStore(self.folder)

    def feedback(
        self,
        answer: Answer | str,
        said: Judgement | None = None,
        *,
        label: str | None = None,
        who: str | None = None,
        at_random: bool = False,
        place: int | None = None,
    ) -> Feedback:
        """Writes down that an answer is right, wrong, or what it should have been; on the disk when it returns.

        answer      an answer, the id of one that was kept (`keep`), or pair:ID of a pair that `review` asks about
        said        "right" or "wrong"; or, in its place, `label`: what the query shows
        who         whoever says so
        at_random   this answer was chosen to be judged whatever it said, by chance or because all are: only then
                    its being right is counted. What people say of their own accord is more often a complaint
        place       which of all counted answers it was, of a service that counts

        The gallery need not be writable. The last word on an answer counts.

        >>> import torch
        >>> from doubtless import Embedding, Gallery
        >>> vectors = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
        >>> with Gallery.create("shop", embedding=Embedding.point(vectors), labels=["leek", "garlic"] * 30) as shop:
        ...     answer = shop.ask(Embedding.point(vectors[:1]))[0]
        ...     shop.feedback(answer, "wrong", who="Ada").truth
        ...     shop.feedback(answer, label="ginger").truth
        'ginger'
        """
        if (said is None) == (label is None):
            raise InputError(
                "Say that an answer is right or wrong, or which label it should have: one of the two."
            )
        if said is not None and said not in get_args(Judgement):
            raise InputError(f"An answer is right or wrong, got {said!r}; what it shows is given as label.")
        if isinstance(answer, str) and answer.startswith(pairs.PREFIX):
            if said is None:
                raise InputError("Of a pair it is said that it is right or wrong, not which label it has.")
            return pairs.say(self, answer.removeprefix(pairs.PREFIX), said, who=who)
        if label is not None and (not label.strip() or "\0" in label):
            raise InputError(f"A label must have a name, got {label!r}.")
        if isinstance(answer, str):
            shown = self.judgements.find(answer)
            if shown is None:
                raise InputError(f"No answer {answer!r} was kept here; give the answer, or its picture.")
            meant = self._meant(shown, said, label)
            return self.judgements.say(answer, meant, label=label, who=who)
        shown = self._shown(answer, drawn=at_random, asked=at_random, place=place)
        meant, numbers = self._meant(shown, said, label), self._numbers(answer)
        return self.judgements.say(shown, meant, label=label, who=who, numbers=numbers)

    def keep(
        self,
        answers: Answer | Iterable[Answer],
        *,
        share: float = 1.0,
        pictures: Sequence[bytes | None] | None = None,
        places: Sequence[int | None] | None = None,
        seed: int | None = None,
    ) -> list[str]:
        """Draws answers to be judged, each with the chance `share`; ids of those that were drawn.

        Whether an answer is drawn has nothing to do with what it says, so what is said of the drawn ones tells of
        all. `review` asks for them: for the surest of them every other time, for the others always.

        pictures   bytes of what was asked, kept with the drawn ones for whoever judges
        places     which of all counted answers each was, of a service that counts
        """
        told = [answers] if isinstance(answers, Answer) else list(answers)
        if not 0 < share <= 1:
            raise InputError(f"A share of answers lies above 0 and up to 1, got {share}.")
        coin, drawn = np.random.default_rng(seed), []
        for number, answer in enumerate(told):
            if coin.random() >= share or answer.id is None:
                continue
            asked = 1.0
            if answer.decision == "answer" and answer.probability is not None:
                asked = float(share_asked(1 - answer.probability))
            place = None if places is None else places[number]
            shown = self._shown(
                answer, drawn=True, thinned=True, share=asked, asked=bool(coin.random() < asked), place=place
            )
            picture = None if pictures is None else pictures[number]
            self.judgements.keep(shown, numbers=self._numbers(answer), picture=picture)
            drawn.append(answer.id)
        return drawn

    def watch(self) -> Watch:
        """Whether the promise in force still holds, as far as people's judgements tell.

        "no longer holds" is said of a promise that is kept with a probability of 5 % at most, "holds" of one that
        is broken likewise, however often and whenever it is looked at (`doubtless.calibration.watch`).
        """
        return watch(self.judgements, self.judge.promise())

    def look_over(self) -> Looked:
        """The part of `review` that takes a while: its items, each judged by all others."""
        from doubtless.gallery.feedback.review import look_over

        return look_over(self)

    def review(
        self, most: int = 20, *, kinds: Iterable[str] | None = None, looked: Looked | None = None
    ) -> Review:
        """What is worth a person's minute, the most telling first: answers, pairs, labels of items, duplicates.

        most     how many are listed
        kinds    only these: "answer", "pair", "label", "duplicate"
        looked   what `look_over` has found, of items that have not changed since
        """
        from doubtless.gallery.feedback.review import review

        return review(self, most, kinds=kinds, looked=looked)

    def accept(self, id: str, label: str, *, who: str | None = None) -> str:
        """What was said to a question of `review`, by its id: feedback on an answer or a pair, or an item's label.

        Of an answer also "right" and "wrong" are taken, of a pair "same", "different" and "cannot-tell"; an item
        that has the label already is not asked for again.
        """
        from doubtless.gallery.feedback.review import accept

        return accept(self, id, label, who=who)

    def status(self) -> dict[str, Any]:
        """What it holds, what it promises, and whether that still holds, in plain values."""
        return {**super().status(), "watch": self.watch().to_json()}

    def promise_name(self) -> str:
        """A short name of the promise in force; "" where nothing is promised."""
        return promise_name(self.judge.promise())

    def _shown(self, answer: Answer, **chosen: Any) -> Shown:
        if answer.id is None:
            raise InputError("This answer does not know what was asked; ask again, and judge that answer.")
        return Shown(
            answer.id,
            self.promise_name(),
            time.time(),
            answer.decision,
            answer.label,
            answer.probability,
            answer.promised,
            tuple((one.label, one.probability) for one in answer.labels[:SHOWN_LABELS]),
            **chosen,
        )

    def _numbers(self, answer: Answer) -> bytes | None:
        if answer.query is None:
            return None
        return packed(fitting(answer.query, self.index.settings), self.index.settings).tobytes()

    def _meant(self, shown: Shown, said: Judgement | None, label: str | None) -> Judgement | None:
        """What a label says of the answer; of a refusal to answer it says nothing."""
        if said is not None or label is None:
            return said
        if shown.decision == "answer":
            return "right" if label == shown.label else "wrong"
        if shown.decision == "not-in-gallery":
            return "wrong" if label in self.index.label_names else "right"
        return None
