"""A server under load for minutes: latency as its clients see it, and what /metrics says meanwhile.

    python benchmarks/speed/load.py                          # 16 clients for five minutes
    python benchmarks/speed/load.py --seconds 60 --clients 4
    python benchmarks/speed/load.py --model efficientnet-lite0

The server is a process of its own over 1,000 items, asked with JPEG files over connections that stay open; each
client waits for its answer before it asks again. /metrics is scraped every five seconds, as Prometheus would.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families
from serve import MODELS, load, made, read_reply, requests_of  # the script beside this one

EVERY = 5.0
Scrape = dict[str, float]


async def scraped(host: str, port: int) -> Scrape:
    """Sums over labels, but for decisions and buckets, whose label is part of the name."""
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
    text = (await read_reply(reader)).decode()
    writer.close()
    found: Scrape = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("route", "/v1/search") != "/v1/search":
                continue
            kept = "".join(
                f"|{sample.labels[name]}" for name in ("decision", "le", "status") if name in sample.labels
            )
            name = sample.name.removeprefix("doubtless_") + kept
            found[name] = found.get(name, 0.0) + sample.value
    return found


async def watched(host: str, port: int, seconds: float, seen: list[Scrape]) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        seen.append(await scraped(host, port))
        await asyncio.sleep(EVERY)


def quantile(scrape: Scrape, before: Scrape, share: float) -> float:
    """Milliseconds below which a share of the requests lies, read off the histogram as Prometheus does."""
    counts = sorted(
        (float(name.split("|")[1]), count - before.get(name, 0.0))
        for name, count in scrape.items()
        if name.startswith("request_seconds_bucket|")
    )
    wanted, low, below = share * counts[-1][1], 0.0, 0.0
    for bound, count in counts:
        if count >= wanted:
            if bound == float("inf"):
                return 1000 * low
            return 1000 * (low + (bound - low) * (wanted - below) / max(1.0, count - below))
        low, below = bound, count
    return 1000 * low


async def measured(host: str, port: int, queries: list[bytes], clients: int, seconds: float) -> None:
    requests = requests_of(queries, host)
    await load(host, port, requests, clients, 3.0)  # warm
    first, seen = await scraped(host, port), list[Scrape]()
    took, _ = await asyncio.gather(
        load(host, port, requests, clients, seconds), watched(host, port, seconds, seen)
    )
    last = await scraped(host, port)
    took.sort()
    rows = [
        ("searches per second", f"{len(took) / seconds:.0f}"),
        ("p50, p99 and slowest of clients, ms", _three(took)),
        (
            "p50, p99 from /metrics, ms",
            f"{quantile(last, first, 0.5):.1f}, {quantile(last, first, 0.99):.1f}",
        ),
        (
            "queries per batch",
            f"{_rise(last, first, 'batch_queries_sum') / _rise(last, first, 'batch_queries_count'):.1f}",
        ),
        ("queue: largest seen", f"{max(one['queue_waiting'] for one in seen):.0f}"),
        (
            "memory first, most and last, MB",
            ", ".join(
                f"{value / 1e6:.0f}"
                for value in (
                    first["process_resident_memory_bytes"],
                    max(one["process_resident_memory_bytes"] for one in (*seen, last)),
                    last["process_resident_memory_bytes"],
                )
            ),
        ),
        (
            "memory minute by minute, MB",
            ", ".join(
                f"{one['process_resident_memory_bytes'] / 1e6:.0f}" for one in seen[:: round(60 / EVERY)]
            ),
        ),
        (
            "answered, abstained, not in the gallery",
            ", ".join(
                f"{_rise(last, first, f'answers_total|{name}'):,.0f}"
                for name in ("answer", "abstain", "not-in-gallery")
            ),
        ),
        ("replies other than 200", f"{sum(_rise(last, first, name) for name in last if _failed(name)):.0f}"),
        ("scrapes of /metrics", f"{len(seen)}"),
    ]
    for what, value in rows:
        print(f"| {what} | {value} |", flush=True)


def _three(took: list[float]) -> str:
    chosen = (took[len(took) // 2], took[int(0.99 * len(took))], took[-1])
    return ", ".join(f"{1000 * one:.1f}" for one in chosen)


def _rise(last: Scrape, first: Scrape, name: str) -> float:
    return last.get(name, 0.0) - first.get(name, 0.0)


def _failed(name: str) -> bool:
    return name.startswith("requests_total|") and not name.endswith("|200")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="conv-fashion", choices=list(MODELS))
    parser.add_argument("--items", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=300.0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        index, queries = made(Path(folder), given.model, given.items)
        command = [sys.executable, "-m", "doubtless", "serve", str(index)]
        command += ["--port", "0", "--no-page", "--read-only"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            found = re.search(r"http://(\S+):(\d+)", process.stdout.readline())
            assert found is not None
            print(
                f"| {given.model}, {given.items:,} items, {given.clients} clients, {given.seconds:g} s, "
                f"{os.cpu_count()} cores | |\n|---|---|",
                flush=True,
            )
            try:
                asyncio.run(measured(found[1], int(found[2]), queries, given.clients, given.seconds))
            finally:
                process.terminate()


if __name__ == "__main__":
    main()
