"""Sixty-four hostile pictures at once: the memory of a server, and how long others wait meanwhile."""

from __future__ import annotations

import asyncio
import io
import multiprocessing
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.server.asking import ServedProcess, served

AT_ONCE = 64
ROUNDS = 3
SIDE = 7071


def plain(kind: str, width: int, height: int, **options: Any) -> bytes:
    """One colour: few bytes, many pixels."""
    file = io.BytesIO()
    Image.new("RGB", (width, height), (9, 99, 199)).save(file, kind, **options)
    return file.getvalue()


def declaring(width: int, height: int) -> bytes:
    """A WebP of some forty bytes that says it has so many pixels."""
    file = bytearray(plain("WEBP", 8, 8, lossless=True))
    place = file.index(b"VP8L") + 9
    (bits,) = struct.unpack("<I", file[place : place + 4])
    bits = bits >> 28 << 28 | (height - 1) << 14 | (width - 1)
    file[place : place + 4] = struct.pack("<I", bits)
    return bytes(file)


def palette_png(side: int) -> bytes:
    """A PNG whose pixels take one bit each: side² of them in a few kilobytes."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = zlib.compress((b"\0" + bytes((side + 7) // 8)) * side, 9)
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def bombs() -> list[bytes]:
    """Within the limits where that is worst, over them, and cut short."""
    whole = [
        declaring(SIDE, SIDE),  # refused by its header
        declaring(4999, 4999),  # as large as is accepted, and damaged
        plain("WEBP", 4999, 4999, lossless=True),
        plain("PNG", SIDE, SIDE),
        palette_png(SIDE),
        plain("JPEG", SIDE, SIDE, quality=5),
        plain("JPEG", SIDE, SIDE, quality=5, progressive=True),
        plain("GIF", SIDE, SIDE),
        plain("PNG", 4000, 3000),
        plain("JPEG", 4000, 3000, quality=5),
    ]
    return whole + [data[: len(data) * 2 // 3] for data in whole[2:8]]


def photograph() -> bytes:
    """A JPEG such as people ask with."""
    noise = np.random.default_rng(0).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).resize((500, 375), Image.Resampling.BICUBIC).save(file, "JPEG", quality=85)
    return file.getvalue()


def held(number: int) -> int:
    """Bytes that a process and its children hold, what they share counted once."""
    numbers, total = [number], 0
    while numbers:
        one = numbers.pop()
        try:
            for task in Path(f"/proc/{one}/task").iterdir():
                numbers += map(int, (task / "children").read_text().split())
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:  # it has ended meanwhile
            continue
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


class Watch:
    """Does something again and again in a thread until the block ends."""

    def __init__(self, work: Callable[[], float], *, pause: float) -> None:
        self.found: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(work, pause))

    def _run(self, work: Callable[[], float], pause: float) -> None:
        while not self._ended.is_set():
            self.found.append(work())
            self._ended.wait(pause)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def asker(address: str, picture: bytes) -> Callable[[], float]:
    """Asks once, and says how long that took; whoever is refused has not been answered."""
    client = httpx.Client(base_url=address, timeout=60)

    def ask() -> float:
        began = time.perf_counter()
        reply = client.post("/v1/search", files={"image": picture}, data={"k": "5"})
        assert reply.status_code == 200, reply.text
        return time.perf_counter() - began

    return ask


def attacked(address: str, files: list[bytes]) -> Counter[int]:
    """In a process of its own: what it costs to send them is not what others wait for."""
    return asyncio.run(attack(address, files))


async def attack(address: str, files: list[bytes]) -> Counter[int]:
    """What a server says to all of them, sent at once."""
    limits = httpx.Limits(max_connections=AT_ONCE)
    async with httpx.AsyncClient(base_url=address, timeout=120, limits=limits) as client:

        async def send(number: int) -> int:
            data = files[number % len(files)]
            return (await client.post("/v1/search", files={"image": data})).status_code

        return Counter(await asyncio.gather(*map(send, range(AT_ONCE if files else 0))))


def late(seconds: list[float]) -> float:
    """The 99th percentile."""
    return float(np.quantile(seconds, 0.99))


def measure(
    process: ServedProcess, files: list[bytes]
) -> tuple[int, int, list[float], list[float], Counter[int]]:
    """Memory idle and at most, times of searches in quiet and meanwhile, what was said to the hostile ones."""
    ask = asker(process.address, photograph())
    for _ in range(30):
        ask()
    quiet = [ask() for _ in range(300)]
    idle, said = held(process.process.pid), Counter[int]()
    with (
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as attacker,
        Watch(lambda: float(held(process.process.pid)), pause=0.05) as memory,
    ):
        attacker.submit(attacked, process.address, []).result()  # it has started
        with Watch(ask, pause=0.01) as busy:
            for _ in range(ROUNDS):
                said += attacker.submit(attacked, process.address, files).result()
    return idle, int(max(memory.found)), quiet, busy.found, said


@pytest.mark.slow
def test_hostile_pictures_take_neither_the_memory_nor_the_time_of_others(own_index: Path) -> None:
    if not Path("/proc/self/smaps_rollup").exists():
        pytest.skip("This system does not say what processes hold together.")
    with served(own_index) as process:
        idle, most, quiet, busy, said = measure(process, bombs())
        print(
            f"\nidle {idle >> 20} MB, at most {most >> 20} MB; p99 of {len(quiet)} quiet searches "
            f"{1e3 * late(quiet):.1f} ms, of {len(busy)} meanwhile {1e3 * late(busy):.1f} ms "
            f"(median {1e3 * float(np.median(quiet)):.1f} and {1e3 * float(np.median(busy)):.1f}); {dict(said)}"
        )
        assert process.stop() == 0
    assert len(busy) > 100
    assert most <= 1.5 * idle + (512 << 20)
    assert late(busy) <= 3 * late(quiet)
    assert {status for status in said if status >= 500} <= {503}
    assert said[200]  # some are pictures
    assert said[413]  # some are too large
