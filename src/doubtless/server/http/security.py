"""Who may ask, where from and how much: binding, a token, hosts, origins, the size and the time of a body.

Without a token only this machine is served, and then a foreign web page, open in the same browser, must not
be able to ask: requests must name this host (against DNS rebinding), and what changes anything must not come from
another origin. No CORS header is ever sent.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import ipaddress
import time
from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from doubtless.errors import InputError
from doubtless.server.http import problems

OPEN = frozenset({"/healthz"})
"""Answered without a token."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
BODY_SECONDS = 60.0
"""A body that takes longer to arrive is not waited for."""
INSIDE = "Something went wrong inside; it has been logged."
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "SAMEORIGIN",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
}


class Guard:
    """ASGI middleware around everything that is served."""

    def __init__(
        self, app: ASGIApp, *, token: str | None, hosts: Collection[str] | None, upload: int
    ) -> None:
        """hosts: names under which this server may be asked; None: any."""
        self.app, self.upload = app, upload
        self.token = None if token is None else token.encode()
        self.hosts = None if hosts is None else frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers what is refused, and hands on the rest."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if scope["type"] == "websocket":
            if refusal is not None:
                await send({"type": "websocket.close", "code": 1008})
                return
            await self.app(scope, receive, send)
            return
        protected = Protected(send)
        if refusal is not None:
            status, detail, headers = refusal
            await problems.response(status, detail, headers=headers)(scope, receive, protected)
            return
        try:
            await self.app(scope, _limited(receive, self.upload), protected)
        except Exception as error:
            problems.log.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
            if protected.started:
                raise  # the connection breaks off: what was sent is not whole
            await problems.response(500, INSIDE)(scope, receive, protected)

    def _refusal(self, scope: Scope) -> tuple[int, str, dict[str, str]] | None:
        headers = Headers(scope=scope)
        if self.hosts is not None and _host_name(headers.get("host", "")) not in self.hosts:
            return 421, "This server is not known under the host that was asked for.", {}
        if scope.get("method", "POST") not in SAFE and not _same_origin(headers):
            return 403, "Requests from pages of another origin are not answered.", {}
        if self.token is not None and scope["path"] not in OPEN and not self._knows(headers):
            scheme = "Bearer" if scope["path"].startswith("/v1/") else 'Basic realm="doubtless"'
            return 401, "A token is needed: Authorization: Bearer TOKEN.", {"WWW-Authenticate": scheme}
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            return 400, "Content-Length is no number.", {}
        if int(length[:20]) > self.upload:
            return 413, f"The body has more than the {self.upload:,} bytes that are accepted.", {}
        return None

    def _knows(self, headers: Headers) -> bool:
        assert self.token is not None
        scheme, _, given = headers.get("authorization", "").partition(" ")
        secret = given.strip().encode(errors="replace")
        if scheme.lower() == "basic":  # what a browser sends: any user name, the token as password
            try:
                secret = base64.b64decode(secret, validate=True).partition(b":")[2]
            except (binascii.Error, ValueError):
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(secret, self.token)


def _host_name(host: str) -> str:
    """Without the port.

    >>> _host_name("localhost:8000"), _host_name("[::1]:8000")
    ('localhost', '::1')
    """
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _same_origin(headers: Headers) -> bool:
    if headers.get("sec-fetch-site", "none") in ("cross-site", "same-site"):
        return False
    origin = headers.get("origin")
    if origin is None:
        return True
    try:
        return urlsplit(origin).netloc.lower() == headers.get("host", "").lower()
    except ValueError:
        return False


class Protected:
    """Sends responses with `HEADERS`."""

    def __init__(self, send: Send) -> None:
        self.send, self.started = send, False

    async def __call__(self, message: Message) -> None:
        """Sends a message, the first one with the headers."""
        if message["type"] == "http.response.start":
            self.started = True
            message["headers"] = list(message.get("headers", ()))
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await self.send(message)


def _limited(receive: Receive, largest: int) -> Receive:
    """A body is counted while it arrives, whatever was said of its length, and must arrive in time."""
    until, seen, whole = time.monotonic() + BODY_SECONDS, 0, False

    async def counted() -> Message:
        nonlocal seen, whole
        if whole:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), max(0.0, until - time.monotonic()))
        except TimeoutError:
            raise HTTPException(408, "The body took too long to arrive.") from None
        seen += len(message.get("body", b""))
        whole = not message.get("more_body", False)
        if seen > largest:
            raise HTTPException(413, f"The body has more than the {largest:,} bytes that are accepted.")
        return message

    return counted


LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
"""Names of this machine that only it can use."""
SHORTEST = 16


def is_loopback(host: str) -> bool:
    """
    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_binding(host: str, token: str | None) -> None:
    """Refuses to serve other machines without a token, and tokens that can be guessed."""
    if token is None and not is_loopback(host):
        raise InputError(
            f"Serving on {host} lets other machines ask; set the environment variable DOUBTLESS_TOKEN to a secret, "
            "or stay on 127.0.0.1."
        )
    if token is not None and (len(token) < SHORTEST or not token.isascii() or not token.isprintable()):
        raise InputError(
            f"DOUBTLESS_TOKEN must be at least {SHORTEST} printable ASCII characters; make one with "
            "`python -c 'import secrets; print(secrets.token_urlsafe())'`."
        )
