"""Ten minutes of everything at once: it does not grow, refuses what it must, and loses nothing acknowledged.

DOUBTLESS_SOAK_SECONDS says how long; `-s` shows what was measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from doubtless.index.folder import FolderIndex
from tests.server import hostile
from tests.server.asking import ServedProcess, served

KEPT = 5
"""Every so manieth item that is stored stays."""


@dataclass
class Soak:
    """One server under mixed load."""

    address: str
    picture: bytes
    until: float = 0.0
    made: Counter[str] = field(default_factory=Counter)
    stored: set[str] = field(default_factory=set)

    async def ask(self, client: httpx.AsyncClient, number: int) -> None:
        """A search, with or without a filter, and what the page looks at."""
        where = {"where": json.dumps({"label": ["class-0", "class-1"]})} if number % 2 else {}
        found = await client.post("/v1/search", files={"image": self.picture}, data={"k": "5", **where})
        assert found.status_code == 200, found.text
        for address in ("/readyz", "/v1/items?limit=5&text=class", "/v1/labels"):
            assert (await client.get(address)).status_code == 200

    async def attack(self, client: httpx.AsyncClient, number: int) -> None:
        """What must be refused."""
        method, address, request = hostile.request(number)
        if address != "/v1/items":
            assert (await client.request(method, address, **request)).status_code < 500

    async def change(self, client: httpx.AsyncClient, number: int) -> None:
        """An item comes, and mostly goes again."""
        id = f"soak-{number}"
        data = {"id": id, "metadata": json.dumps({"number": number})}
        assert (await client.post("/v1/items", files={"image": self.picture}, data=data)).status_code == 201
        if number % KEPT == 0:
            self.stored.add(id)
        else:
            assert (await client.delete(f"/v1/items/{id}")).status_code == 204

    async def leave(self, client: httpx.AsyncClient, number: int) -> None:
        """Half a request, and one whose client does not wait for its answer."""
        host, port = self.address.removeprefix("http://").split(":")
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

    async def work(self, client: httpx.AsyncClient, worker: int) -> None:
        """One caller that does everything in turn."""
        kinds: list[Callable[[httpx.AsyncClient, int], Awaitable[None]]] = [
            self.ask, self.attack, self.ask, self.change, self.leave,
        ]  # fmt: skip
        while time.monotonic() < self.until:
            number = worker + 8 * self.made.total()
            kind = kinds[self.made[str(worker)] % len(kinds)]
            self.made[str(worker)] += 1
            await kind(client, number)

    async def run(self, seconds: float) -> None:
        """Eight callers at once."""
        self.until = time.monotonic() + seconds
        async with httpx.AsyncClient(base_url=self.address, timeout=60) as client:
            await asyncio.gather(*(self.work(client, worker) for worker in range(8)))


@pytest.mark.slow
def test_it_does_not_grow_under_mixed_load(own_index: Path, picture: bytes) -> None:
    seconds = float(os.environ.get("DOUBTLESS_SOAK_SECONDS", "600"))
    with served(own_index) as process:
        soak, sizes = Soak(process.address, picture), []
        for _ in range(8):
            asyncio.run(soak.run(seconds / 8))
            sizes.append(process.memory())
        shown = ", ".join(f"{size / 1e6:.0f}" for size in sizes)
        print(f"{soak.made.total()} rounds in {seconds:g} s, {len(soak.stored)} kept; MB: {shown}")
        _check_end(process)
    assert sizes[-1] < 1.05 * sizes[1]
    with FolderIndex.open(own_index) as index:
        there = set(index.ids())
    assert soak.stored <= there
    assert {id for id in there if id.startswith("soak-")} == soak.stored


def _check_end(process: ServedProcess) -> None:
    assert process.stop() == 0
    assert sum(map(len, process.said)) < 10_000, "".join(process.said)[:3000]
