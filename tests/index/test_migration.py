"""An index copied between a folder and Milvus: equal at the end, resumed after a kill, over nothing else."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from doubtless.cli import main
from doubtless.errors import InputError, StoreError
from doubtless.index.backends import create_index_at, open_index
from doubtless.index.base import Index
from doubtless.index.database import migration as migrating
from doubtless.index.database.migration import checksum_of, migrate
from tests.index.test_index import variances_of
from tests.reference.gallery import DRAWN, drawn
from tests.reference.milvus_server import serving

MILVUS = ("lite", "server")


@pytest.fixture(scope="module", params=MILVUS)
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """What an INDEX in Milvus begins with."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "lite":
        yield f"milvus:{folder}/"
        return
    with serving(folder) as address:
        yield f"milvus:{address}/"


@pytest.fixture(autouse=True)
def small_lots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrating, "TOGETHER", 16)


def filled(name: str | Path, family: str = "gaussian-diagonal", count: int = 50, **options: Any) -> str:
    """An index with holes in its rows, labels nobody has any more, odd metadata and two attachments."""
    gallery = drawn(family, count, seed=count)
    shape = {"family": gallery.family, "dim": 8, "variances": variances_of(gallery)}
    with create_index_at(name, **shape, **options) as index:
        index.add(gallery[:10], [f"gone {item}" for item in range(10)], labels=["gone"] * 10)
        index.add(
            gallery,
            [f"ü {item}" for item in range(count)],
            labels=[(None, "cat", "dog")[item % 3] for item in range(count)],
            paths=[None if item % 2 else f"{item}.png" for item in range(count)],
            metadata=[{"float": item / 7, "deep": {"list": [None, True, "x"]}} for item in range(count)],
        )
        index.remove([f"gone {item}" for item in range(10)])
        index.update(gallery[:3], ["ü 5", "ü 6", "ü 7"])
        index.attach("matrix", {"a": torch.randn(200, 90), "b": torch.zeros(0)}, {"levels": [0.5]})
        index.attach("nothing", {}, {})
    return str(name)


def held(index: Index) -> tuple[Any, ...]:
    items = index.items(index.rows)
    numbers = {name: value.tolist() for name, value in index.embedding().parameters.items()}
    settings = {key: value for key, value in index.settings.record().items() if key != "identity"}
    return items, numbers, settings


@pytest.mark.parametrize("family", list(DRAWN))
def test_there_and_back(root: str, tmp_path: Path, family: str) -> None:
    first = filled(tmp_path / "first", family, model="resnet-1", score="expected-distance", kind="flat")
    there = migrate(first, f"{root}{family.replace('-', '_')}")
    back = migrate(there.target, tmp_path / "back")
    assert (there.items, there.copied, there.attachments) == (50, 50, ["matrix", "nothing"])
    assert (back.items, back.copied, back.attachments) == (50, 50, ["matrix", "nothing"])
    queries = drawn(family, 5, seed=1)
    with open_index(first) as one, open_index(there.target) as two, open_index(tmp_path / "back") as three:
        assert held(one) == held(two) == held(three)
        assert checksum_of(one) == checksum_of(two) == checksum_of(three) == there.checksum == back.checksum
        names = [index.ids(index.search(queries, 10).row) for index in (one, two, three)]
        assert names[0] == names[1] == names[2]
        tensors, record = three.attached("matrix")  # type: ignore[misc]
        assert record == {"levels": [0.5]}
        assert torch.equal(tensors["a"], one.attached("matrix")[0]["a"])  # type: ignore[index]
    assert not list(tmp_path.glob(".*"))


def test_the_checksum_sees_every_difference(tmp_path: Path) -> None:
    """One item, one number, one letter, one attachment."""
    name = filled(tmp_path / "index")
    with open_index(name, writable=True) as index:
        seen = [checksum_of(index)]
        one = index.embedding([10])
        changes = [
            lambda: index.update(one, ["ü 0"], labels=["Cat"]),
            lambda: index.update(one, ["ü 0"], paths=["other.png"]),
            lambda: index.update(one, ["ü 0"], metadata=[{"float": 1e-9}]),
            lambda: index.update(
                type(one)(one.parameters | {"variance": one.variance * (1 + 1e-6)}), ["ü 0"]
            ),
            lambda: index.remove(["ü 1"]),
            lambda: index.attach("nothing", {}, {"a": 1}),
            lambda: index.attach("nothing", {"a": torch.zeros(1)}, {"a": 1}),
            lambda: index.attach("nothing", {"a": torch.zeros(1, 1)}, {"a": 1}),
        ]
        for change in changes:
            change()
            seen.append(checksum_of(index))
        assert len(set(seen)) == len(seen)
        index.compact()
        assert checksum_of(index) == seen[-1]


