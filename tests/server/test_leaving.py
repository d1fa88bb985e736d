"""Clients that leave, bodies that never end, a server that is told to stop: nothing is done for nobody."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from doubtless.server.http import incoming
from doubtless.server.http.app import create_app
from doubtless.server.http.incoming import Held, Incoming
from doubtless.server.http.listening import BoundedServer
from doubtless.server.service.service import Service
from tests.reference.waiting import wait_until
from tests.server.asking import asked, served
from tests.server.test_connections import opened


@contextlib.contextmanager
def listening(service: Service) -> Iterator[int]:
    """A service on a port, in a thread; the service is closed with it."""
    server = BoundedServer(create_app(service, page=False), host="127.0.0.1", port=0)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, 20)
        yield server.addresses()[0][1]
    finally:
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def search_of(service: Service) -> bytes:
    location = service.gallery.index.embedding([0]).location[0].tolist()
    body = f'{{"embedding": {{"location": {location}}}, "k": 3}}'.encode()
    head = b"POST /v1/search HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return head + f"Content-Length: {len(body)}\r\n\r\n".encode() + body


def test_whoever_leaves_before_its_turn_is_not_served(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    free, work, entered = threading.Event(), service.batcher._work, threading.Event()

    def held_up(queries: Any) -> Any:
        entered.set()
        assert free.wait(30)
        return work(queries)

    service.batcher._work = held_up
    with listening(service) as port:
        first = opened(port, search_of(service))
        assert entered.wait(20)  # the worker is busy with it: all others wait
        leaving = [opened(port, search_of(service)) for _ in range(20)]
        staying = opened(port, search_of(service))
        wait_until(lambda: service.batcher._queue.qsize() == 21, 20)
        for one in leaving:
            one.close()
        time.sleep(0.3)
        free.set()
        for one in (first, staying):
            assert one.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
        assert service.batcher.items == 2
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    assert caplog.text == ""


def test_a_body_that_breaks_off_is_no_fault_of_ours(
    service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    with listening(service) as port, caplog.at_level(logging.WARNING):
        for _ in range(10):
            opened(port, search_of(service)[:-20]).close()
        assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    assert caplog.text == ""


def test_a_body_that_does_not_come_is_a_408(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming, "BODY_SECONDS", 0.3)
    with listening(service) as port:
        slow = opened(port, search_of(service)[:-20])
        assert slow.recv(1 << 16).startswith(b"HTTP/1.1 408 ")


def test_all_bodies_together_have_a_limit() -> None:
    async def parts() -> Any:
        return {"type": "http.request", "body": b"x" * 400, "more_body": True}

    async def talk() -> None:
        held = Held(most=1000)
        one, other = (Incoming(parts, largest=900, held=held) for _ in range(2))
        await one()
        await one()
        with pytest.raises(Exception, match="503"):
            await other()
        one.release()
        assert held.bytes == 400
        await other()
        other.release()
        other.release()
        assert held.bytes == 0

    asyncio.run(talk())


def test_no_reply_ever_has_a_cors_header(service: Service) -> None:
    async def talk(client: httpx.AsyncClient) -> list[httpx.Response]:
        foreign = {
            "Origin": "https://elsewhere.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization",
        }
        addresses = ["/healthz", "/v1/info", "/v1/items", "/v1/search", "/docs", "/openapi.json", "/nothing"]
        asking = [
            client.request(method, address, headers=foreign)
            for method in ("OPTIONS", "GET", "POST", "DELETE")
            for address in addresses
        ]
        return [await one for one in asking]

    replies = asked(service, talk) + asked(service, talk, token="t" * 20)
    assert {reply.status_code for reply in replies} >= {200, 401, 403, 404, 405}
    for reply in replies:
        assert not [name for name in reply.headers if name.startswith("access-control-")]


def test_it_stops_in_time_with_bodies_half_sent(own_index: Path) -> None:
    with served(own_index) as process:
        port = int(process.address.rsplit(":", 1)[1])
        head = b"POST /v1/items HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5000\r\n"
        kinds = [
            b"Content-Type: application/json\r\n\r\n{",
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n--x",
        ]
        held: list[socket.socket] = [opened(port, head + kinds[number % 2]) for number in range(40)]
        held += [opened(port, b"GET / HT") for _ in range(40)]
        assert httpx.get(f"{process.address}/healthz").status_code == 200
        began = time.perf_counter()
        assert process.stop() == 0
        taken = time.perf_counter() - began
    assert taken < 25
    assert sum(map(len, process.said)) < 2000, process.said
    print(f"stopped after {taken:.1f} s")


def test_what_does_not_end_is_told_so_when_the_server_stops(service: Service) -> None:
    app = create_app(service, page=False)

    async def talk() -> tuple[int, bytes]:
        said: list[Any] = []

        async def send(message: Any) -> None:
            said.append(message)

        async def receive() -> Any:
            await asyncio.sleep(60)

        scope = {
            "type": "http", "method": "POST", "path": "/v1/search", "query_string": b"", "http_version": "1.1",
            "headers": [(b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"content-length", b"9")],
        }  # fmt: skip
        task = asyncio.create_task(app(scope, receive, send))  # type: ignore[arg-type]
        await asyncio.sleep(0.2)
        task.cancel()
        await task
        return said[0]["status"], said[1]["body"]

    status, body = asyncio.run(talk())
    assert status == 503
    assert b"stopped" in body
