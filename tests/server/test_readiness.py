"""`/readyz`: it says what keeps the service from answering, in time, and `/healthz` goes on."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.errors import StoreError
from doubtless.gallery import Gallery
from doubtless.server.service import readiness
from doubtless.server.service.service import Service
from tests.server.asking import asked, check_problem, send


@pytest.fixture(autouse=True)
def _always_looked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "FRESH", 0.0)


def why_not(service: Service) -> str:
    response = send(service, "GET", "/readyz")
    assert response.headers["retry-after"] == "1"
    assert send(service, "GET", "/healthz").status_code == 200
    return str(check_problem(response, 503)["detail"])


def test_a_service_that_can_answer_is_ready(service: Service, tmp_path: Path) -> None:
    assert send(service, "GET", "/readyz").json() == {"status": "ready"}
    assert (
        send(service, "GET", "/readyz", token="t" * 20).status_code == 200
    )  # who starts servers has no token
    Gallery.create(tmp_path / "bare", embedding=Embedding.point(torch.randn(5, 8))).close()
    with Service.open(tmp_path / "bare", read_only=True) as bare:
        assert send(bare, "GET", "/readyz").status_code == 200


def test_a_database_that_cannot_be_read(service: Service) -> None:
    service.gallery.index._store._connection.close()  # type: ignore[attr-defined]
    with pytest.raises(StoreError):
        len(service.gallery.index)
    assert why_not(service) == "The database cannot be read."


def test_a_model_that_fails(service: Service) -> None:
    def broken(_: Any) -> Any:
        raise RuntimeError("the device is lost")

    service.batcher._work = broken
    assert why_not(service) == "The model does not answer."


def test_a_model_that_hangs_is_noticed_in_time(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "PATIENCE", 0.3)
    free, work, calls = threading.Event(), service.batcher._work, []

    def hanging(queries: Any) -> Any:
        calls.append(len(queries))
        free.wait(30)
        return work(queries)

    async def many(client: httpx.AsyncClient) -> list[int]:
        replies = await asyncio.gather(*(client.get("/readyz") for _ in range(50)))
        return [reply.status_code for reply in replies]

    service.batcher._work = hanging
    began = time.perf_counter()
    assert set(asked(service, many)) == {503}
    assert "has not answered" in why_not(service)
    assert time.perf_counter() - began < 10
    assert calls == [1]  # however many ask, it is tried once
    free.set()
    monkeypatch.setattr(readiness, "PATIENCE", 10.0)
    assert send(service, "GET", "/readyz").status_code == 200


def test_a_full_disk_and_a_folder_that_is_gone(own_index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Service.open(own_index, read_only=True) as reading:
        with monkeypatch.context() as full:
            full.setattr(readiness, "ROOM", 1 << 60)  # as if no disk had so much left
            assert send(reading, "GET", "/readyz").status_code == 200  # it stores nothing
            with Service.open(own_index) as service:
                assert "disk is full" in why_not(service)
        shutil.rmtree(own_index)
        assert "not there any more" in why_not(reading)


def test_a_service_that_is_closed(service: Service) -> None:
    service.batcher.close()
    assert why_not(service) == "Requests are no longer answered."
