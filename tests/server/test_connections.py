"""Connections that ask nothing, ask slowly or do not read: they end, keep nobody out, and fill no log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from doubtless.server.http.connections import ConnectionLimits
from doubtless.server.http.listening import BoundedServer, Quiet, within_open_files
from tests.reference.waiting import wait_until
from tests.server.asking import check_problem, served

HALF = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "
GET = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
SHORT = ConnectionLimits(header=0.5, rest=0.5, idle=0.5, unread=0.5)


@dataclass
class Echo:
    """A small application; /slow is answered when it is told to be, /body reads, /large fits into no buffer."""

    free: threading.Event = field(default_factory=threading.Event)
    read: int = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            assert message["type"] == "lifespan.shutdown"
            await send({"type": "lifespan.shutdown.complete"})
            return
        body = b"fine"
        if scope["path"] == "/slow":
            while not self.free.is_set():
                await asyncio.sleep(0.01)
        while scope["path"] == "/body":
            message = await receive()
            self.read += len(message.get("body", b""))
            if not message.get("more_body", False):
                break
        if scope["path"] == "/large":
            body = bytes(20_000_000)
        head = [(b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": body})


@contextlib.contextmanager
def listening(limits: ConnectionLimits) -> Iterator[tuple[BoundedServer, int, Echo]]:
    app = Echo()
    server = BoundedServer(app, host="127.0.0.1", port=0, limits=limits)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started, 20)
        yield server, server.addresses()[0][1], app
    finally:
        app.free.set()
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


def opened(port: int, data: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=20)
    made.sendall(data)
    return made


def rest_of(connection: socket.socket) -> bytes:
    """Until its end."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            found += data
    return found


def is_answered(connection: socket.socket) -> bool:
    found = b""
    while not found.endswith(b"fine"):
        data = connection.recv(4096)
        if not data:
            return False
        found += data
    return found.startswith(b"HTTP/1.1 200 ")


def test_a_hundred_half_sent_headers_keep_nobody_out() -> None:
    with listening(ConnectionLimits(connections=20, per_client=20)) as (server, port, _):
        held = [opened(port, HALF) for _ in range(100)]
        began = time.perf_counter()
        assert httpx.get(f"http://127.0.0.1:{port}/").text == "fine"
        assert time.perf_counter() - began < 1
        assert server.crowd.count <= 20
        for one in held:
            one.close()
        wait_until(lambda: server.crowd.count == 0, 20)
        assert server.crowd.clients == {}


def test_headers_must_come_in_time_however_they_drip() -> None:
    with listening(SHORT) as (server, port, _):
        began = time.perf_counter()
        dripping, silent = opened(port, HALF), opened(port)
        replies: list[bytes] = []
        reader = threading.Thread(target=lambda: replies.append(rest_of(dripping)))
        reader.start()
        with contextlib.suppress(OSError):
            for _ in range(100):
                dripping.sendall(b"x")
                time.sleep(0.05)
        reader.join(20)
        assert rest_of(silent) == b""
        assert 0.4 < time.perf_counter() - began < 8
        head, _, body = replies[0].partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 408 ")
        assert b"application/problem+json" in head
        assert b"nosniff" in head
        assert b"took too long" in body
        wait_until(lambda: server.crowd.count == 0, 20)


def test_connections_are_kept_for_the_next_request_and_not_for_ever() -> None:
    with listening(SHORT) as (server, port, _):
        kept = opened(port)
        for _ in range(3):
            kept.sendall(GET)
            assert is_answered(kept)
        assert server.crowd.count == 1
        assert rest_of(kept) == b""
        wait_until(lambda: server.crowd.count == 0, 20)


def test_where_all_are_being_answered_one_more_is_refused() -> None:
    with listening(ConnectionLimits(connections=8, per_client=3)) as (server, port, app):
        asking = [opened(port, GET.replace(b"/ ", b"/slow ")) for _ in range(3)]
        wait_until(lambda: sum(not one.waits for one in server.crowd.clients.get("127.0.0.1", ())) == 3, 20)
        response = httpx.get(f"http://127.0.0.1:{port}/")
        assert "Too many connections" in check_problem(response, 503)["detail"]
        assert response.headers["retry-after"] == "1"
        app.free.set()
        assert all(map(is_answered, asking))
        assert httpx.get(f"http://127.0.0.1:{port}/").text == "fine"


