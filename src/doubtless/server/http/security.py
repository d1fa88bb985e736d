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
from urllib.parse import quote, urlsplit

import anyio
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from doubtless.errors import InputError
from doubtless.server.http import problems
from doubtless.server.http.incoming import TOGETHER, Held, Incoming
from doubtless.server.http.rights import MAY_WRITE

OPEN = frozenset({"/healthz", "/readyz"})
"""Answered without a token."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
STOPPED = "The server is being stopped and could not finish this."
INSIDE = "Something went wrong inside; it has been logged."
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=(), display-capture=(), payment=(), usb=()",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' blob: data:; "
        "media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
"""Of every reply: a browser runs and shows what this server sends, asks nobody else, and frames none of it."""
SLOWER = 0.25
"""Seconds between two replies to wrong tokens."""
LONGEST_WAIT = 5.0


class Guard:
    """ASGI middleware around everything that is served."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        token: str | None,
        hosts: Collection[str] | None,
        upload: int,
        read_token: str | None = None,
    ) -> None:
        """hosts: names under which this server may be asked; None: any.

        read_token: what callers must know who may ask and look, and change nothing.
        """
        self.app, self.upload = app, upload
        self.token, self.read_token = (None if one is None else one.encode() for one in (token, read_token))
        self.hosts = None if hosts is None else frozenset(hosts)
        self.held = Held(most=max(TOGETHER, 4 * upload))
        self._next_wrong = 0.0  # when the next wrong token is answered

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
            if status == 401 and "authorization" in Headers(scope=scope):
                await self._slow_down()
            await problems.response(status, detail, headers=headers)(scope, receive, protected)
            return
        incoming = Incoming(receive, largest=self.upload, held=self.held)
        try:
            await self._answer(scope, incoming, protected)
        except ClientDisconnect:
            pass  # nobody is there to be told
        except asyncio.CancelledError:
            if protected.started:
                raise
            await problems.response(503, STOPPED)(scope, receive, protected)
        except Exception as error:
            problems.log.error("%s %s failed", scope["method"], quote(scope["path"]), exc_info=error)
            if protected.started:
                raise  # the connection breaks off: what was sent is not whole
            await problems.response(500, INSIDE)(scope, receive, protected)
        finally:
            incoming.release()

    async def _answer(self, scope: Scope, incoming: Incoming, protected: Protected) -> None:
        """Hands a request on until its client leaves: then what waits for its turn is not done.

        What a thread has begun is finished, as a scope of anyio wants it; else those who leave would fill the
        machine with threads that nobody counts.
        """
        with anyio.CancelScope() as wanted:

            async def watch() -> None:
                await incoming.left()
                if not protected.finished:
                    wanted.cancel()

            await incoming.begin(scope)
            watching = asyncio.create_task(watch())
            try:
                await self.app(scope, incoming, protected)
            finally:
                watching.cancel()

    def _refusal(self, scope: Scope) -> tuple[int, str, dict[str, str]] | None:
        headers = Headers(scope=scope)
        if self.hosts is not None and _host_name(headers.get("host", "")) not in self.hosts:
            return 421, "This server is not known under the host that was asked for.", {}
        if scope.get("method", "POST") not in SAFE and not _same_origin(headers):
            return 403, "Requests from pages of another origin are not answered.", {}
        if not self._admits(scope, headers):
            scheme = "Bearer" if scope["path"].startswith("/v1/") else 'Basic realm="doubtless"'
            return 401, "A token is needed: Authorization: Bearer TOKEN.", {"WWW-Authenticate": scheme}
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            return 400, "Content-Length is no number.", {}
        if int(length[:20]) > self.upload:
            return 413, f"The body has more than the {self.upload:,} bytes that are accepted.", {}
        return None

    def _admits(self, scope: Scope, headers: Headers) -> bool:
        """Whether whoever asks may, and says in the scope whether to write as well."""
        if (self.token is None and self.read_token is None) or scope["path"] in OPEN:
            return True
        secret = _secret(headers)
        if secret is None:
            return False
        writes, reads = (
            one is not None and hmac.compare_digest(secret, one) for one in (self.token, self.read_token)
        )
        scope[MAY_WRITE] = writes
        return writes or reads

    async def _slow_down(self) -> None:
        """Answers wrong tokens one after the other; nobody else waits."""
        now = time.monotonic()
        self._next_wrong = min(max(now, self._next_wrong) + SLOWER, now + LONGEST_WAIT)
        await asyncio.sleep(self._next_wrong - now)


def _secret(headers: Headers) -> bytes | None:
    """What a caller says to know; None where it says nothing that can be read."""
    scheme, _, given = headers.get("authorization", "").partition(" ")
    secret = given.strip().encode(errors="replace")
    if scheme.lower() == "basic":  # what a browser sends: any user name, the token as password
        try:
            return base64.b64decode(secret, validate=True).partition(b":")[2]
        except (binascii.Error, ValueError):
            return None
    return secret if scheme.lower() == "bearer" else None


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
    site = headers.get("sec-fetch-site", "none")
    if site in ("cross-site", "same-site"):
        return False
    if site == "same-origin":  # said by the browser, whatever a policy on referrers made of the origin
        return True
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
        self.send, self.started, self.finished = send, False, False

    async def __call__(self, message: Message) -> None:
        """Sends a message, the first one with the headers."""
        if message["type"] == "http.response.start":
            self.started = True
            message["headers"] = list(message.get("headers", ()))
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        elif message["type"] == "http.response.body":
            self.finished = not message.get("more_body", False)
        await self.send(message)


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


def check_binding(host: str, token: str | None, read_token: str | None = None) -> None:
    """Refuses to serve other machines without a token, and tokens that can be guessed."""
    if token is None and read_token is None and not is_loopback(host):
        raise InputError(
            f"Serving on {host} lets other machines ask; set the environment variable DOUBTLESS_TOKEN to a secret, "
            "or stay on 127.0.0.1."
        )
    for name, value in (("DOUBTLESS_TOKEN", token), ("DOUBTLESS_READ_TOKEN", read_token)):
        if value is not None and (len(value) < SHORTEST or not value.isascii() or not value.isprintable()):
            raise InputError(
                f"{name} must be at least {SHORTEST} printable ASCII characters; make one with "
                "`python -c 'import secrets; print(secrets.token_urlsafe())'`."
            )
    if token is not None and token == read_token:
        raise InputError("DOUBTLESS_TOKEN and DOUBTLESS_READ_TOKEN must differ: one of them may not write.")
