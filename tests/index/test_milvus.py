"""What is Milvus's alone: approximate kinds, filters, what it cannot take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubtless.errors import InputError, StoreError
from doubtless.index.backends import open_index
from doubtless.index.milvus.conditions import expression
from doubtless.index.milvus.connection import MILVUS, _LiteServer
from doubtless.index.milvus.index import MilvusIndex
from doubtless.index.milvus.tables import _check_version
from doubtless.index.remote.facts import filter_keys_of
from doubtless.ingest.create import create_index
from doubtless.ingest.shards import EmbeddedShard
from tests.index.test_search import names
from tests.reference.gallery import drawn

GALLERY = drawn("gaussian-scalar", 40, dim=4, seed=1)


@pytest.fixture
def name(tmp_path: Path) -> str:
    return f"milvus:{tmp_path}/gallery.db"


def made(name: str, count: int = 10, **options: object) -> MilvusIndex:
    index = MilvusIndex.create(name, family="gaussian", dim=4, variances=1, **options)  # type: ignore[arg-type]
    index.add(GALLERY[:count], names(count), labels=["cat"] * count)
    return index


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_approximate_kinds_find_nearly_everything(name: str, kind: str) -> None:
    gallery, queries = drawn("vmf", 3000, dim=16, seed=1), drawn("vmf", 50, dim=16, seed=2)
    with MilvusIndex.create(name, family="vmf", dim=16, kind=kind) as index:  # type: ignore[arg-type]
        index.add(gallery, names(3000))
    with open_index(name) as index:
        for score in ("direction", "expected-distance"):
            hits = index.search(queries, 10, score=score)  # type: ignore[arg-type]
            values = queries.direction @ gallery.direction.T
            values = values * gallery.resultant if score == "expected-distance" else values
            exact = values.topk(10).indices
            found = [
                len(set(own) & set(wanted))
                for own, wanted in zip(hits.row.tolist(), exact.tolist(), strict=True)
            ]
            assert np.mean(found) >= 9
        assert (index.stats()["searched_by"], index.stats()["recall@10"]) == (kind, None)


def test_what_milvus_cannot_take_is_refused_before_anything_is_stored(name: str) -> None:
    with made(name) as index:
        one, long = GALLERY[20:21], "x" * 70_000
        refused = [
            (lambda: index.add(one, [long]), "has 70,000 bytes; Milvus takes up to 65,535"),
            (lambda: index.add(one, ["new"], labels=[long]), "The label that starts"),
            (lambda: index.add(one, ["new"], paths=[long]), "The path of item 'new'"),
            (lambda: index.add(one, ["new"], metadata=[{"a": long}]), "The metadata of item 'new'"),
            (lambda: index.add(one, ["new"], metadata=[{str(n): n for n in range(3000)}]), "too many names"),
        ]
        for call, sentence in refused:
            with pytest.raises(InputError, match=sentence):
                call()
        assert (len(index), index.rows.tolist(), index.label_names) == (10, list(range(10)), ["cat"])
    with pytest.raises(InputError, match="at most 32,768 numbers per vector"):
        MilvusIndex.create(f"{name}-wide", family="gaussian", dim=20_000)


def test_places_that_are_something_else(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "letter").write_text("mine")
    for place in ("file", "folder"):
        with pytest.raises(InputError, match="nothing of Milvus Lite's"):
            MilvusIndex.create(f"milvus:{tmp_path}/{place}", family="point", dim=2)
    for wrong in ("milvus:", "milvus:http://", "milvus:http://host:1/a/b", "milvus:http://host:1/a-b"):
        with pytest.raises(InputError, match=r"accepted: milvus:"):
            open_index(wrong)
    with pytest.raises(StoreError, match="did not do what was asked"):
        open_index("milvus:http://127.0.0.1:9")
    assert MILVUS.parse("milvus:https://host:1/shoes").parts == "shoes_parts"


def listening_ports() -> set[str]:
    """Inodes of this process's sockets that wait for connections over a network."""
    own = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
    lines = [
        line.split()
        for kind in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{kind}").read_text().splitlines()
    ]
    return {inode for _, _, _, state, *_, inode in (line[:10] for line in lines) if state == "0A"} & {
        link.removeprefix("socket:[").removesuffix("]") for link in own
    }


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_servers_that_keep_one_vector_of_an_item_are_refused() -> None:
    """As 2.3.5 says it, the last server that PyPI has; Lite has versions of its own."""
    for served in ("v2.4.0", "2.6.1", "v3.0.1-dev", "milvus_lite-3.2.2", "unknown"):
        _check_version(served, "milvus:http://host:1/shoes")
    for served in ("v2.3.5-lite", "v2.2.16", "v1.1.1"):
        with pytest.raises(InputError, match=f"is a Milvus {served}, which keeps one vector of an item"):
            _check_version(served, "milvus:http://host:1/shoes")