def test_the_rest_of_a_refused_body_is_not_read_for_ever() -> None:
    with listening(SHORT) as (server, port, _):
        sending = opened(port, b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
        assert is_answered(sending)  # said before the body came
        began = time.perf_counter()
        with contextlib.suppress(OSError):
            for _ in range(200):
                sending.sendall(b"x")
                time.sleep(0.05)
        assert time.perf_counter() - began < 8
        wait_until(lambda: server.crowd.count == 0, 20)


def test_replies_that_nobody_reads_are_given_up_and_slow_readers_are_not() -> None:
    with listening(SHORT) as (server, port, _):
        deaf = opened(port, GET.replace(b"/ ", b"/large "))
        slow = opened(port, GET.replace(b"/ ", b"/large "))
        got = 0
        while got < 20_000_000:
            data = slow.recv(1 << 20)
            assert data, got
            got += len(data)
            time.sleep(0.03)
        wait_until(lambda: server.crowd.count <= 1, 20)
        slow.close()
        wait_until(lambda: server.crowd.count == 0, 20)
        assert len(rest_of(deaf)) < 20_000_000


def test_what_is_no_request_is_a_problem_and_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    broken = [b"\x16\x03\x01\x02\x00\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/1.1\r\nA: " + b"x" * 200_000]
    broken_body = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with listening(ConnectionLimits()) as (_, port, _app), caplog.at_level(logging.WARNING):
        for data in broken * 20:
            with contextlib.suppress(OSError):
                connection = opened(port)
                connection.sendall(data)
                assert b" 400 " in (rest_of(connection)[:20] or b" 400 ")
        for _ in range(20):
            connection = opened(port, broken_body)
            assert is_answered(connection)
            connection.sendall(b"not a length\r\n")
            assert rest_of(connection) == b""
        assert httpx.get(f"http://127.0.0.1:{port}/").text == "fine"
    assert len(caplog.text) < 2000
    assert "Traceback" not in caplog.text


def test_the_same_words_are_logged_once_a_minute() -> None:
    quiet, words = Quiet(), logging.LogRecord("a", logging.ERROR, "", 0, "No %s", ("room",), None)
    assert [quiet.filter(words) for _ in range(5)] == [True, False, False, False, False]
    quiet._said = {name: (at - 61, count) for name, (at, count) in quiet._said.items()}
    assert quiet.filter(words)
    assert words.getMessage() == "No room (4 more like it were not logged)"


def test_there_are_no_more_connections_than_files() -> None:
    import resource

    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, most))
        assert within_open_files(ConnectionLimits()).connections == 128
        assert within_open_files(ConnectionLimits(connections=50)).per_client == 50
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


def test_a_body_in_a_million_pieces_stops_nobody() -> None:
    """Twelve megabytes in chunks of a byte took 21 s, and everybody else waited up to 3.5 s meanwhile."""
    start = b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with listening(ConnectionLimits()) as (server, port, _):
        began, slowest = time.perf_counter(), 0.0
        sending = opened(port, start)

        def send() -> None:
            with contextlib.suppress(OSError):
                sending.sendall(b"1\r\na\r\n" * 1_000_000 + b"0\r\n\r\n")

        thread = threading.Thread(target=send)
        thread.start()
        while thread.is_alive():
            asked = time.perf_counter()
            assert httpx.get(f"http://127.0.0.1:{port}/").text == "fine"
            slowest = max(slowest, time.perf_counter() - asked)
        assert slowest < 1
        assert time.perf_counter() - began < 5
        wait_until(lambda: server.crowd.count == 0, 20)


def test_a_body_in_many_usual_pieces_is_read() -> None:
    start = b"POST /body HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    with listening(ConnectionLimits()) as (_, port, app):
        connection = opened(port, start + (b"80\r\n" + bytes(128) + b"\r\n") * 20_000 + b"0\r\n\r\n")
        assert is_answered(connection)
        assert app.read == 20_000 * 128


def test_bodies_that_do_not_come_keep_nobody_out() -> None:
    """One that comes is not ended for others; where all come, one more is refused."""
    head = b"POST /body HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    with listening(ConnectionLimits(connections=20, per_client=6)) as (server, port, _):
        stalled = [opened(port, head + b"x") for _ in range(5)]
        sending, ended, sent = opened(port, head), threading.Event(), 0

        def send() -> None:
            nonlocal sent
            while not ended.wait(0.1):
                sending.sendall(bytes(2000))
                sent += 2000

        thread = threading.Thread(target=send)
        thread.start()
        wait_until(lambda: server.crowd.count == 6, 20)
        assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 503  # they have just begun
        time.sleep(1.2)
        for _ in range(3):
            assert httpx.get(f"http://127.0.0.1:{port}/").text == "fine"
        ended.set()
        thread.join()
        sending.sendall(bytes(1_000_000 - sent))
        assert is_answered(sending)
        for one in stalled:
            one.close()


@pytest.mark.slow
@pytest.mark.parametrize("files", [256, 4096])
def test_a_thousand_half_open_connections(served_index: Path, files: int) -> None:
    """`/healthz` within a second, less than 1 MB of log; with few files to open and with many."""
    with served(served_index, "--read-only", files=files) as process:
        port = int(process.address.rsplit(":", 1)[1])
        held, slowest = [], 0.0
        for number in range(1000):
            with contextlib.suppress(OSError):
                held.append(opened(port, HALF))
            if number % 50 == 49:
                began = time.perf_counter()
                assert httpx.get(f"{process.address}/healthz", timeout=10).status_code == 200
                slowest = max(slowest, time.perf_counter() - began)
        until = time.monotonic() + 15
        while time.monotonic() < until:
            began = time.perf_counter()
            assert httpx.get(f"{process.address}/healthz", timeout=10).status_code == 200
            slowest = max(slowest, time.perf_counter() - began)
            time.sleep(0.5)
        assert process.stop() == 0
        logged = sum(map(len, process.said))
        print(
            f"{files} files, {len(held)} half-open: slowest /healthz {slowest:.3f} s, {logged:,} bytes of log"
        )
    assert slowest < 1
    assert logged < 1_000_000
