"""`/metrics`, read by Prometheus's own parser: everything that happened is counted, and nothing else."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from doubtless.server.http import measures as module
from doubtless.server.service.service import Service
from tests.server.asking import asked, check_problem, send

TOKEN, READ = "a-token-that-nobody-guesses", "another-that-may-only-read"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples_of(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float:
    return samples[f"doubtless_{name}", frozenset(labels.items())]


def test_requests_decisions_doubts_and_batches_are_counted(service: Service, picture: bytes) -> None:
    async def talk(client: httpx.AsyncClient) -> tuple[list[dict[str, Any]], str, str]:
        told = [(await client.post("/v1/search", files={"image": picture})).json() for _ in range(3)]
        trial = await client.post("/v1/search", files={"image": picture}, data={"trial": "true"})
        assert trial.status_code == 200
        both = [("image", ("a", picture)), ("image", ("b", picture))]
        told.append((await client.post("/v1/together", files=both)).json())
        assert (await client.post("/v1/search", files={"image": b"no picture"})).status_code == 415
        for number in range(5):
            assert (await client.get(f"/v1/items/nobody-{number}/about")).status_code == 404
            assert (await client.request("BREW", f"/pot/{number}")).status_code == 404
        found = await client.get("/metrics")
        assert found.headers["content-type"].startswith("text/plain")
        return told, found.text, (await client.get("/metrics")).text

    told, text, again = asked(service, talk)
    found = samples_of(text)
    route: dict[str, str] = {"route": "/v1/search"}
    assert value(found, "requests_total", method="POST", status="200", **route) == 4
    assert value(found, "requests_total", method="POST", status="415", **route) == 1
    assert value(found, "requests_total", method="GET", status="404", route="/v1/items/{id}/about") == 5
    assert value(found, "requests_total", method="other", status="404", route="none") == 5
    assert value(found, "request_seconds_count", **route) == 5
    assert 0 < value(found, "request_seconds_sum", **route) < 60
    assert value(found, "request_seconds_bucket", le="+Inf", **route) == 5
    assert value(found, "requests_under_way") == 1  # this one
    for decision in ("answer", "abstain", "not-in-gallery"):  # the trial does not count
        expected = sum(one["decision"] == decision for one in told)
        assert value(found, "answers_total", decision=decision) == expected
    assert value(found, "doubt_count") == 4
    assert value(found, "doubt_sum") == pytest.approx(sum(one["doubt"] for one in told))
    assert value(found, "batch_queries_sum") == service.batcher.items == 4
    assert value(found, "batch_seconds_count") == service.batcher.batches
    assert value(found, "queue_waiting") == value(found, "decoding") == 0
    assert found["process_resident_memory_bytes", frozenset()] > 1e7
    assert value(samples_of(again), "requests_total", method="GET", status="200", route="/metrics") == 1


def test_promise_drift_and_change_are_told(
    service: Service, picture: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FRESH", 0.0)
    status, promise = service.gallery.status(), service.gallery.judge_of().promise()
    assert promise is not None
    found = samples_of(send(service, "GET", "/metrics").text)
    assert value(found, "items") == 120
    assert value(found, "labels") == 6
    assert value(found, "promise_in_force") == value(found, "calibrated") == 1
    assert value(found, "promise_withdrawn") == value(found, "drift_alarm") == 0
    assert value(found, "promise_target_error") == 0.3
    assert value(found, "promise_error_bound") == promise["bound"]
    assert value(found, "promise_met") == promise["met"]
    assert value(found, "promise_standing", standing=status["watch"]["standing"]) == 1
    assert sum(count for (name, _), count in found.items() if name == "doubtless_promise_standing") == 1
    assert value(found, "drift_p_value") == 1
    assert value(found, "change_share") == 0
    assert service.drift is not None
    service.drift.watch([1.0] * 300)
    service.remove([item.id for item in service.gallery.items(count=30)])
    after = samples_of(send(service, "GET", "/metrics").text)
    assert value(after, "drift_alarm") == 1
    assert value(after, "drift_above_share") == 1
    assert value(after, "items") == 90
    assert value(after, "change_share") == pytest.approx(30 / 120)


def test_a_gallery_that_cannot_be_read_takes_no_figures_of_requests_with_it(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> dict[str, Any]:
        raise OSError("the disk is gone")

    monkeypatch.setattr(service.gallery, "status", broken)
    reply = send(service, "GET", "/metrics")
    found = samples_of(reply.text)
    assert reply.status_code == 200
    assert value(found, "readable") == 0
    assert value(found, "requests_under_way") == 1
    assert "the disk is gone" not in reply.text


def test_the_token_is_needed_as_elsewhere_and_either_will_do(service: Service) -> None:
    both = {"token": TOKEN, "read_token": READ}
    check_problem(send(service, "GET", "/metrics", **both), 401)
    for token in (TOKEN, READ):
        headers = {"Authorization": f"Bearer {token}"}
        assert send(service, "GET", "/metrics", headers=headers, **both).status_code == 200

    async def talk(client: httpx.AsyncClient) -> str:
        await client.get("/v1/info")
        return (await client.get("/metrics", headers={"Authorization": f"Bearer {TOKEN}"})).text

    found = samples_of(asked(service, talk, **both))
    assert value(found, "requests_total", method="GET", status="401", route="none") == 1  # refusals count
