"""OpenTelemetry traces of requests, where OpenTelemetry's own environment variables ask for them.

`OTEL_EXPORTER_OTLP_ENDPOINT` (or `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`) says where to, `OTEL_TRACES_EXPORTER` may be
`otlp`, `console` or `none`; `OTEL_SERVICE_NAME`, samplers and headers are read by OpenTelemetry itself. Without
them nothing that could send is imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from contextvars import ContextVar, Token
from importlib.util import find_spec
from typing import Any

from starlette.types import Scope

from doubtless.gallery import Answer
from doubtless.version import __version__

log = logging.getLogger("doubtless.server")
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
EXPORTER, DISABLED = "OTEL_TRACES_EXPORTER", "OTEL_SDK_DISABLED"
EXPORTERS = ("otlp", "console", "none")
_CURRENT: ContextVar[Any] = ContextVar("doubtless_tracer", default=None)
"""The tracer of the request that is being answered."""


def wanted(environment: Mapping[str, str]) -> str | None:
    """Which exporter the environment asks for; None: no traces.

    >>> wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"})
    'otlp'
    >>> wanted({}) is wanted({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_TRACES_EXPORTER": "none"}) is None
    True
    """
    if environment.get(DISABLED, "").lower() == "true":
        return None
    exporter = environment.get(EXPORTER) or (
        "otlp" if any(environment.get(one) for one in ENDPOINTS) else "none"
    )
    if exporter not in EXPORTERS:
        log.warning("No traces are sent: %s may be %s, got %r.", EXPORTER, ", ".join(EXPORTERS), exporter)
        return None
    return None if exporter == "none" else exporter


class Traces:
    """Spans of requests."""

    def __init__(self, exporter: str) -> None:
        """exporter: "otlp" (HTTP, protobuf) or "console"."""
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        name = os.environ.get("OTEL_SERVICE_NAME") or "doubtless"
        self.provider = TracerProvider(
            resource=Resource.create({"service.name": name, "service.version": __version__})
        )
        self.provider.add_span_processor(BatchSpanProcessor(_exporter(exporter)))
        self.tracer = self.provider.get_tracer("doubtless", __version__)

    @classmethod
    def from_environment(cls) -> Traces | None:
        """What the environment asks for; a warning where that is not installed."""
        exporter = wanted(os.environ)
        if exporter is None:
            return None
        if not _installed(exporter):
            log.warning(
                "Traces are asked for, and not sent: install the extra, pip install 'doubtless[otel]'."
            )
            return None
        return cls(exporter)

    def begin(self, scope: Scope) -> RequestSpan:
        """The span of a request, a child of the caller's where its header names one."""
        return RequestSpan(self, scope)

    def close(self) -> None:
        """Sends what is left."""
        self.provider.shutdown()


class RequestSpan:
    """One request, from its header to the end of its reply."""

    def __init__(self, traces: Traces, scope: Scope) -> None:
        from opentelemetry import context, trace
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        named = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        above = TraceContextTextMapPropagator().extract(named)
        self.span = traces.tracer.start_span(scope["method"], context=above, kind=SpanKind.SERVER)
        self._context: Any = context.attach(trace.set_span_in_context(self.span, above))
        self._tracer: Token[Any] = _CURRENT.set(traces.tracer)

    @property
    def trace_id(self) -> str:
        """As headers and logs have it."""
        return f"{self.span.get_span_context().trace_id:032x}"

    def end(self, method: str, route: str, status: str) -> None:
        """Names it by its route: of these there are few."""
        from opentelemetry import context
        from opentelemetry.trace import StatusCode

        self.span.update_name(f"{method} {route}")
        self.span.set_attribute("http.request.method", method)
        self.span.set_attribute("http.route", route)
        if status.isdigit():
            self.span.set_attribute("http.response.status_code", int(status))
            if int(status) >= 500:
                self.span.set_status(StatusCode.ERROR)
        self.span.end()
        _CURRENT.reset(self._tracer)
        context.detach(self._context)


def step(name: str) -> contextlib.AbstractContextManager[Any]:
    """A part of the request that is being answered; nothing where no traces are wanted."""
    tracer = _CURRENT.get()
    return contextlib.nullcontext() if tracer is None else tracer.start_as_current_span(name)


def note(answer: Answer) -> None:
    """Writes decision and doubt to the span of the request."""
    if _CURRENT.get() is None:
        return
    from opentelemetry import trace

    span = trace.get_current_span()
    span.set_attribute("doubtless.decision", answer.decision)
    if answer.doubt is not None:
        span.set_attribute("doubtless.doubt", answer.doubt)


def _installed(exporter: str) -> bool:
    needed = ["opentelemetry", "opentelemetry.sdk"]
    try:
        if exporter == "otlp":
            needed.append("opentelemetry.exporter.otlp.proto.http")
        return all(find_spec(name) is not None for name in needed)
    except ModuleNotFoundError:
        return False


def _exporter(name: str) -> Any:
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()
