"""A request while it arrives, and until its client leaves: its size, its time, what all of them hold together."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import Message, Receive, Scope

BODY_SECONDS = 60.0
"""A body that takes longer to arrive is not waited for."""
TOGETHER = 256 << 20
"""Bytes that the bodies of all requests under way may have."""


@dataclass
class Held:
    """Bytes of bodies whose requests are under way, and how many there may be."""

    most: int = TOGETHER
    bytes: int = 0


class Incoming:
    """Receives a request: counts its body, whatever was said of its length, and wants it in time."""

    def __init__(self, receive: Receive, *, largest: int, held: Held) -> None:
        self._receive, self._largest, self._held = receive, largest, held
        self._until, self._seen = time.monotonic() + BODY_SECONDS, 0
        self._first: Message | None = None
        self._whole = asyncio.Event()

    async def __call__(self) -> Message:
        """The next part of the body, or that the client has left."""
        if self._first is not None:
            first, self._first = self._first, None
            return first
        if self._whole.is_set():
            return await self._receive()
        try:
            message = await asyncio.wait_for(self._receive(), max(0.0, self._until - time.monotonic()))
        except TimeoutError:
            raise HTTPException(408, "The body took too long to arrive.") from None
        self._count(len(message.get("body", b"")))
        if not message.get("more_body", False):
            self._whole.set()
        return message

    async def begin(self, scope: Scope) -> None:
        """Takes what says that there is no body, where there is none: a client that leaves is seen from then on."""
        headers = Headers(scope=scope)
        if headers.get("content-length", "0") == "0" and "transfer-encoding" not in headers:
            self._first = await self()

    async def left(self) -> None:
        """Until the client has left, or has had its reply; looked at when the whole request is here."""
        await self._whole.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def release(self) -> None:
        """The request is over."""
        self._held.bytes -= self._seen
        self._seen = 0

    def _count(self, more: int) -> None:
        self._seen += more
        self._held.bytes += more
        if self._seen > self._largest:
            raise HTTPException(413, f"The body has more than the {self._largest:,} bytes that are accepted.")
        if self._held.bytes > self._held.most:
            raise HTTPException(503, "Too much is being sent at once; try again later.", {"Retry-After": "1"})
