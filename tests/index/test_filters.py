"""Filters: many values, odd ones, items that come and go, and nobody waits while metadata are read."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.index.database import columns
from doubtless.index.filters import MOST_KEYS, MOST_VALUES, admits
from doubtless.index.folder import FolderIndex
from doubtless.index.items import MOST_METADATA

VALUES: list[Any] = [
    *range(8), 2.0, 2.5, -0.0, 1e300, 10**25, -(2**63), 2**63 - 1, 2**63, True, False, None, "", "2", "true", "é",
    'a"b', "a\\b", [1], {"deep": 1}, "x" * 300,
]  # fmt: skip
ASKED = [value for value in VALUES if not isinstance(value, list | dict)]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[FolderIndex]:
    with FolderIndex.create(tmp_path / "index", family="point", dim=3) as opened:
        yield opened


def add(index: FolderIndex, count: int, draw: random.Random, *, start: int = 0) -> None:
    keys = ("shelf", "a b", "é\n", "$.x[0]")
    metadata = [{key: draw.choice(VALUES) for key in keys if draw.random() < 0.8} for _ in range(count)]
    labels = [draw.choice(["cat", "dog", None]) for _ in range(count)]
    location = torch.randn(count, 3, generator=torch.Generator().manual_seed(start))
    ids = [str(start + number) for number in range(count)]
    index.add(Embedding.point(location), ids, labels=labels, metadata=metadata)


def wheres(draw: random.Random) -> Iterator[dict[str, Any]]:
    yield from ({"shelf": value} for value in ASKED)
    yield {'no"such': None}
    yield {'no"such': 1}
    for _ in range(20):
        some = draw.sample(ASKED, draw.randrange(0, 9))
        yield {"shelf": some, draw.choice(["a b", "é\n", "$.x[0]", "unheard of"]): draw.choice(ASKED)}
        yield {"label": draw.sample(["cat", "dog", "cow", None], 2), "shelf": some}


def check(index: FolderIndex, draw: random.Random) -> int:
    """Every filter lets through what it would one item at a time; how many that was."""
    items, found = index.items(index.rows), 0
    for where in wheres(draw):
        wanted = [int(row) for row, item in zip(index.rows, items, strict=True) if admits(where, item)]
        assert index.rows_where(where).tolist() == wanted, where
        hits = index.search(index.embedding()[:1], 400, where=where)
        assert sorted(hits.row[hits.found].tolist()) == wanted, where
        found += len(wanted)
    return found


def test_filters_follow_every_change(index: FolderIndex) -> None:
    draw = random.Random(0)
    add(index, 200, draw)
    assert check(index, draw) > 300
    index.remove([str(number) for number in range(0, 90)])
    add(index, 60, draw, start=1000)
    check(index, draw)
    index.update(
        Embedding.point(torch.randn(20, 3)), [str(n) for n in range(100, 120)], metadata=[{"shelf": 3}] * 20
    )
    check(index, draw)
    with FolderIndex.open(index.path) as reader:
        check(reader, draw)
        index.compact()
        add(index, 30, draw, start=2000)
        check(reader, draw)
    check(index, draw)


def test_thousands_of_values(index: FolderIndex) -> None:
    location = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    index.add(
        Embedding.point(location),
        [f"i{n}" for n in range(50)],
        metadata=[{"n": n, "s": f"w{n}"} for n in range(50)],
    )
    for count in (999, 5000, MOST_VALUES):
        assert len(index.rows_where({"n": list(range(25, 25 + count))})) == 25
        assert len(index.rows_where({"s": [f"w{n}" for n in range(40, 40 + count)]})) == 10


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"n": list(range(MOST_VALUES + 1))}, "10,000 values, got 10,001"),
        ({"n": list(range(6000)), "label": ["a"] * 6000}, "10,000 values, got 12,000"),
        ({str(n): 1 for n in range(MOST_KEYS + 1)}, "32 keys, got 33"),
        ({"n": "x" * 5000}, "4,096 characters, got 5,000"),
        ({"x" * 5000: 1}, "4,096 characters"),
        ({"n": "\ud800"}, "cannot be written as UTF-8"),
        ({"n": 10**400}, "finite numbers"),
        ({"n": float("nan")}, "finite numbers"),
        ({"n": float("inf")}, "finite numbers"),
        ({"n": {"a": 1}}, "got a dict"),
        (["n"], "dictionary"),
    ],
)
def test_what_is_no_filter_is_a_sentence(index: FolderIndex, where: Any, words: str) -> None:
    add(index, 5, random.Random(0))
    with pytest.raises(InputError, match=words):
        index.search(index.embedding()[:1], 1, where=where)
    with pytest.raises(InputError, match=words):
        index.rows_where(where)


def test_metadata_are_bounded(index: FolderIndex) -> None:
    one, deep = Embedding.point(torch.ones(1, 3)), {}
    for _ in range(100_000):
        deep = {"a": deep}
    index.add(one, ["most"], metadata=[{"a": "x" * (MOST_METADATA - len('{"a": ""}'))}])
    for metadata, words in (
        ({"a": "x" * MOST_METADATA}, "65,535 are kept"),
        (deep, "cannot be written as JSON"),
    ):
        with pytest.raises(InputError, match=words):
            index.add(one, ["b"], metadata=[metadata])
    assert len(index) == 1


def test_nobody_waits_while_metadata_are_read(index: FolderIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    add(index, 50, random.Random(0))
    queries, at_it, go_on = index.embedding()[:1], threading.Event(), threading.Event()
    connect = columns.connect

    def slowly(folder: Path, *, writable: bool) -> Any:
        at_it.set()
        assert go_on.wait(30)
        return connect(folder, writable=writable)

    monkeypatch.setattr(columns, "connect", slowly)
    found: list[torch.Tensor] = []
    filtering = threading.Thread(target=lambda: found.append(index.rows_where({"shelf": 1})))
    filtering.start()
    assert at_it.wait(30)
    others = threading.Thread(
        target=lambda: [index.search(queries, 3), add(index, 5, random.Random(1), start=100)]
    )
    others.start()
    others.join(20)
    still_waiting = others.is_alive()
    go_on.set()
    filtering.join(30)
    others.join(30)
    assert not still_waiting
    assert len(found) == 1
    assert len(index) == 55
