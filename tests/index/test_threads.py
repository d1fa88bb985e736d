"""One index in several threads: searches beside a writer see states that were, never something between."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from doubtless.embedding import Embedding
from doubtless.index.database.lock import Gate
from doubtless.index.folder import FolderIndex

DIM = 8


def pair(number: int) -> tuple[Embedding, list[str]]:
    """Two items that are always added and removed together, alone near their own direction."""
    generator = torch.Generator().manual_seed(number)
    location = torch.randn(1, DIM, generator=generator).repeat(2, 1)
    return Embedding.vmf(location, torch.tensor([50.0, 60.0])), [f"{number} first", f"{number} second"]


def test_searches_beside_a_writer(tmp_path: Path) -> None:
    """Every search finds both of a pair or neither, in the writer's own index and in a reader's."""
    writer = FolderIndex.create(tmp_path / "index", family="vmf", dim=DIM)
    for number in range(20):
        writer.add(*pair(number))
    reader, stop = FolderIndex.open(tmp_path / "index"), threading.Event()

    def search(index: FolderIndex, seed: int) -> int:
        generator, searches = torch.Generator().manual_seed(seed), 0
        while not stop.is_set():
            number = int(torch.randint(20, (1,), generator=generator))
            hits = index.search(pair(number)[0][:1], 40)
            near = int((hits.score[0] > 0.9999).sum())
            assert near in (0, 2)
            rows = hits.row[hits.row >= 0]
            assert len(rows) == len(rows.unique())
            assert len(rows) % 2 == 0
            searches += 1
        return searches

    with ThreadPoolExecutor(6) as pool:
        running = [pool.submit(search, index, seed) for seed, index in enumerate([writer, reader] * 2)]
        try:
            for step in range(60):
                embedding, ids = pair(step % 20)
                if step % 5 == 0:
                    writer.update(embedding, ids)
                elif step % 15 == 1:
                    writer.compact()
                else:
                    writer.remove(ids)
                    writer.add(embedding, ids, labels=["new", None])
        finally:
            stop.set()
        assert all(future.result(timeout=60) > 0 for future in running)
    assert len(reader) == len(writer) == 40
    reader.close()
    writer.close()


def test_a_change_waits_for_searches_and_they_for_it() -> None:
    gate, order = Gate(), []

    def change() -> None:
        with gate.alone():
            order.append("change begins")
            time.sleep(0.05)
            order.append("change ends")

    def search() -> None:
        with gate.shared():
            order.append("late search")

    with gate.shared(), gate.shared():
        changing = threading.Thread(target=change)
        changing.start()
        time.sleep(0.05)
        late = threading.Thread(target=search)
        late.start()
        time.sleep(0.05)
        order.append("first searches end")
    changing.join()
    late.join()
    assert order == ["first searches end", "change begins", "change ends", "late search"]