def test_nobody_else_reaches_milvus_lite(name: str, tmp_path: Path) -> None:
    """It knows no users: whoever could connect could delete everything."""
    before = listening_ports()
    with made(name):
        assert listening_ports() == before
        folder = _LiteServer._running[tmp_path / "gallery.db"]._folder
        assert folder is not None
        (socket_at,) = Path(folder).iterdir()
        assert socket_at.is_socket()
        assert socket_at.parent.stat().st_mode & 0o777 == 0o700
        if os.geteuid() == 0:
            script = (
                "import os, socket, sys; os.setgid(65534); os.setuid(65534)\n"
                "socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
            )
            other = subprocess.run(
                [sys.executable, "-c", script, str(socket_at)], capture_output=True, text=True, check=False
            )
            assert "PermissionError" in other.stderr
        left = set(Path(tempfile.gettempdir()).glob("doubtless-*"))
        again = "import sys; from doubtless.index.backends import open_index; open_index(sys.argv[1])"
        second = subprocess.run(
            [sys.executable, "-c", again, name], capture_output=True, text=True, check=False
        )
        assert "is open in another process" in second.stderr
        assert set(Path(tempfile.gettempdir()).glob("doubtless-*")) == left
    assert not socket_at.parent.exists()


def test_a_collection_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    from pymilvus import MilvusClient

    client = MilvusClient(f"{tmp_path}/theirs.db")
    client.create_collection("doubtless", dimension=4)
    client.insert("doubtless", [{"id": 1, "vector": [1.0, 0, 0, 0]}])
    client.close()
    from milvus_lite.server_manager import server_manager_instance

    server_manager_instance.release_server(f"{tmp_path}/theirs.db")
    with pytest.raises(InputError, match="a collection 'doubtless' that is none of doubtless's"):
        MilvusIndex.create(f"milvus:{tmp_path}/theirs.db", family="point", dim=4)
    with pytest.raises(StoreError, match="is no index"):
        open_index(f"milvus:{tmp_path}/theirs.db")


def test_a_creation_is_whole_or_not_there(name: str) -> None:
    def parts(broken: bool):
        for start in (0, 10):
            if start and broken:
                raise InputError("the disk of the images is gone.")
            lot = GALLERY[start : start + 10]
            yield EmbeddedShard(lot, names(10, start), [None] * 10, [None] * 10, [{}] * 10, [])

    with pytest.raises(InputError, match="images is gone"):
        create_index(name, parts(broken=True))
    with pytest.raises(StoreError, match="is no index"):
        open_index(name)
    done = create_index(name, parts(broken=False), run="runs/first", model="m")
    assert (done.items, done.path) == (20, name)
    with open_index(name) as index:
        assert (len(index), index.model, index.attached("model") is not None) == (20, "m", True)
    with pytest.raises(InputError, match="exists already"):
        create_index(name, parts(broken=False))


PLAIN = st.one_of(
    st.text(max_size=3), st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, 1.0, -2.0, None])
)


@given(st.dictionaries(st.sampled_from("abc"), PLAIN), st.sampled_from("abc"), st.lists(PLAIN, max_size=3))
def test_facts_hold_as_json_compares(metadata: dict[str, object], key: str, wanted: list[object]) -> None:
    """An item fulfils a filter exactly where a value equals one that is wanted, a truth value being no number."""

    def same(one: object, other: object) -> bool:
        return isinstance(one, bool) == isinstance(other, bool) and one == other

    holds = any(same(metadata.get(key), value) for value in wanted)
    facts = filter_keys_of(json.dumps(metadata))
    said = expression({key: wanted}, [])

    def array_contains_any(_: object, values: list[int]) -> bool:
        return bool(set(values) & set(facts))

    names_ = {"array_contains_any": array_contains_any, "facts": facts, "row": 0}
    names_["array_contains"] = lambda _, value: value in facts
    assert eval(said, {"__builtins__": {}}, names_) == holds
