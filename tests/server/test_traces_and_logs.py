"""A server as a process, with a collector of OpenTelemetry beside it, and its logs as JSON."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from doubtless.cli import main
from doubtless.server.http.traces import wanted
from tests.server.asking import served

pytest.importorskip("opentelemetry.sdk", reason="needs the extra otel")
CALLER = "0af7651916cd43dd8448eb211c80319c"
ABOVE = "b7ad6b7169203331"


@contextmanager
def collector() -> Iterator[tuple[str, list[bytes]]]:
    """Where spans are sent to, and what was."""
    got: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                import gzip

                body = gzip.decompress(body)
            got.append(body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", got
    server.shutdown()
    server.server_close()


def test_traces_go_where_the_environment_says_and_logs_are_json(served_index: Path, picture: bytes) -> None:
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    options = ["--read-only", "--log-format", "json", "--access-log"]
    with collector() as (address, got):
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_SERVICE_NAME": "shop"}
        with (
            served(served_index, *options, environment=environment) as process,
            httpx.Client(base_url=process.address) as client,
        ):
            header = {"traceparent": f"00-{CALLER}-{ABOVE}-01"}
            told = client.post("/v1/search", files={"image": picture}, headers=header).json()
            assert client.get("/v1/items/secret-id/about").status_code == 404
            assert process.stop() == 0
    spans, services = [], set()
    for body in got:
        for one in ExportTraceServiceRequest.FromString(body).resource_spans:
            named = {kept.key: kept.value.string_value for kept in one.resource.attributes}
            services.add(named["service.name"])
            spans += [span for scoped in one.scope_spans for span in scoped.spans]
    assert services == {"shop"}
    by_name = {span.name: span for span in spans}
    search = by_name["POST /v1/search"]
    assert (search.trace_id.hex(), search.parent_span_id.hex()) == (CALLER, ABOVE)
    given = {kept.key: kept.value for kept in search.attributes}
    assert given["doubtless.decision"].string_value == told["decision"]
    assert given["doubtless.doubt"].double_value == pytest.approx(told["doubt"])
    assert given["http.response.status_code"].int_value == 200
    for part in ("decode", "answer"):
        assert by_name[part].parent_span_id == search.span_id
        assert search.start_time_unix_nano <= by_name[part].start_time_unix_nano
    assert "GET /v1/items/{id}/about" in by_name
    lines = [json.loads(line) for line in process.said]  # every line is JSON
    assert all({"time", "level", "logger", "message"} <= set(line) for line in lines)
    access = [line for line in lines if line["logger"] == "doubtless.access"]
    assert [(line["route"], line["status"]) for line in access] == [
        ("/v1/search", 200),
        ("/v1/items/{id}/about", 404),
    ]
    assert access[0]["trace_id"] == CALLER
    assert access[0]["client"] == "127.0.0.1"
    assert "secret-id" not in "".join(process.said)


def test_without_the_variable_nothing_that_sends_is_imported() -> None:
    """FastAPI itself imports OpenTelemetry's API where that is installed."""
    code = (
        "import sys, doubtless.server.http.app\n"
        "from doubtless.server.http.traces import Traces, step\n"
        "assert Traces.from_environment() is None\n"
        "with step('decode'): pass\n"
        "print(*sorted(name for name in sys.modules if name.startswith(('opentelemetry.sdk', "
        "'opentelemetry.exporter'))))"
    )
    environment = {name: kept for name, kept in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_what_the_variables_ask_for(caplog: pytest.LogCaptureFixture) -> None:
    endpoint = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}
    assert wanted(endpoint) == "otlp"
    assert wanted({"OTEL_TRACES_EXPORTER": "console"}) == "console"
    assert wanted({**endpoint, "OTEL_TRACES_EXPORTER": "none"}) is None
    assert wanted({**endpoint, "OTEL_SDK_DISABLED": "true"}) is None
    assert wanted({}) is None
    with caplog.at_level(logging.WARNING):
        assert wanted({"OTEL_TRACES_EXPORTER": "zipkin"}) is None
    assert "may be otlp, console, none" in caplog.text


def test_another_form_of_logs_is_refused(
    served_index: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["doubtless", "serve", str(served_index), "--log-format", "xml"])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert "text or json, got 'xml'" in capsys.readouterr().err
