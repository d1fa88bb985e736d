"""What callers say of answers: recent ones are remembered by their id, all are counted, some drawn to be judged.

All of it goes through one thread, in the order in which it came, so that nobody who asks waits for the disk, and
what is said of an answer finds it counted. Who says something waits until it is on the disk.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from doubtless.errors import DiskFullError, InputError
from doubtless.gallery import Answer, Feedback, Gallery
from doubtless.gallery.feedback.pairs import PREFIX
from doubtless.server.service.errors import NotFoundError, ReadOnlyError

REMEMBERED = 2_000
"""Answers that are remembered; of an older one what was drawn is on the disk."""
log = logging.getLogger("doubtless.server")


class Judgements:
    """Feedback on what a gallery has answered.

    audit   chance with which an answer is drawn to be judged, and kept with its picture; 0: none is
    """

    def __init__(self, gallery: Gallery, *, read_only: bool, audit: float = 0.0) -> None:
        if not 0 <= audit <= 1:
            raise InputError(f"The share of answers that are drawn lies between 0 and 1, got {audit}.")
        self.gallery, self.read_only, self.audit = gallery, read_only, audit
        self._recent: OrderedDict[str, Answer] = OrderedDict()
        self._places: dict[str, int] = {}
        self._lock = threading.Lock()
        self._disk = ThreadPoolExecutor(1, thread_name_prefix="doubtless-feedback")

    def note(self, answer: Answer, picture: bytes | None = None, *, counted: bool = True) -> None:
        """Remembers an answer that is given and, if it is `counted`, counts it and may draw it to be judged."""
        if answer.id is None:
            return
        with self._lock:
            self._recent[answer.id] = answer
            self._recent.move_to_end(answer.id)
            while len(self._recent) > REMEMBERED:
                gone, _ = self._recent.popitem(last=False)
                self._places.pop(gone, None)
        if counted and not self.read_only and answer.promised is not None:
            kept = picture if self.audit else None  # what waits for the disk is not to hold all pictures
            self._disk.submit(self._logged, lambda: self._count(answer, kept))

    def say(
        self,
        answer: str | Answer,
        said: Any,
        *,
        label: str | None = None,
        who: str | None = None,
        at_random: bool = False,
    ) -> Future[Feedback]:
        """What someone says of an answer, by its id, or of one that was just made; done when it is on the disk."""
        if self.read_only:
            raise ReadOnlyError("This service is read-only.")
        return self._disk.submit(self._say, answer, said, label, who, at_random)

    def close(self) -> None:
        """Finishes what is under way."""
        self._disk.shutdown()

    def _say(
        self, answer: str | Answer, said: Any, label: str | None, who: str | None, at_random: bool
    ) -> Feedback:
        known: Answer | str | None = answer
        if isinstance(answer, str):
            with self._lock:
                known = self._recent.get(answer)
            of_pair = answer.startswith(PREFIX)
            if known is None and not of_pair and self.gallery.judgements.find(answer) is None:
                raise NotFoundError("There is no answer of this id any more; say it of the picture itself.")
        place = None if known is None or isinstance(known, str) else self._places.get(known.id or "")
        return self.gallery.feedback(
            known or answer, said, label=label, who=who, at_random=at_random, place=place
        )

    def _count(self, answer: Answer, picture: bytes | None) -> None:
        assert answer.id is not None
        place = None
        if answer.decision == "answer":
            place = self.gallery.judgements.count(self.gallery.promise_name())
            with self._lock:
                if answer.id in self._recent:  # and not forgotten, where the disk is slow
                    self._places[answer.id] = place
        if self.audit:
            self.gallery.keep(answer, share=self.audit, pictures=[picture], places=[place])

    @staticmethod
    def _logged(work: Callable[[], None]) -> None:
        """What cannot be counted is no reason not to answer."""
        try:
            work()
        except DiskFullError as error:
            log.error("an answer cannot be counted: %s", error)
        except Exception:
            log.exception("an answer cannot be counted")
