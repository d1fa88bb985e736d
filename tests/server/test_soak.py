"""Ten minutes of everything at once, while decoders are killed and the disk is full now and then.

It does not grow, refuses what it must, answers all along, and loses nothing that was acknowledged.
DOUBTLESS_SOAK_SECONDS says how long; `-s` shows what was measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from doubtless.gallery.feedback.store import FeedbackStore
from doubtless.gallery.safekeeping import check
from doubtless.index.folder import FolderIndex
from tests.reference.small_disk import fill, small_disk
from tests.server import hostile
from tests.server.asking import ServedProcess, served

CALLERS, KEPT, PARTS = 8, 5, 8
"""Callers at once; every so manieth item that is stored stays; times at which memory is looked at."""
DISK, FULL_EVERY, FULL_FOR = 400, 30.0, 4.0
"""Megabytes of the disk, seconds from one time that it is full to the next, and how long it is."""
KILL_EVERY = 3.0
"""Seconds from one killed decoder to the next."""


@dataclass
class Soak:
    """One server under mixed load."""

    process: ServedProcess
    disk: Path
    picture: bytes
    until: float = 0.0
    full_until: float = 0.0
    made: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    stored: set[str] = field(default_factory=set)
    judged: int = 0

    # -- what callers do -------------------------------------------------------------------------------

    async def ask(self, client: httpx.AsyncClient, number: int) -> None:
        """A search, with or without a filter, and what the page looks at."""
        where = {"where": json.dumps({"label": ["class-0", "class-1"]})} if number % 2 else {}
        found = await client.post("/v1/search", files={"image": self.picture}, data={"k": "5", **where})
        assert found.status_code == 200, found.text
        self.said["searches"] += 1
        for address in ("/v1/items?limit=5&text=class", "/v1/labels", "/metrics"):
            assert (await client.get(address)).status_code == 200
        began = time.monotonic()
        ready = (await client.get("/readyz")).status_code
        assert ready == 200 or (ready == 503 and self.was_full(began))

    async def judge(self, client: httpx.AsyncClient, number: int) -> None:
        """Somebody says that an answer is right."""
        found = await client.post("/v1/search", files={"image": self.picture}, data={"k": "3"})
        said = {"answer": found.json()["id"], "said": "right"}
        if await self.changed(client.post("/v1/feedback", json=said), 201):
            self.judged += 1

    async def attack(self, client: httpx.AsyncClient, number: int) -> None:
        """What must be refused."""
        method, address, request = hostile.request(number)
        if address != "/v1/items":
            assert (await client.request(method, address, **request)).status_code < 500

    async def change(self, client: httpx.AsyncClient, number: int) -> None:
        """An item comes, and mostly goes again."""
        id = f"soak-{number}"
        data = {"id": id, "metadata": json.dumps({"number": number})}
        sent = client.post("/v1/items", files={"image": self.picture}, data=data)
        if not await self.changed(sent, 201):
            return
        self.stored.add(id)
        if number % KEPT:
            gone = await client.delete(f"/v1/items/{id}")
            assert gone.status_code == 204, gone.text  # also where the disk is full
            self.stored.remove(id)

    async def leave(self, client: httpx.AsyncClient, number: int) -> None:
        """Half a request, and one whose client does not wait for its answer."""
        host, port = self.process.address.removeprefix("http://").split(":")
        for ending in (b"X-Half", b"\r\n"):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /v1/items HTTP/1.1\r\nHost: 127.0.0.1\r\n" + ending)
            await writer.drain()
            if number % 3:
                writer.close()
            else:
                writer.transport.abort()
        with contextlib.suppress(httpx.TimeoutException):
            await client.post("/v1/search", files={"image": self.picture}, timeout=0.005)

    async def changed(self, sent: Awaitable[httpx.Response], status: int) -> bool:
        """Whether a change was acknowledged; refused it may be where the disk is full."""
        began = time.monotonic()
        reply = await sent
        if reply.status_code == 507 and self.was_full(began):
            self.said["refused for want of room"] += 1
            return False
        assert reply.status_code == status, reply.text
        self.said["changes"] += 1
        return True

    def was_full(self, began: float) -> bool:
        """Whether the disk was full since then, or just before: what was seen is told for a while."""
        return began < self.full_until + 4

    # -- what befalls the server -----------------------------------------------------------------------

    async def kill_decoders(self) -> None:
        """One after the other, whatever it is at."""
        draw = random.Random(0)
        while time.monotonic() < self.until:
            await asyncio.sleep(KILL_EVERY * draw.uniform(0.5, 1.5))
            if decoders := self.process.children():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(draw.choice(decoders), signal.SIGKILL)
                    self.said["decoders killed"] += 1

    async def fill_disk(self) -> None:
        """To the last byte, for some seconds."""
        while time.monotonic() < self.until - FULL_FOR:
            await asyncio.sleep(min(FULL_EVERY, self.until - time.monotonic()) / 2)
            self.full_until = float("inf")
            until = time.monotonic() + FULL_FOR
            while time.monotonic() < until:  # what was removed meanwhile is taken as well
                filler = fill(self.disk)
                await asyncio.sleep(0.2)
            filler.unlink()
            self.full_until = time.monotonic()
            self.said["times the disk was full"] += 1
            await asyncio.sleep(max(0.0, min(FULL_EVERY, self.until - time.monotonic())) / 2)

    # -- all of it -------------------------------------------------------------------------------------

    async def work(self, client: httpx.AsyncClient, worker: int) -> None:
        """One caller that does everything in turn."""
        kinds: list[Callable[[httpx.AsyncClient, int], Awaitable[None]]] = [
            self.ask, self.attack, self.ask, self.change, self.leave, self.judge,
        ]  # fmt: skip
        while time.monotonic() < self.until:
            number = worker + CALLERS * self.made.total()
            kind = kinds[self.made[str(worker)] % len(kinds)]
            self.made[str(worker)] += 1
            await kind(client, number)

    async def run(self, seconds: float) -> None:
        """Eight callers at once."""
        self.until = time.monotonic() + seconds
        async with httpx.AsyncClient(base_url=self.process.address, timeout=60) as client:
            callers = (self.work(client, worker) for worker in range(CALLERS))
            await asyncio.gather(self.kill_decoders(), self.fill_disk(), *callers)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK) as mounted:
        yield mounted


@pytest.mark.slow
def test_it_does_not_grow_under_mixed_load(served_index: Path, disk: Path, picture: bytes) -> None:
    seconds = float(os.environ.get("DOUBTLESS_SOAK_SECONDS", "600"))
    index = Path(shutil.copytree(served_index, disk / "index"))
    with served(index) as process:
        soak, sizes = Soak(process, disk, picture), []
        for _ in range(PARTS):
            asyncio.run(soak.run(seconds / PARTS))
            sizes.append(process.memory())
        _check_end(process, seconds)
    shown = ", ".join(f"{size / 1e6:.0f}" for size in sizes)
    print(
        f"\n{soak.made.total()} rounds in {seconds:g} s; {dict(soak.said)}; {len(soak.stored)} kept; MB: {shown}"
    )
    assert sizes[-1] < 1.05 * sizes[1]
    assert soak.said["refused for want of room"]
    _check_kept(index, soak)


def _check_end(process: ServedProcess, seconds: float) -> None:
    assert len(process.children()) <= 2 * (os.cpu_count() or 1) + 4
    assert process.stop() == 0
    log = "".join(process.said)
    assert len(log) < 10_000 + 100 * seconds, log[:3000]
    assert "Traceback" not in log, log[log.index("Traceback") :][:3000]


def _check_kept(path: Path, soak: Soak) -> None:
    """All that was acknowledged and nothing else, whole, and no file of what has gone."""
    assert check(path, thorough=True).is_whole
    with FolderIndex.open(path) as index:
        there = {item.id: item.path for item in index.items(index.rows) if item.id.startswith("soak-")}
    assert set(there) == soak.stored
    shelf = [str(file.relative_to(path)) for file in (path / "images").rglob("*") if file.is_file()]
    assert sorted(shelf) == sorted(str(place) for place in there.values())
    assert len(FeedbackStore(path).entries()) == soak.judged
