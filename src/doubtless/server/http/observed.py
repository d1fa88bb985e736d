"""`Observed`: every request is counted, timed and, where wanted, traced and logged; it changes none of them."""

from __future__ import annotations

import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from doubtless.server.http.measures import Measures
from doubtless.server.http.traces import Traces

log = logging.getLogger("doubtless.access")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NO_ROUTE = "none"
"""Of requests that were refused before it was looked where they go, or go nowhere."""
LEFT = "left"
"""Status of requests whose client left before a reply began."""


class Observed:
    """ASGI middleware around everything else, refusals included."""

    def __init__(self, app: ASGIApp, *, measures: Measures, traces: Traces | None = None) -> None:
        self.app, self.measures, self.traces = app, measures, traces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hands a request on and notes how it went."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), LEFT

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        method = scope["method"] if scope["method"] in METHODS else "other"
        self.measures.under_way.inc()
        span = None if self.traces is None else self.traces.begin(scope)
        try:
            await self.app(scope, receive, noting)
        finally:
            self.measures.under_way.dec()
            seconds, route = time.perf_counter() - began, route_of(scope)
            self.measures.answered(method, route, status, seconds)
            if span is not None:
                span.end(method, route, status)
            if log.isEnabledFor(logging.INFO):
                _log(scope, method, route, status, seconds, None if span is None else span.trace_id)


def route_of(scope: Scope) -> str:
    """The address with names in place of ids: of these there are few.

    >>> route_of({"path": "/what/strangers/send"})
    'none'
    """
    route = scope.get("route")
    return str(getattr(route, "path_format", None) or getattr(route, "path", None) or NO_ROUTE)


def _log(scope: Scope, method: str, route: str, status: str, seconds: float, trace: str | None) -> None:
    client = scope.get("client")
    told = {
        "method": method,
        "route": route,
        "status": int(status) if status.isdigit() else status,
        "seconds": round(seconds, 6),
        "client": client[0] if client else None,
        "trace_id": trace,
    }
    log.info("%s %s %s %.1f ms", method, route, status, 1000 * seconds, extra={"told": told})