def test_nothing_else_is_overwritten(root: str, tmp_path: Path) -> None:
    source, other = filled(tmp_path / "source"), filled(tmp_path / "other", count=20)
    taken = filled(f"{root}taken", count=12)
    (tmp_path / "file").write_text("mine")
    for target in (other, taken, tmp_path / "file"):
        with pytest.raises(InputError, match="exists already, and is no copy of"):
            migrate(source, target)
    for name, count in ((other, 20), (taken, 12)):
        with open_index(name) as index:
            assert len(index) == count
    with pytest.raises(InputError, match="onto itself"):
        migrate(source, f"{tmp_path}/./source")
    with pytest.raises(StoreError, match="is no index"):
        migrate(tmp_path / "nowhere", f"{root}nothing")
    done = migrate(source, f"{root}copy")
    assert migrate(source, f"{root}copy") == migrating.Migrated(
        source, f"{root}copy", 50, 0, done.attachments, done.checksum
    )
    with open_index(source, writable=True) as index:
        index.remove(["ü 9"])
    with pytest.raises(StoreError, match=r"is not equal to .* \(50 of 49 items"):
        migrate(source, f"{root}copy")


@pytest.mark.parametrize("way", ["there", "back"])
def test_stopped_in_the_middle(root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Nobody can open half a copy; another source is refused; the same command goes on where it was."""
    places = (f"{root}a_{way}", tmp_path / "b") if way == "back" else (tmp_path / "a", f"{root}b_{way}")
    source, target = filled(places[0]), places[1]

    def stop(done: int, of: int) -> None:
        if done == 32:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        migrate(source, target, observer=stop)
    with pytest.raises(StoreError, match=r"is no index|is not finished: a migration into it was stopped"):
        open_index(target)
    other = filled(tmp_path / "other", count=40)
    with pytest.raises(InputError, match="unfinished copy of another index"):
        migrate(other, target)
    seen = []
    done = migrate(source, target, observer=lambda *steps: seen.append(steps))
    assert (done.items, done.copied, seen) == (50, 18, [(48, 50), (50, 50)])
    with open_index(source) as one, open_index(target) as two:
        assert held(one) == held(two)


def test_a_source_that_changed_meanwhile(root: str, tmp_path: Path) -> None:
    source, target = filled(tmp_path / "source"), f"{root}changed"

    def stop(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        migrate(source, target, observer=stop)
    with open_index(source, writable=True) as index:
        index.update(index.embedding([10]), ["ü 0"])
    with pytest.raises(InputError, match=r"not any more what it was .* begin anew with --restart"):
        migrate(source, target)
    assert migrate(source, target, restart=True).copied == 50

    def meddle(done: int, of: int) -> None:
        if done == of:
            with open_index(source, writable=True) as index:
                index.attach("nothing", {}, {"new": True})
                index.remove(["ü 1"])

    with pytest.raises(StoreError, match=r"is not equal to .* \(50 of 49 items"):
        migrate(source, f"{target}_again", observer=meddle)
    with pytest.raises(StoreError, match="is not finished"):
        open_index(f"{target}_again")


@pytest.mark.parametrize("way", ["there", "back"])
def test_killed(root: str, tmp_path: Path, way: str) -> None:
    """kill -9 of the command in the middle of its work; then it is run to its end."""
    places = (
        (f"{root}x_{way}", str(tmp_path / "y")) if way == "back" else (str(tmp_path / "x"), f"{root}y_{way}")
    )
    source, target = filled(places[0], count=400), places[1]
    slow = """
import time, doubtless.cli, doubtless.index.database.migration as module
copy, module.TOGETHER = module.migrate, 16
module.migrate = lambda *given, **named: copy(*given, **named, observer=lambda *_: time.sleep(0.1))
doubtless.cli.main()
"""
    command = [sys.executable, "-c", slow, "index", "migrate", source, target, "--json"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    until = time.monotonic() + 120
    while not _begun(target) and time.monotonic() < until and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    with pytest.raises(StoreError, match=r"is no index|is not finished: a migration into it was stopped"):
        open_index(target)
    done = migrate(source, target)
    assert (done.items, 0 < done.copied <= 400) == (400, True)
    with open_index(source) as one, open_index(target) as two:
        assert held(one) == held(two)


def _begun(target: str) -> bool:
    """Whether something of the copy is there."""
    if target.startswith("milvus:http"):
        from doubtless.index.milvus.index import MilvusIndex

        return MilvusIndex.look_at(target).exists
    name = target.removeprefix("milvus:")
    return Path(name).exists() or (Path(name).parent / f".{Path(name).name}.migrating").exists()


def test_the_command(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target = filled(tmp_path / "source"), f"{root}by_command"

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["doubtless", *arguments])
        with pytest.raises(SystemExit) as stopped:
            main()
        captured = capsys.readouterr()
        return int(stopped.value.code or 0), captured.out, captured.err

    code, out, _ = call("index", "migrate", source, target, "--json")
    assert (code, json.loads(out)["items"], json.loads(out)["copied"]) == (0, 50, 50)
    code, out, _ = call("index", "migrate", source, target)
    assert (code, "50 items (50 were there already)" in out, "are equal on both sides" in out) == (
        0,
        True,
        True,
    )
    code, out, _ = call("index", "stats", target, "--json")
    assert (code, json.loads(out)["items"], json.loads(out)["searched_by"]) == (0, 50, "flat")
    code, out, _ = call("index", "remove", target, "ü 1", "--json")
    assert (code, json.loads(out)["items"]) == (0, 49)
    code, out, _ = call("index", "compact", target, "--json")
    assert (code, json.loads(out)["items"]) == (0, 49)
    code, _, err = call("index", "migrate", source, target)
    assert (code, "is not equal to" in " ".join(err.split())) == (2, True)
