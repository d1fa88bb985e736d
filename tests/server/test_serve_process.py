"""`doubtless serve` as a process: it refuses, it finishes, it survives kill -9."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from doubtless.index.folder import FolderIndex
from doubtless.server.service.service import Service
from tests.server.asking import served


def test_other_hosts_are_refused_without_a_token(served_index: Path) -> None:
    command = [sys.executable, "-m", "doubtless", "serve", str(served_index), "--host", "0.0.0.0"]
    tokens = ("DOUBTLESS_TOKEN", "DOUBTLESS_READ_TOKEN")
    environment = {name: value for name, value in os.environ.items() if name not in tokens}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 2
    assert "DOUBTLESS_TOKEN" in done.stderr
    assert "Traceback" not in done.stderr


def test_both_tokens_come_from_the_environment(own_index: Path) -> None:
    tokens = {"DOUBTLESS_TOKEN": "writes-" + "x" * 20, "DOUBTLESS_READ_TOKEN": "reads-" + "x" * 20}
    with (
        served(own_index, environment=tokens) as process,
        httpx.Client(base_url=process.address) as client,
    ):
        may = []
        for token in tokens.values():
            told = client.get("/v1/info", headers={"Authorization": f"Bearer {token}"}).json()
            may.append((told["may_write"], told["may_judge"]))
        assert client.get("/v1/info").status_code == 401
        assert process.stop() == 0
    assert may == [(True, True), (False, True)]


def large_jpeg() -> bytes:
    file, noise = io.BytesIO(), np.random.default_rng(0).integers(0, 256, (1600, 1600, 3)).astype(np.uint8)
    Image.fromarray(noise).save(file, "JPEG", progressive=True)
    return file.getvalue()


def test_what_was_accepted_is_answered_before_it_stops(own_index: Path) -> None:
    image = large_jpeg()

    async def talk(address: str, stop: threading.Event) -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=address, timeout=60) as client:
            asking = [
                asyncio.create_task(client.post("/v1/search", files={"image": image})) for _ in range(12)
            ]
            adding = [
                asyncio.create_task(
                    client.post("/v1/items", files={"image": image}, data={"id": f"late {number}"})
                )
                for number in range(4)
            ]
            done, _ = await asyncio.wait([*asking, *adding], return_when=asyncio.FIRST_COMPLETED)
            assert len(done) < 10  # most are in the middle of it
            stop.set()
            return await asyncio.gather(*asking, *adding)

    with served(own_index) as process:
        stop = threading.Event()
        threading.Thread(
            target=lambda: (stop.wait(), process.process.send_signal(signal.SIGTERM)), daemon=True
        ).start()
        replies = asyncio.run(talk(process.address, stop))
        assert process.process.wait(timeout=60) == 0, process.said
    assert sorted({reply.status_code for reply in replies}) == [200, 201]
    with FolderIndex.open(own_index) as index:
        assert {f"late {number}" for number in range(4)} <= set(index.ids())


@pytest.mark.slow
def test_killed_under_writes_it_loses_nothing_acknowledged(own_index: Path, picture: bytes) -> None:
    draw, acknowledged, removed = random.Random(0), set[str](), set[str]()
    in_flight: set[str] = set()
    kills = int(os.environ.get("DOUBTLESS_KILLS", "8"))

    def write(address: str, worker: int, round_number: int) -> None:
        with httpx.Client(base_url=address, timeout=30) as client:
            for number in range(10_000):
                id = f"{round_number}-{worker}-{number}"
                in_flight.add(id)
                try:
                    reply = client.post(
                        "/v1/items", files={"image": picture}, data={"id": id, "label": "new"}
                    )
                except httpx.TransportError:
                    return
                assert reply.status_code == 201, reply.text
                acknowledged.add(id)
                if number % 5 == 4:
                    try:
                        done = client.delete(f"/v1/items/{id}")
                    except httpx.TransportError:
                        removed.add(f"perhaps {id}")
                        return
                    assert done.status_code == 204
                    removed.add(id)

    for round_number in range(kills):
        with served(own_index) as process:
            threads = [
                threading.Thread(target=write, args=(process.address, worker, round_number))
                for worker in range(4)
            ]
            before, until = len(acknowledged), time.monotonic() + 60
            for thread in threads:
                thread.start()
            while len(acknowledged) == before and time.monotonic() < until:
                time.sleep(0.01)  # the first needs the model, which takes its time to load
            time.sleep(draw.uniform(0.3, 2.0))
            process.stop(signal.SIGKILL)
            for thread in threads:
                thread.join()
        unsure = {id.removeprefix("perhaps ") for id in removed if id.startswith("perhaps ")}
        with Service.open(own_index) as service:
            there = set(service.gallery.index.ids())
            assert acknowledged - removed - unsure <= there
            assert not removed & there
            assert {id for id in there if id.count("-") == 2 and "/" not in id} <= in_flight
            for id in there & acknowledged:
                assert service.image_of(id).data == picture
            files = set((own_index / "images").rglob("*.png"))
            assert len(files) == len(
                {id for id in there if service.items.shelf.holds(service.items.get(id).path)}
            )
    print(f"{len(acknowledged)} acknowledged, {len(removed)} removed, {kills} kills")
    assert len(acknowledged) > 10 * kills


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("output", ["/dev/full", "&-"])
def test_it_serves_though_nobody_can_be_told_where(served_index: Path, output: str) -> None:
    """Standard output is full, or was closed: each was a traceback, and nothing was served."""
    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        port = str(trial.getsockname()[1])
    words = [sys.executable, "-m", "doubtless", "serve", str(served_index), "--read-only", "--port", port]
    command = ["sh", "-c", f'exec "$@" >{output}', "sh", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            until = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < until:
                with contextlib.suppress(httpx.TransportError):
                    assert httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
                    break
                time.sleep(0.2)
            process.terminate()
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
        assert process.stderr is not None
        assert process.stderr.read() == ""
