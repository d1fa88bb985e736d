"""kill -9 at random moments of a writer: what it acknowledged is there, what it was at is there whole or not."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.index.folder import FolderIndex
from tests.reference.index_writer import DIM, made

KILLS = 50  # of each kind of index
Model = dict[str, tuple[int, int]]  # id → seed and place of its embedding, in the order of rows


@contextlib.contextmanager
def writers() -> Iterator[tuple[subprocess.Popen[str], Queue[str]]]:
    """The process that forks writers, and what they and it say."""
    command = [sys.executable, "-m", "tests.reference.index_writer"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root
    ) as process:
        said: Queue[str] = Queue()
        assert process.stdout is not None
        lines = process.stdout
        threading.Thread(target=lambda: [said.put(line) for line in lines], daemon=True).start()
        try:
            yield process, said
        finally:
            assert process.stdin is not None
            process.stdin.close()
            process.wait(timeout=60)


def killed_after(
    process: subprocess.Popen[str], said: Queue[str], path: Path, *, seed: int, seconds: float
) -> list[dict[str, Any]]:
    """What a writer said before it was killed, `seconds` after it began its first change."""
    assert process.stdin is not None
    process.stdin.write(json.dumps([str(path), seed]) + "\n")
    process.stdin.flush()
    heard = [json.loads(said.get(timeout=60)) for _ in range(2)]
    (number,) = (line["process"] for line in heard if "process" in line)
    time.sleep(seconds)
    os.kill(number, signal.SIGKILL)  # fails where the writer has ended by itself
    while Path(f"/proc/{number}").exists():
        time.sleep(0.005)
    time.sleep(0.02)  # what it had written to the pipe comes through
    while not said.empty():
        heard.append(json.loads(said.get()))
    return [line for line in heard if "process" not in line]


def changed(model: Model, change: dict[str, Any]) -> Model:
    new = dict(model)
    if change["kind"] in ("add", "update", "remove"):
        for place, name in enumerate(change["ids"]):
            new.pop(name, None)
            if change["kind"] != "remove":
                new[name] = (change["seed"], place)
    return new


def held(index: FolderIndex) -> Model:
    """What an index says of itself, its labels, its values and their order checked on the way."""
    items, stored = index.items(index.rows), index.embedding()
    found = {item.id: (item.metadata["seed"], item.metadata["place"]) for item in items}
    assert len(found) == len(items) == len(index) == len(stored)
    assert all(item.label == f"label {item.metadata['seed'] % 5}" for item in items)
    assert [index.label_names[code] for code in index.labels.tolist()] == [item.label for item in items]
    return found


def values(model: Model, known: dict[int, dict[str, Any]]) -> Embedding:
    """The embeddings a model stands for."""
    made_once = {seed: made(known[seed]) for seed in {seed for seed, _ in model.values()}}
    return Embedding.cat([made_once[seed][place] for seed, place in model.values()])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["flat", "hnsw"])
def test_nothing_acknowledged_is_lost(tmp_path: Path, kind: str) -> None:
    path, draw = tmp_path / "index", random.Random(kind)
    FolderIndex.create(path, family="gaussian", dim=DIM, kind=kind, score="expected-distance").close()
    model: Model = {}
    part: dict[str, Any] | None = None
    known: dict[int, dict[str, Any]] = {}
    counts = {"acknowledged": 0, "in flight": 0, "in flight and stored": 0}
    with writers() as (process, said):
        for kill in range(KILLS):
            heard = killed_after(
                process, said, path, seed=draw.randrange(2**40), seconds=draw.uniform(0, 0.6)
            )
            changes, done = heard[::2], heard[1::2]
            known.update(
                {change["seed"]: change for change in changes if "ids" in change and "seed" in change}
            )
            for change in changes[: len(done)]:
                model = changed(model, change)
                part = change if change["kind"] == "part" else part
            counts["acknowledged"] += len(done)
            flying = changes[len(done) :]
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # a kill damages no file that counts
                index = FolderIndex.open(path)
            with index:
                found = held(index)
                possible = [model, *(changed(model, change) for change in flying)]
                assert list(found.items()) in [list(state.items()) for state in possible], kill
                if flying and list(found.items()) != list(model.items()):
                    counts["in flight and stored"] += 1
                counts["in flight"] += len(flying)
                model = found
                part = check_part(index, part, flying)
                if model:
                    check_values(index, values(model, known), kind)
    print(kind, counts)
    assert counts["in flight"] > KILLS // 3
    assert counts["acknowledged"] > KILLS


def check_part(
    index: FolderIndex, part: dict[str, Any] | None, flying: list[dict[str, Any]]
) -> dict[str, Any] | None:
    """The last part acknowledged, or the one in flight, whole."""
    stored = index.attached("calibrator")
    if stored is None:
        assert part is None
        return None
    tensors, record = stored
    assert record in [part, *flying]
    assert torch.equal(tensors["values"], torch.full((1000,), float(record["seed"] % 999)))
    return record


def check_values(index: FolderIndex, wanted: Embedding, kind: str) -> None:
    """Bit for bit what was stored; and a search finds it."""
    stored = index.embedding()
    assert torch.equal(stored.location, wanted.location)
    assert torch.equal(stored.parameters["variance"], wanted.parameters["variance"])
    queries, depth = wanted[:: max(1, len(wanted) // 20)], min(5, len(wanted))
    hits = index.search(queries, depth)
    distance = queries.pairwise_expected_squared_distance(wanted)
    exact = distance.topk(depth, largest=False)
    if kind == "flat":
        torch.testing.assert_close(hits.expected_squared_distance, exact.values, rtol=1e-4, atol=1e-4)
    places = torch.searchsorted(index.rows, hits.row.clamp(min=0))
    shown = distance.gather(1, places)
    torch.testing.assert_close(
        hits.expected_squared_distance[hits.found], shown[hits.found], rtol=1e-4, atol=1e-4
    )
    assert float(hits.found.float().mean()) > 0.9
