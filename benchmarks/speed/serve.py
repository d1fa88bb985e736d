"""How many searches a second a server answers over loopback, with one client and with many: what batching is worth.

    python benchmarks/speed/serve.py                  # conv-fashion, and EfficientNet-lite0 where its weights are
    python benchmarks/speed/serve.py conv-fashion --seconds 10

The server is a process of its own, asked with images as JPEG files over connections that stay open. One client
waits for its answer before it asks again; many do the same beside each other. Both take turns, so that a machine
others use too slows both alike; the best round of each counts. Weights are looked for in $DOUBTLESS_DATA and .data.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

import doubtless
from doubtless.data import open_source
from doubtless.gallery import Gallery
from doubtless.index.folder import FolderIndex
from doubtless.ingest.create import create_index_of_images

PROMISED = 3.0
CLIENTS = 32
WEIGHTS = "efficientnet_lite0.safetensors"
MODELS: Mapping[str, dict[str, Any]] = {
    "conv-fashion": {
        "method": "deterministic",
        "data": {"source": "fashion-sample"},
        "model": {"backbone": "conv-fashion", "dim": 32},
        "training": {"epochs": 2, "batch_size": 128, "accelerator": "cpu"},
    },
    "efficientnet-lite0": {
        "method": "pretrained",
        "data": {"source": "fashion-sample", "size": 112},
        "model": {"backbone": "tf_efficientnet_lite0", "pooling": "gem", "freeze": True},
        "features": {"head": "raw"},
        "training": {"accelerator": "cpu"},
    },
}


def weights() -> Path | None:
    places = [Path(os.environ.get("DOUBTLESS_DATA", ".data")), Path(".data")]
    return next((place / WEIGHTS for place in places if (place / WEIGHTS).is_file()), None)


def made(folder: Path, name: str, items: int) -> tuple[Path, list[bytes]]:
    """A calibrated index of images of fashion-sample, and others to ask with, as JPEG files."""
    config = {key: dict(value) if isinstance(value, dict) else value for key, value in MODELS[name].items()}
    if name != "conv-fashion":
        config["model"]["weights"] = str(weights())
    run = doubtless.train(config, folder / "run", quiet=True)
    source, queries = open_source("fashion-sample"), list[bytes]()
    for number in range(items + 200):
        image = Image.fromarray(source.image(number)[0].numpy())
        file = io.BytesIO()
        image.resize((112, 112)).save(file, "JPEG")
        if number >= items:
            queries.append(file.getvalue())
            continue
        path = folder / "images" / str(int(source.labels[number])) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.getvalue())
    create_index_of_images(folder / "index", doubtless.load(run.path), [folder / "images"])
    with FolderIndex.open(folder / "index", writable=True) as index:
        Gallery(index).calibrate()
    return folder / "index", queries


def requests_of(queries: list[bytes], host: str) -> list[bytes]:
    """Whole HTTP requests, made once: the client is to cost little."""
    found = []
    for image in queries:
        body = (
            b'--x\r\nContent-Disposition: form-data; name="image"; filename="q"\r\n\r\n'
            + image
            + b"\r\n--x--\r\n"
        )
        head = (
            f"POST /v1/search HTTP/1.1\r\nHost: {host}\r\nContent-Type: multipart/form-data; boundary=x\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        found.append(head.encode() + body)
    return found


async def read_reply(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    assert length is not None
    body = await reader.readexactly(int(length[1]))
    assert head.startswith(b"HTTP/1.1 200"), body
    return body


async def client(host: str, port: int, requests: list[bytes], until: float, took: list[float]) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    number = len(took)
    while (began := time.perf_counter()) < until:
        writer.write(requests[number % len(requests)])
        await read_reply(reader)
        took.append(time.perf_counter() - began)
        number += 7
    writer.close()


async def load(host: str, port: int, requests: list[bytes], clients: int, seconds: float) -> list[float]:
    """Seconds that each request took."""
    took: list[float] = []
    until = time.perf_counter() + seconds
    await asyncio.gather(*(client(host, port, requests, until, took) for _ in range(clients)))
    return took


async def info(host: str, port: int) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET /v1/info HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    found: dict[str, Any] = json.loads(await read_reply(reader))
    writer.close()
    return found


async def measured(
    host: str, port: int, queries: list[bytes], seconds: float, rounds: int
) -> dict[int, float]:
    """Clients → the best throughput; prints every round."""
    requests, best = requests_of(queries, host), {1: 0.0, CLIENTS: 0.0}
    await load(host, port, requests, 4, 2.0)  # warm
    for _ in range(rounds):
        for clients in best:
            before = (await info(host, port))["batching"]
            took = sorted(await load(host, port, requests, clients, seconds))
            after = (await info(host, port))["batching"]
            size = (after["queries"] - before["queries"]) / (after["batches"] - before["batches"])
            rate = len(took) / seconds
            best[clients] = max(best[clients], rate)
            middle, late = took[len(took) // 2] * 1000, took[int(0.95 * len(took))] * 1000
            print(
                f"  {clients:3} clients {rate:8.1f} searches/s   median {middle:6.1f} ms   95 % {late:6.1f} ms   "
                f"mean batch {size:5.1f}",
                flush=True,
            )
    return best


def served(name: str, items: int, seconds: float, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        index, queries = made(Path(folder), name, items)
        command = [
            sys.executable,
            "-m",
            "doubtless",
            "serve",
            str(index),
            "--port",
            "0",
            "--no-page",
            "--read-only",
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            found = re.search(r"http://(\S+):(\d+)", process.stdout.readline())
            assert found is not None
            print(f"{name}, {items:,} items, 112×112 JPEG, {os.cpu_count()} cores", flush=True)
            best = asyncio.run(measured(found[1], int(found[2]), queries, seconds, rounds))
            process.terminate()
    ratio = best[CLIENTS] / best[1]
    verdict = "kept" if ratio >= PROMISED else "NOT KEPT"
    print(
        f"  {CLIENTS} clients / 1 client: {ratio:.2f}   promised: at least {PROMISED:g}, {verdict}",
        flush=True,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", help=", ".join(MODELS))
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    usual = [name for name in MODELS if name == "conv-fashion" or weights() is not None]
    for model in given.models or usual:
        served(model, given.items, given.seconds, given.rounds)
