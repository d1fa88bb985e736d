"""What is worked out once for every state of a gallery, because it takes seconds: a survey, its map, its review.

One thread works; whoever asks meanwhile waits for the same result. What was calibrated, and every item that comes
or goes, makes another state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from doubtless.errors import InputError
from doubtless.gallery import Gallery
from doubtless.gallery.feedback.review import Looked
from doubtless.gallery.survey import Map, Survey, mapped, survey
from doubtless.server.service.errors import OverloadedError

TRIES = 3
"""Times something is worked out anew because items it looks at are removed meanwhile."""


class Overview:
    """A gallery seen as a whole; for any thread."""

    def __init__(self, gallery: Gallery) -> None:
        self.gallery = gallery
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Any, Future[Any]]] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="doubtless-overview")

    def survey(self) -> Future[Survey]:
        """Some items with their doubt."""
        return self._once("survey", lambda: survey(self.gallery))

    def map(self) -> Future[Map]:
        """Some of these on a plane."""
        seen = self.survey()  # worked out before, by the same thread
        return self._once("map", lambda: mapped(self.gallery, seen.result()))

    def looked(self) -> Future[Looked]:
        """What `Gallery.review` finds by looking at every item."""
        return self._once("looked", self.gallery.look_over)

    def close(self) -> None:
        """Finishes what is under way; what waits is not begun."""
        self._worker.shutdown(cancel_futures=True)

    def _once(self, name: str, work: Callable[[], Any]) -> Future[Any]:
        judge = self.gallery.judge_of()  # kept with the result, so that no other one can have its identity
        state = self.gallery.index.version, judge
        with self._lock:
            before = self._known.get(name)
            if before is not None and before[0][0] == state[0] and before[0][1] is judge:
                done = before[1]
                if not done.done() or (not done.cancelled() and done.exception() is None):
                    return done
            try:
                made = self._worker.submit(_steadily, work)
            except RuntimeError:
                raise OverloadedError("The service is closed; it takes no more requests.") from None
            self._known[name] = state, made
            return made


def _steadily(work: Callable[[], Any]) -> Any:
    for _ in range(TRIES):
        try:
            return work()
        except InputError:  # an item that was to be looked at is gone
            continue
    raise OverloadedError("The gallery is being changed too fast to be looked at; try again later.")
