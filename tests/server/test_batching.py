"""Batches: many requests, one call; order kept; one that fails fails alone; closing finishes what was accepted."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
import torch

from doubtless.errors import InputError
from doubtless.server.service.errors import OverloadedError
from doubtless.server.service.queue import Batcher, Batching, Query
from doubtless.server.service.service import Service
from tests.server.asking import asked


def test_what_waits_is_taken_together() -> None:
    free = threading.Event()

    def work(numbers: list[int]) -> list[int]:
        free.wait()
        return [-number for number in numbers]

    batcher = Batcher(work, Batching(size=8, wait=0))
    futures = [batcher.submit(number) for number in range(20)]
    free.set()
    assert [future.result(10) for future in futures] == [-number for number in range(20)]
    assert batcher.items == 20
    assert batcher.batches <= 4  # one that began with the first, then 8, 8 and the rest
    batcher.close()


def test_it_waits_for_what_is_on_its_way_and_for_nobody_else() -> None:
    coming = [1]
    batcher = Batcher(list, Batching(size=2, wait=5), coming=lambda: coming[0])
    first = batcher.submit("a")
    time.sleep(0.1)
    assert not first.done()
    batcher.submit("b").result(1)
    assert first.done()
    assert batcher.batches == 1
    coming[0] = 0
    began = time.perf_counter()
    batcher.submit("alone").result(1)
    assert time.perf_counter() - began < 0.5
    batcher.close()


def test_failures_belong_to_whoever_asked() -> None:
    batcher = Batcher(lambda numbers: [ValueError("two") if number == 2 else number for number in numbers])
    futures = [batcher.submit(number) for number in range(4)]
    assert [futures[number].result(5) for number in (0, 1, 3)] == [0, 1, 3]
    with pytest.raises(ValueError, match="two"):
        futures[2].result(5)
    batcher.close()


def test_closing_finishes_and_then_refuses() -> None:
    def slow(numbers: list[int]) -> list[int]:
        time.sleep(0.05)
        return numbers

    batcher = Batcher(slow, Batching(size=3))
    futures = [batcher.submit(number) for number in range(10)]
    batcher.close()
    assert [future.result(0) for future in futures] == list(range(10))
    with pytest.raises(OverloadedError, match="closed"):
        batcher.submit(1)
    batcher.close()


def test_too_many_are_refused() -> None:
    free = threading.Event()
    batcher = Batcher(lambda numbers: [free.wait() for _ in numbers], Batching(size=1, queue=3))
    batcher.submit(0)
    for number in range(3):  # whether or not the worker has the first one already
        with contextlib.suppress(OverloadedError):
            batcher.submit(number)
    time.sleep(0.05)
    with pytest.raises(OverloadedError, match="3 requests"):
        [batcher.submit(number) for number in range(2)]
    free.set()
    batcher.close()
    with pytest.raises(InputError, match="size"):
        Batching(size=0)


def test_requests_share_calls_of_the_model(service: Service, picture: bytes) -> None:
    service.answer_images([picture])  # the first call is slower
    before, count = service.engine.model_calls, 64

    async def talk(client: httpx.AsyncClient) -> list[httpx.Response]:
        return await asyncio.gather(
            *(client.post("/v1/search", files={"image": picture}) for _ in range(count))
        )

    replies = asked(service, talk)
    assert [reply.status_code for reply in replies] == [200] * count
    answers = [reply.json()["hits"] for reply in replies]
    assert len({str([hit["id"] for hit in hits]) for hits in answers}) == 1
    for hits in answers:  # batches of other sizes round otherwise
        assert [hit["score"] for hit in hits] == pytest.approx([hit["score"] for hit in answers[0]], abs=1e-6)
    calls = service.engine.model_calls - before
    print(f"{count} requests, {calls} calls of the model")
    assert calls <= count // 4


def test_a_batch_gives_what_each_alone_would(service: Service) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (12, 1, 12, 12), dtype=torch.uint8, generator=generator)
    questions = [
        service.question(k, where=where, confidence=confidence)
        for k in (1, 5)
        for where in (None, {"label": ["class-1"]}, {"label": "class-2"})
        for confidence in (0.5, 0.9)
    ]
    queries = [
        Query(pixels=image, question=question) for image, question in zip(images, questions, strict=True)
    ]
    together = service.engine.answer(queries)
    alone = [service.engine.answer([query])[0] for query in queries]
    for one, other, query in zip(together, alone, queries, strict=True):
        assert not isinstance(one, Exception)
        assert not isinstance(other, Exception)
        assert one.answer is not None
        assert other.answer is not None
        assert query.question is not None
        assert len(one.answer.hits) == query.question.k
        assert [hit.id for hit in one.answer.hits] == [hit.id for hit in other.answer.hits]
        assert one.answer.decision == other.answer.decision
        assert one.answer.covering_set == other.answer.covering_set


def test_one_bad_query_does_not_take_the_batch_with_it(service: Service) -> None:
    good = Query(pixels=torch.zeros(1, 12, 12, dtype=torch.uint8), question=service.question(1))
    bad = Query(pixels=torch.zeros(7, 12, 12, dtype=torch.uint8), question=service.question(1))
    odd = Query(pixels=good.pixels, question=service.question(1, where={"x": object()}, confidence=0.5))
    found = service.engine.answer([good, bad, good])
    assert isinstance(found[1], Exception)
    assert not isinstance(found[0], Exception)
    assert not isinstance(found[2], Exception)
    with pytest.raises(TypeError):
        service.submit(odd).result(10)
    assert service.submit(good).result(10).answer is not None


def test_many_threads_ask_store_and_remove(service: Service, picture: bytes) -> None:
    def turn(number: int) -> str:
        service.add(f"new {number}", picture, label="new", metadata={"number": number})
        assert service.image_of(f"new {number}").data == picture
        answer = service.answer_images([picture], k=3, where={"label": "new"})[0]
        service.remove([f"new {number}"])
        return answer.hits[0].id

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(turn, range(24)))
    assert all(id.startswith("new ") for id in found)
    assert len(service.gallery.index) == 120
