"""What is asked of a service, and how many askers are answered by one call of the model and one search per filter.

`Batcher` makes one call of what many threads ask for at once. A batch begins as soon as the worker is free and
something waits. It is filled with what waits already and, for at most `wait` seconds, with what is known to be on
its way; someone who asks alone waits for nobody. `Engine` answers a batch.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery import Answer, Answers, Gallery, Queries
from doubtless.server.service.drift import Drift
from doubtless.server.service.errors import OverloadedError

if TYPE_CHECKING:
    pass


Item = TypeVar("Item")
Result = TypeVar("Result")

POLL = 0.001
"""Seconds between two looks at what is on its way."""


@dataclass(frozen=True)
class Batching:
    """How requests are put together.

    size    the most in a batch
    wait    the most seconds a batch waits for requests whose images are being decoded
    queue   requests that may wait; more are refused
    """

    size: int = 32
    wait: float = 0.005
    queue: int = 1024

    def __post_init__(self) -> None:
        if self.size < 1 or self.queue < 1 or not 0 <= self.wait <= 60:
            raise InputError(
                "Batches need a size and a queue of at least 1 and a wait of 0 to 60 seconds, got "
                f"size {self.size}, queue {self.queue}, wait {self.wait}."
            )


class Batcher(Generic[Item, Result]):
    """Calls `work` with lists of what was submitted, in one thread.

    >>> batcher = Batcher(lambda numbers: [2 * number for number in numbers])
    >>> batcher.submit(21).result()
    42
    >>> batcher.close()

    work     list → as many results; one that is an exception is raised where it was asked for
    coming   how many are on their way here
    """

    def __init__(
        self,
        work: Callable[[list[Item]], Sequence[Result | Exception]],
        settings: Batching | None = None,
        *,
        coming: Callable[[], int] = lambda: 0,
    ) -> None:
        self.settings = settings or Batching()
        self.batches = 0  # calls of `work`
        self.items = 0  # what they were given, together
        self.worked: Callable[[int, float], None] | None = None  # hears of each: how many, and seconds
        self._work, self._coming = work, coming
        self._queue: queue.SimpleQueue[tuple[Item, Future[Result]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # closing comes after all that was submitted
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="doubtless-batches", daemon=True)
        self._thread.start()

    def submit(self, asked: Item) -> Future[Result]:
        """The result, when it is there."""
        future: Future[Result] = Future()
        with self._lock:
            if self._closed:
                raise OverloadedError("The service is closed; it takes no more requests.")
            if self._queue.qsize() >= self.settings.queue:
                raise OverloadedError(f"{self.settings.queue} requests are waiting already; try again later.")
            self._queue.put((asked, future))
        return future

    @property
    def waiting(self) -> int:
        """How many were submitted and not begun."""
        return self._queue.qsize()

    @property
    def running(self) -> bool:
        """Whether what is submitted will be worked on."""
        return not self._closed and self._thread.is_alive()

    def close(self) -> None:
        """Finishes what was submitted, then stops. Closing twice is allowed."""
        with self._lock:
            if not self._closed:
                self._queue.put(None)
            self._closed = True
        self._thread.join()

    def _run(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, last = self._gathered(first)
            self._answer(batch)
            if last:
                return

    def _gathered(self, first: tuple[Item, Future[Result]]) -> tuple[list[tuple[Item, Future[Result]]], bool]:
        """A batch, and whether nothing comes after it."""
        batch, until = [first], time.monotonic() + self.settings.wait
        while len(batch) < self.settings.size:
            try:
                entry = self._queue.get_nowait()
            except queue.Empty:
                if time.monotonic() >= until or not self._coming():
                    break
                time.sleep(POLL)
                continue
            if entry is None:
                return batch, True
            batch.append(entry)
        return batch, False

    def _answer(self, batch: list[tuple[Item, Future[Result]]]) -> None:
        wanted = [entry for entry in batch if entry[1].set_running_or_notify_cancel()]
        if not wanted:
            return
        self.batches += 1
        self.items += len(wanted)
        began = time.monotonic()
        try:
            results = self._work([asked for asked, _ in wanted])
        except Exception as error:  # whoever asked is told; the worker goes on
            results = [error] * len(wanted)
        if self.worked is not None:
            self.worked(len(wanted), time.monotonic() - began)
        for (_, future), result in zip(wanted, results, strict=True):
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)


SEARCHES = 10
"""Times a search is made anew because others remove what it finds."""


@dataclass(frozen=True, eq=False)
class Question:
    """What an answer is wanted for. `watched`: it counts as one of the queries whose drift is watched."""

    k: int = 10
    where: Mapping[str, Any] | None = None
    confidence: float = 0.9
    watched: bool = True

    def kind(self) -> str:
        """The same for questions that one search can answer."""
        return json.dumps([self.where or None, self.confidence], sort_keys=True)


@dataclass(frozen=True, eq=False)
class Query:
    """An image, prepared for the model (C, H, W), or an embedding of one item; and what is to be done with it."""

    pixels: Tensor | None = None
    embedding: Embedding | None = None
    question: Question | None = None
    """None: it is only embedded."""


@dataclass(frozen=True, eq=False)
class Reply:
    """The embedding of a query (one item, on the CPU) and, where a question was asked, the answer."""

    embedding: Embedding
    answer: Answer | None


@dataclass(frozen=True, eq=False)
class Asked:
    """A question about an embedded query, and its place in the batch."""

    place: int
    question: Question
    query: Queries

    def group(self) -> tuple[Any, ...]:
        """Members of one group are searched together: the same filter, and embeddings that can be joined."""
        embedding = self.query.embedding
        shapes = tuple((name, value.shape[1:]) for name, value in embedding.parameters.items())
        return self.question.kind(), embedding.family, self.query.features is None, shapes


class Engine:
    """Embeds and answers batches of queries; used by one thread."""

    def __init__(self, gallery: Gallery) -> None:
        self.gallery = gallery
        self.drift: Drift | None = None
        self.model_calls = 0
        self.told: Callable[[Answer], None] | None = None  # hears of every answer that is no trial
        self._judge: object = None
        self._follow()

    def answer(self, queries: list[Query]) -> list[Reply | Exception]:
        """A reply to every query, or what was wrong with it; one that fails does not take others with it."""
        embedded = self._embed(queries)
        replies: list[Reply | Exception] = [
            one if isinstance(one, Exception) else Reply(one.embedding, None) for one in embedded
        ]
        groups: dict[Any, list[Asked]] = {}
        for place, (query, one) in enumerate(zip(queries, embedded, strict=True)):
            if query.question is not None and not isinstance(one, Exception):
                asked = Asked(place, query.question, one)
                groups.setdefault(asked.group(), []).append(asked)
        for members in groups.values():
            for asked, answer in zip(members, _each(self._answers, members), strict=True):
                done = answer if isinstance(answer, Exception) else Reply(asked.query.embedding, answer)
                replies[asked.place] = done
        return replies

    def _embed(self, queries: list[Query]) -> list[Queries | Exception]:
        """Every query embedded, images of one shape together."""
        found: list[Queries | Exception | None] = [
            None if query.embedding is None else Queries(query.embedding) for query in queries
        ]
        shapes: dict[Any, list[int]] = {}
        for place, query in enumerate(queries):
            if query.pixels is not None:
                shapes.setdefault(query.pixels.shape, []).append(place)
        for places in shapes.values():
            images = [pixels for place in places if (pixels := queries[place].pixels) is not None]
            for place, one in zip(places, _each(self._embed_images, images), strict=True):
                found[place] = one
        return [one for one in found if one is not None]

    def _embed_images(self, images: Sequence[Tensor]) -> list[Queries]:
        """Every image, prepared for the model, as a query of its own."""
        self.model_calls += 1
        queries = self.gallery.read_prepared(torch.stack(list(images)))  # (b, C, H, W)
        return [queries[row] for row in range(len(queries))]

    def _answers(self, asked: Sequence[Asked]) -> list[Answer]:
        """Answers to queries of one group."""
        self._follow()
        questions, searches = [one.question for one in asked], 0
        while True:
            answers = self._searched(asked)
            warnings = answers.warnings + self._drift_warning()
            shown = [replace(answers, k=one.k, warnings=warnings) for one in questions]
            try:
                made = [own[row] for row, own in enumerate(shown)]
            except InputError:  # what was found has been removed in the meantime
                searches += 1
                if searches == SEARCHES:
                    raise
            else:
                self._watch(answers, questions)
                self.tell(made, questions)
                return made

    def tell(self, answers: Sequence[Answer], questions: Sequence[Question]) -> None:
        """Lets whoever counts hear of answers that were given."""
        if self.told is not None:
            for answer, question in zip(answers, questions, strict=True):
                if question.watched:
                    self.told(answer)

    def _searched(self, asked: Sequence[Asked]) -> Answers:
        question = asked[0].question
        return self.gallery.ask(
            Queries.cat([one.query for one in asked]),
            max(one.question.k for one in asked),
            where=question.where or None,
            confidence=question.confidence,
        )

    def _follow(self) -> None:
        """Watches drift from what is calibrated now: somebody may have calibrated since, or changed the gallery."""
        judge = self.gallery.judge_of()
        if judge is not self._judge:
            doubts = judge.tested_doubts()
            self._judge, self.drift = judge, None if doubts is None else Drift(doubts.numpy())

    def _watch(self, answers: Answers, questions: Sequence[Question]) -> None:
        """Takes note of the doubts of queries to the whole gallery."""
        total = answers.watched
        counted = [row for row, question in enumerate(questions) if question.watched and not question.where]
        if self.drift is not None and total is not None and counted:
            self.drift.watch(total[counted].tolist())

    def _drift_warning(self) -> tuple[str, ...]:
        if self.drift is None or not self.drift.state.alarm:
            return ()
        return (self.drift.state.sentence(),)


def _each(work: Callable[[Sequence[Any]], Sequence[Any]], members: Sequence[Any]) -> list[Any]:
    """What `work` gives for all members at once or, where that fails, for each alone; failures as exceptions."""
    try:
        return list(work(members))
    except Exception as error:
        if len(members) == 1:
            return [error]
    return [result for member in members for result in _each(work, [member])]
