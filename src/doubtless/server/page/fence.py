"""`Fence`: keeps Gradio to what the page needs, and browsers to this server.

Gradio brings routes that take files, hand files out and fetch from other machines; the page uses none of them and
none is answered. A content security policy forbids the browser whatever this server does not serve itself.

Every open page holds streams that never end by themselves. A server that waits for them would not stop while a page
is open anywhere: `Streams.stop` ends them.
"""

from __future__ import annotations

import asyncio

from starlette.datastructures import MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

API = "/gradio_api/"
STREAMS = ("/gradio_api/queue/data", "/gradio_api/heartbeat/")
NEEDED = ("/gradio_api/queue/join", *STREAMS)
"""Of Gradio's own interface, what the page asks for."""
CLOSED = ("/login", "/logout", "/monitoring", "/svelte/", "/pwa_icon", "/config")
POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "  # Gradio's templates
    "style-src 'self' 'unsafe-inline'; object-src 'none'; base-uri 'self'; form-action 'self'; "
    "frame-ancestors 'self'"
)


class Streams:
    """The streams of open pages."""

    def __init__(self) -> None:
        self._open: set[asyncio.Task[None]] = set()
        self._stopped = False

    def stop(self) -> None:
        """Ends all of them, and those still to come; called in the server's loop before it waits for requests."""
        self._stopped = True
        for task in self._open:
            task.cancel()

    async def run(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """One stream, until it ends or is ended."""
        began = ended = False

        async def noticed(message: Message) -> None:
            nonlocal began, ended
            began, ended = (
                True,
                message["type"] == "http.response.body" and not message.get("more_body", False),
            )
            await send(message)

        async def stream() -> None:
            await app(scope, receive, noticed)

        task = asyncio.create_task(stream())
        self._open.add(task)
        try:
            if self._stopped:
                task.cancel()
            await task
        except asyncio.CancelledError:
            if not self._stopped:
                raise
            if not began:
                await PlainTextResponse("Stopped.", status_code=503)(scope, receive, send)
            elif not ended:  # what was begun is ended properly
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._open.discard(task)


class Fence:
    """ASGI middleware around an app with the page in it."""

    def __init__(self, app: ASGIApp, *, streams: Streams) -> None:
        self.app, self.streams = app, streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hides what of the page's own API nobody needs, and keeps an eye on its streams."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        path = scope["path"]
        if (path.startswith(API) and not path.startswith(NEEDED)) or path.startswith(CLOSED):
            await PlainTextResponse("Not found.", status_code=404)(scope, receive, send)
        elif path.startswith(STREAMS):
            await self.streams.run(self.app, scope, receive, send)
        else:
            await self.app(scope, receive, _fenced(send) if path == "/" else send)


def _fenced(send: Send) -> Send:
    async def fenced(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).setdefault("Content-Security-Policy", POLICY)
        await send(message)

    return fenced
