"""A writer of an index that says what it is about to do and what it has done, to be killed while it does so.

    python -m tests.reference.index_writer      # lines on standard input: a folder and a seed

For every line a child is forked, which writes to the index until it is killed. What it prints, one JSON a line:
its process number, then for each change the change and, when the call has returned, {"done": true}.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
from typing import Any

import torch

from doubtless.embedding import Embedding
from doubtless.index import proposals as approximate
from doubtless.index import vector_cache
from doubtless.index.folder import FolderIndex

DIM, MOST = 16, 1500


def made(change: dict[str, Any]) -> Embedding:
    """The embeddings of an add or an update, from its seed."""
    generator = torch.Generator().manual_seed(change["seed"])
    count = len(change["ids"])
    location = torch.randn(count, DIM, generator=generator)
    return Embedding.gaussian(location, 0.1 + torch.rand(count, DIM, generator=generator))


def chosen(draw: random.Random, ids: list[str]) -> dict[str, Any]:
    """A change that fits an index with these ids."""
    kinds = ["add"] * 4 + ["update"] * 2 + ["remove"] * 2 + ["compact", "part", "reopen"]
    kind, seed, count = draw.choice(kinds), draw.randrange(2**40), draw.choice([1, 3, 40, 400])
    if kind == "add" and len(ids) < MOST:
        return {"kind": "add", "seed": seed, "ids": [f"{seed} {number}" for number in range(count)]}
    if kind in ("add", "remove"):
        return {"kind": "remove", "ids": draw.sample(ids, min(len(ids), count))}
    if kind == "update":
        return {"kind": "update", "seed": seed, "ids": draw.sample(ids, min(len(ids), count))}
    return {"kind": kind, "seed": seed}


def apply(index: FolderIndex, change: dict[str, Any]) -> None:
    if change["kind"] in ("add", "update"):
        count, label = len(change["ids"]), f"label {change['seed'] % 5}"
        operation = index.add if change["kind"] == "add" else index.update
        metadata = [{"seed": change["seed"], "place": place} for place in range(count)]
        operation(made(change), change["ids"], labels=[label] * count, metadata=metadata)
    elif change["kind"] == "remove":
        index.remove(change["ids"])
    elif change["kind"] == "compact":
        index.compact()
    elif change["kind"] == "part":
        index.attach("calibrator", {"values": torch.full((1000,), float(change["seed"] % 999))}, change)


def say(value: object) -> None:
    os.write(1, (json.dumps(value) + "\n").encode())


def write_for_ever(path: str, seed: int) -> None:
    draw, index = random.Random(seed), FolderIndex.open(path, writable=True)
    ids = index.ids()  # kept here: the time is to be spent on changes
    while True:
        change = chosen(draw, ids)
        say(change)
        if change["kind"] == "reopen":
            index.close()
            index = FolderIndex.open(path, writable=True)
        else:
            apply(index, change)
            if change["kind"] == "add":
                ids += change["ids"]
            elif change["kind"] == "remove":
                gone = set(change["ids"])
                ids = [name for name in ids if name not in gone]
        say({"done": True})


def main() -> None:
    vector_cache.TAIL, approximate.UNCOVERED = (
        300,
        200,
    )  # so that files are written and rewritten all the time
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        path, seed = json.loads(line)
        child = os.fork()
        if not child:
            try:
                write_for_ever(path, seed)
            finally:
                os._exit(1)  # a writer that ends by itself has failed; the test sees no process to kill
        say({"process": child})


if __name__ == "__main__":
    main()
