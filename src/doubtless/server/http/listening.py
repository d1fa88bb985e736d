"""Listening: an accept loop that rests when the machine has no more files to give, and an end that comes in time.

asyncio's own accepts up to 2,048 connections at once and, where the process may open no more files, logs as many
errors a second. `Listener` accepts one after the other, ends a waiting connection instead, and says so once a
minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.config import STARTUP_FAILURE

from doubtless.errors import InputError
from doubtless.server.http.connections import BoundedProtocol, ConnectionLimits, Crowd

log = logging.getLogger("doubtless.server")
OTHER_FILES = 128
"""Files that a process needs beside its connections: the index, its model, libraries."""
REST = 0.2
"""Seconds without accepting, where no file can be opened."""
FINISHING, LAST = 18.0, 24.0
"""Seconds after a signal: until when what was accepted is finished, and when the process ends whatever it does."""
SAME_WORDS = 60.0
"""Seconds in which the same words are logged once."""


class Listener:
    """Accepts connections on a bound socket; has what uvicorn wants of a server."""

    def __init__(self, bound: socket.socket, make: Callable[[], asyncio.Protocol], crowd: Crowd) -> None:
        self.sockets, self._make, self._crowd = (bound,), make, crowd
        self._task = asyncio.create_task(self._accept(bound))

    async def _accept(self, bound: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, _ = await loop.sock_accept(bound)
            except ConnectionAbortedError:
                continue
            except OSError as error:  # no more files or memory for now
                log.error("No connection can be accepted: %s", error.strerror)
                self._crowd.make_room()
                await asyncio.sleep(REST)
                continue
            try:
                await loop.connect_accepted_socket(self._make, connection)
            except Exception as error:  # one connection that broke is no reason to accept no others
                log.error("A connection broke before it began: %s", type(error).__name__)
                connection.close()

    def close(self) -> None:
        """Accepts no more."""
        self._task.cancel()
        for bound in self.sockets:
            bound.close()

    async def wait_closed(self) -> None:
        """Until nothing is accepted any more."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


class BoundedServer(uvicorn.Server):
    """uvicorn, with limits on connections; a signal ends it within `LAST` seconds."""

    def __init__(self, app: Any, *, host: str, port: int, limits: ConnectionLimits | None = None) -> None:
        limits = within_open_files(limits or ConnectionLimits())
        config = uvicorn.Config(
            app,
            host=host,
            port=port,
            http=BoundedProtocol,
            ws="none",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=max(1, int(limits.idle) + 1),  # `BoundedProtocol` is there first
            timeout_graceful_shutdown=int(FINISHING),
        )
        super().__init__(config)
        self.crowd = self.server_state = Crowd(limits)
        for name in ("uvicorn.error", "asyncio", log.name):
            words = logging.getLogger(name)
            if not any(isinstance(one, Quiet) for one in words.filters):
                words.addFilter(Quiet())

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Binds and listens."""
        await self.lifespan.startup()
        if self.lifespan.should_exit:
            raise SystemExit(STARTUP_FAILURE)
        try:
            bound = await _bound(self.config.host, self.config.port, self.config.backlog)
        except OSError as error:
            await self.lifespan.shutdown()
            raise InputError(
                f"Nothing can listen on {self.config.host}, port {self.config.port}: {error.strerror or error}."
            ) from None
        self.servers = [Listener(one, self._protocol, self.crowd) for one in bound]  # type: ignore[misc]
        self.started = True

    def _protocol(self) -> asyncio.Protocol:
        return BoundedProtocol(self.config, self.server_state, self.lifespan.state)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begins to stop. The index survives a kill, so that a thread that does not end need not be waited for."""
        if not self.should_exit:
            last = threading.Timer(LAST, _end)
            last.daemon = True
            last.start()
        super().handle_exit(sig, frame)

    def addresses(self) -> list[tuple[str, int]]:
        """Where it listens: names and ports."""
        return [bound.getsockname()[:2] for server in self.servers for bound in server.sockets]


class Quiet(logging.Filter):
    """Lets the same words through once a minute: what strangers can cause must not fill a disk."""

    def __init__(self) -> None:
        super().__init__()
        self._said: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is logged; it says how many were not."""
        words, now = str(record.msg).partition("\n")[0], time.monotonic()
        at, left_out = self._said.get(words, (-SAME_WORDS, 0))
        if now - at < SAME_WORDS:
            self._said[words] = (at, left_out + 1)
            return False
        if len(self._said) >= 1000:
            self._said.clear()
        self._said[words] = (now, 0)
        if left_out:
            record.msg, record.args = f"{record.getMessage()} ({left_out:,} more like it were not logged)", ()
        return True


def within_open_files(limits: ConnectionLimits) -> ConnectionLimits:
    """No more connections than the process may open files for."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return limits
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if allowed == resource.RLIM_INFINITY:
        return limits
    connections = min(limits.connections, max(8, allowed - OTHER_FILES, allowed // 4))
    return replace(limits, connections=connections, per_client=min(limits.per_client, connections))


async def _bound(host: str, port: int, backlog: int) -> list[socket.socket]:
    """Sockets that listen; asyncio binds them, for every address that a name has."""
    loop = asyncio.get_running_loop()
    made = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    found = [one.dup() for one in made.sockets]
    made.close()
    for one in found:
        one.setblocking(False)
        one.listen(backlog)
    return found


def _end() -> None:
    log.error("What was still being done did not end in time; what was acknowledged is on the disk.")
    os._exit(128 + signal.SIGTERM)
