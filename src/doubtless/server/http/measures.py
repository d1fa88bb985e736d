"""`/metrics`: what a server does and what became of its promise, for Prometheus.

Requests, latency, queue and batches tell how it runs; decisions, doubt, drift, change and the promise tell whether
its answers can still be relied on. Labels have few values each, whatever strangers send.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from starlette.responses import PlainTextResponse, Response

from doubtless.gallery import Answer
from doubtless.gallery.answer import DECISIONS
from doubtless.server.http import problems
from doubtless.server.service.service import Service
from doubtless.version import __version__

log = logging.getLogger("doubtless.server")
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
QUERIES = (1, 2, 4, 8, 16, 32, 64, 128)
DOUBTS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
STANDINGS = ("holds", "no longer holds", "too little was said")
"""Of a promise, as `Watch` has them."""
FRESH = 5.0
"""Seconds for which what was seen of the gallery is told again: it takes a look into its database."""


class Measures:
    """Counts what a service does; everything may be called from any thread."""

    def __init__(self, service: Service) -> None:
        """Hears of batches and answers from now on."""
        own: dict[str, Any] = {"registry": CollectorRegistry(), "namespace": "doubtless"}
        self.registry: CollectorRegistry = own["registry"]
        self.requests = Counter(
            "requests", "Requests that ended, by what they got.", ["method", "route", "status"], **own
        )
        self.seconds = Histogram(
            "request_seconds",
            "From a request's header to the end of its reply.",
            ["route"],
            buckets=SECONDS,
            **own,
        )
        self.under_way = Gauge("requests_under_way", "Requests that are being answered.", **own)
        waiting = Gauge("queue_waiting", "Queries that wait for the model.", **own)
        waiting.set_function(lambda: service.batcher.waiting)
        decoding = Gauge("decoding", "Uploads that are being decoded, or wait for that.", **own)
        decoding.set_function(lambda: 0 if service.decoder is None else service.decoder.pending)
        self.batch = Histogram("batch_queries", "Queries of one call of the model.", buckets=QUERIES, **own)
        self.batch_seconds = Histogram(
            "batch_seconds", "To embed a batch and to answer it.", buckets=SECONDS, **own
        )
        self.answers = Counter("answers", "Answers, by their decision.", ["decision"], **own)
        for decision in DECISIONS:  # told as 0 before the first: a rate of it is right from the start
            self.answers.labels(decision)
        self.doubt = Histogram("doubt", "Doubt of answers, where it was calibrated.", buckets=DOUBTS, **own)
        self.registry.register(GalleryState(service))
        ProcessCollector(registry=self.registry)
        service.batcher.worked, service.engine.told = self.worked, self.told

    def worked(self, queries: int, seconds: float) -> None:
        """A batch is done."""
        self.batch.observe(queries)
        self.batch_seconds.observe(seconds)

    def told(self, answer: Answer) -> None:
        """An answer was given."""
        self.answers.labels(answer.decision).inc()
        if answer.doubt is not None:
            self.doubt.observe(answer.doubt)

    def answered(self, method: str, route: str, status: str, seconds: float) -> None:
        """A request has ended."""
        self.requests.labels(method, route, status).inc()
        self.seconds.labels(route).observe(seconds)

    def text(self) -> bytes:
        """Everything, in Prometheus's text format."""
        return generate_latest(self.registry)


class GalleryState:
    """What is asked of the gallery when somebody looks: items, drift, change, promise."""

    def __init__(self, service: Service) -> None:
        self._service, self._lock = service, threading.Lock()
        self._seen: tuple[float, list[Any]] = (-FRESH, [])

    def describe(self) -> list[Any]:
        """Nothing: names are known when they are looked at, and a gallery is not looked at before."""
        return []

    def collect(self) -> list[Any]:
        """The families, a few seconds old at most; where the gallery cannot be read they say that alone."""
        with self._lock:
            at, found = self._seen
            if time.monotonic() - at >= FRESH:
                try:
                    found = list(families(self._service))
                except Exception as error:
                    log.error("/metrics cannot look at the gallery.", exc_info=error)
                    found = [_gauge("readable", "Whether the gallery can be looked at.", 0)]
                self._seen = time.monotonic(), found
            return found


def families(service: Service) -> Iterator[Any]:
    """What is known of the gallery now; what is not known is not told."""
    status, drift = service.gallery.status(), service.drift
    method = "" if service.model is None else service.model.method.name
    info = {"version": __version__, "method": method, "fingerprint": status.get("model") or ""}
    yield InfoMetricFamily("doubtless", "What is served.", value=info)
    yield _gauge("readable", "Whether the gallery can be looked at.", 1)
    yield _gauge("items", "Items of the gallery.", status["items"])
    yield _gauge("labels", "Labels that items carry.", status["labels"])
    yield _gauge("calibrated", "Whether probabilities are calibrated.", status["calibrated"])
    if status["change"] is not None:
        share = status["change"]["share"]
        yield _gauge("change_share", "Share of the items that came or went since the calibration.", share)
    if drift is not None:
        state = drift.state
        yield _gauge(
            "drift_alarm", "Whether recent queries are unlike those of the calibration.", state.alarm
        )
        yield _gauge("drift_p_value", "Of the last look at recent queries.", state.p_value)
        yield _gauge("drift_above_share", "Recent queries above the calibration's 95 %.", state.above)
    yield from _of_promise(status)


def _of_promise(status: dict[str, Any]) -> Iterator[Any]:
    promise, watch = status["promise"], status["watch"]
    yield _gauge("promise_in_force", "Whether something is promised.", promise is not None)
    yield _gauge("promise_withdrawn", "Whether a promise was withdrawn.", bool(status["withdrawn"]))
    if promise is not None:
        yield _gauge("promise_met", "Whether the target is promised.", promise["met"])
        yield _gauge("promise_target_error", "Share of wrong answers asked for.", promise["target_error"])
        yield _gauge("promise_error_bound", "Share of wrong answers promised, at most.", promise["bound"])
        yield _gauge("promise_coverage", "Share of known queries that are answered.", promise["coverage"])
    standing = GaugeMetricFamily(
        "doubtless_promise_standing", "What people's judgements say of the promise.", labels=["standing"]
    )
    for name in STANDINGS:
        standing.add_metric([name], float(watch["standing"] == name))
    yield standing
    yield _gauge("judged_answers", "Answers that were drawn and judged under this promise.", watch["judged"])
    yield _gauge("judged_wrong", "Of these, wrong ones.", watch["wrong"])


def _gauge(name: str, meaning: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"doubtless_{name}", meaning, value=float(value))


def build(measures: Measures) -> APIRouter:
    """The route."""
    router = APIRouter()

    @router.get(
        "/metrics",
        summary="For Prometheus",
        tags=["about"],
        response_class=PlainTextResponse,
        responses=problems.described(400, 401, 421, 500),
    )
    def metrics() -> Response:
        """Requests, latency, queue, batches, decisions, doubt, drift, change and the state of the promise."""
        return Response(measures.text(), media_type=CONTENT_TYPE_LATEST)

    return router
