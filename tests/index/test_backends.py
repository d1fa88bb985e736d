"""One suite for every backend: a folder, Milvus (a file, a server), PostgreSQL, Qdrant, LanceDB, a plugin.

What an index holds, finds and refuses is the same on all, down to the sentence and the row.
"""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from doubtless.calibration.fit import Targets
from doubtless.embedding import Embedding
from doubtless.errors import InputError, StoreError
from doubtless.gallery import Gallery
from doubtless.index.backends import INDEXES, create_index_at, open_index
from doubtless.index.base import Index
from doubtless.index.items import Item
from tests.gallery.galleries import gallery as made_gallery
from tests.index.memory_index import MemoryIndex
from tests.index.test_index import POINTS, REFUSED, variances_of
from tests.index.test_search import SCORES, WHERE, assert_found, names
from tests.reference import postgres_server
from tests.reference.gallery import DRAWN, brute_force, drawn
from tests.reference.milvus_server import serving

BACKENDS = ("local", "lite", "server", "memory", "postgres", "qdrant", "lancedb")
Place = Callable[[str], str]


@pytest.fixture(scope="module", params=BACKENDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A new INDEX for every call."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "server":
        with serving(folder / "data") as address:
            yield lambda name: f"milvus:{address}/{name}_{uuid.uuid4().hex[:8]}"
        return
    if request.param == "postgres":
        with postgres_server.serving() as address:
            yield lambda name: f"{address}&table={name}_{uuid.uuid4().hex[:8]}"
        return
    if request.param == "memory":
        INDEXES.register("memory", MemoryIndex)
    prefix = {"local": "", "lite": "milvus:"}.get(request.param, f"{request.param}:")
    yield lambda name: f"{prefix}{folder}/{name}-{uuid.uuid4().hex[:8]}"


def created(name: str, embedding: Embedding, **options: Any) -> Index:
    return create_index_at(
        name, family=embedding.family, dim=embedding.dim, variances=variances_of(embedding), **options
    )


def fill_small(index: Index) -> Index:
    index.add(
        POINTS[:3],
        ["a", "b", "c"],
        labels=["cat", None, "dog"],
        paths=["a.png", Path("b.png"), None],
        metadata=[{"shelf": 1, "tags": ["x", "ü"]}, None, {}],
    )
    return index


@pytest.fixture
def small(place: Place) -> Iterator[Index]:
    with create_index_at(place("small"), family="point", dim=4, model="resnet-1") as index:
        yield fill_small(index)


@pytest.mark.parametrize("family", list(DRAWN))
def test_what_was_stored_comes_back_and_is_found(place: Place, family: str) -> None:
    """Written in two sittings, some removed: bit for bit the distributions, and what brute force finds."""
    name, gallery, queries = place("index"), drawn(family, 60, seed=1), drawn(family, 7, seed=2)
    with created(name, gallery) as index:
        index.add(gallery[:40], names(40))
    with open_index(name, writable=True) as index:
        index.add(gallery[40:], names(20, 40))
        index.remove(["item 3", "item 17", "item 51"])
        kept = [item for item in range(60) if item not in (3, 17, 51)]
        for score, k in itertools.product(SCORES, (1, 10, 100)):
            hits = index.search(queries, k, score=score)  # type: ignore[arg-type]
            assert_found(hits, brute_force(queries, gallery[kept], k, score=score), kept, k)
    with open_index(name) as index:
        assert (len(index), index.rows.tolist()) == (57, kept)
        for parameter, value in index.embedding().parameters.items():
            assert torch.equal(value, gallery[kept].parameters[parameter])
        for parameter, value in index.embedding([59, 0, 59]).parameters.items():
            assert torch.equal(value, gallery[[59, 0, 59]].parameters[parameter])
        assert index.ids() == [f"item {item}" for item in kept]


def test_items_updates_and_rows(small: Index) -> None:
    """A row names one version of one item for ever; an update keeps what it is not given."""
    assert small.items(torch.tensor([[2], [0], [1]])) == [
        Item("c", "dog", None, {}),
        Item("a", "cat", "a.png", {"shelf": 1, "tags": ["x", "ü"]}),
        Item("b", None, "b.png", {}),
    ]
    assert (small.label_names, small.labels.tolist()) == (["cat", "dog"], [0, -1, 1])
    assert (len(small), small.family, small.dim, small.model) == (3, "point", 4, "resnet-1")
    assert small.rows_of(["c", "a", "nobody"]) == {"c": 2, "a": 0}
    small.update(POINTS[3:], ["a"])
    assert small.items([3]) == [Item("a", "cat", "a.png", {"shelf": 1, "tags": ["x", "ü"]})]
    assert torch.equal(small.embedding([3]).location, POINTS[3:].location)
    small.update(POINTS[:1], ["a"], labels=["bird"], paths=[""], metadata=[{"shelf": 2}])
    assert small.items([4]) == [Item("a", "bird", "", {"shelf": 2})]
    small.update(POINTS[:1], ["a"], labels=[None])
    assert small.items([5]) == [Item("a", None, "", {"shelf": 2})]
    small.remove(["b"])
    small.compact()
    small.add(POINTS[1:2], ["b"])
    assert (len(small), small.rows.tolist(), small.labels.tolist()) == (3, [2, 5, 6], [1, -1, -1])
    assert (small.ids(), small.label_names) == (["c", "a", "b"], ["cat", "dog", "bird"])
    for gone in (0, 1, 3, -1, 99):
        with pytest.raises(InputError, match=f"Row {gone} is not in the index"):
            small.items([gone])
        with pytest.raises(InputError, match=f"Row {gone} is not in the index"):
            small.embedding([2, gone])
    with pytest.raises(InputError, match="Rows are whole numbers"):
        small.items(torch.tensor([0.5]))


def test_what_does_not_fit_changes_nothing(small: Index) -> None:
    before = small.search(POINTS, 3)
    for embedding, ids, options, sentence in REFUSED:
        with pytest.raises(InputError, match=sentence):
            small.add(embedding, ids, **options)
    for change in (lambda: small.remove(["a", "z"]), lambda: small.update(POINTS[:2], ["a", "z"])):
        with pytest.raises(InputError, match="has no items 'z'; nothing was changed"):
            change()
    with pytest.raises(InputError, match="come from model 'other'"):
        small.search(POINTS, 1, model="other")
    small.remove([])
    assert (len(small), small.ids(), small.label_names) == (3, ["a", "b", "c"], ["cat", "dog"])
    after = small.search(POINTS, 3, model="resnet-1")
    assert torch.equal(after.row, before.row)
    assert torch.equal(after.score, before.score)


@pytest.fixture(scope="module")
def shelves(place: Place) -> Iterator[Index]:
    gallery = drawn("gaussian-scalar", 120, seed=1)
    metadata = [
        {
            "shelf": item % 5,
            **({"sold": True} if item % 2 == 0 else {}),
            "kind of": "a b" if item % 7 == 0 else "ä",
        }
        for item in range(120)
    ]
    with created(place("shelves"), gallery) as index:
        labels = [("cat", "dog", None)[item % 3] for item in range(120)]
        index.add(gallery, names(120), labels=labels, metadata=metadata)
        index.remove(["item 0", "item 30"])
        yield index


@pytest.mark.parametrize(("where", "holds"), WHERE)
def test_filters(shelves: Index, where: dict[str, Any], holds: Callable[[int], bool]) -> None:
    queries = drawn("gaussian-scalar", 5, seed=9)
    kept = [item for item in range(120) if holds(item) and item not in (0, 30)]
    gallery = drawn("gaussian-scalar", 120, seed=1)[torch.tensor(kept, dtype=torch.long)]
    for score in SCORES:
        hits = shelves.search(queries, 10, where=where, score=score)  # type: ignore[arg-type]
        assert_found(hits, brute_force(queries, gallery, 10, score=score), kept, 10)
    rows = shelves.rows_where(where)
    assert shelves.ids(rows) == [f"item {item}" for item in kept]


@pytest.mark.parametrize("text", ["ITEM 1", "Dog", "a B", "Ä", "3", "kind", "_", "%", '"', "\\", "nothing"])
def test_items_that_mention_a_text(shelves: Index, text: str) -> None:
    """Ids, labels and values of metadata, in capitals or not; neither names of metadata nor truth values."""
    kept = []
    for row, item in zip(shelves.rows.tolist(), shelves.items(shelves.rows), strict=True):
        values = [str(one) for one in item.metadata.values() if not isinstance(one, bool)]
        if any(text.lower() in word.lower() for word in (item.id, item.label or "", *values)):
            kept.append(row)
    assert shelves.rows_with(text).tolist() == kept


def test_every_change_is_another_version(small: Index) -> None:
    seen = {small.version}
    small.update(POINTS[:1], ["a"])
    seen.add(small.version)
    small.remove(["b"])
    seen.add(small.version)
    small.attach("note", {}, {"a": 1})
    seen.add(small.version)
    assert len(seen) == 3


def test_refused_searches(shelves: Index) -> None:
    query = drawn("gaussian-scalar", 1)
    refused: list[tuple[Callable[[], object], str]] = [
        (lambda: shelves.search(query, 0), "k must be at least 1, got 0"),
        (lambda: shelves.search(query, 1, score="distance"), "There is no score 'distance'"),  # type: ignore[arg-type]
        (
            lambda: shelves.search(Embedding.point(torch.ones(1, 8)), 1),
            "holds gaussian embeddings, got point",
        ),
        (lambda: shelves.search(drawn("gaussian-scalar", 1, dim=4), 1), "dimension 8, got embeddings of 4"),
        (lambda: shelves.search(drawn("gaussian-diagonal", 1), 1), "stores one variance per item, got 8"),
        (
            lambda: shelves.search(query, 1, where={"shelf": {"more": 1}}),
            "The filter on 'shelf' takes strings",
        ),
        (
            lambda: shelves.search(Embedding.gaussian(torch.zeros(1, 8), torch.ones(1, 1)), 1),
            "Query 0 has a location of length 0",
        ),
    ]
    for call, sentence in refused:
        with pytest.raises(InputError, match=sentence):
            call()


def test_a_gaussian_query_at_the_origin_has_distances(shelves: Index) -> None:
    query, gallery = (
        Embedding.gaussian(torch.zeros(1, 8), torch.ones(1, 1)),
        drawn("gaussian-scalar", 120, seed=1),
    )
    kept = [item for item in range(120) if item not in (0, 30)]
    hits = shelves.search(query, 5, score="expected-distance")
    assert_found(hits, brute_force(query, gallery[kept], 5, score="expected-distance"), kept, 5)


def test_empty_one_item_and_more_than_there_are(place: Place) -> None:
    gallery, queries = drawn("vmf", 1), drawn("vmf", 3, seed=1)
    with created(place("empty"), gallery) as index:
        hits = index.search(queries, 4)
        assert (len(index), hits.row.tolist(), hits.label) == (0, [[-1] * 4] * 3, None)
        assert bool((hits.score == -torch.inf).all())
        assert bool((hits.expected_squared_distance == torch.inf).all())
        assert (index.labels.tolist(), index.rows.tolist(), index.ids()) == ([], [], [])
        assert len(index.embedding()) == 0
        index.add(gallery, ["only"])
        assert index.search(queries, 2).row.tolist() == [[0, -1]] * 3
        assert index.search(queries[:0], 2).row.shape == (0, 2)
        assert index.search(queries, 2, where={"label": "cat"}).row.tolist() == [[-1, -1]] * 3
        index.remove(["only"])
        assert (index.search(queries, 2).row.tolist(), len(index)) == ([[-1, -1]] * 3, 0)


def test_equal_items_come_in_the_order_of_their_rows_even_in_one_dimension(place: Place) -> None:
    points = Embedding.point(torch.tensor([[2.0], [2.0], [-1.0], [3.0]]))
    with create_index_at(place("line"), family="point", dim=1) as index:
        index.add(points, names(4))
        assert index.search(points[:1], 4).row.tolist() == [[0, 1, 3, 2]]
        assert torch.equal(index.embedding().location, points.location)


def test_hits_carry_labels_and_doubt_and_samples_are_kept_as_von_mises_fisher(place: Place) -> None:
    generator = torch.Generator().manual_seed(0)
    samples = torch.randn(1, 5, 8, generator=generator) + 0.3 * torch.randn(6, 5, 8, generator=generator)
    gallery = Embedding.empirical(samples)
    with create_index_at(place("samples"), family="empirical", dim=8) as index:
        index.add(gallery, names(5), labels=["cat", None, "dog", "cat", None])
        assert (index.family, index.settings.variances) == ("vmf", 1)
        hits = index.search(gallery, 6)
        assert hits.row[:, 0].tolist() == list(range(5))
        assert hits.label[:, 0].tolist() == [0, -1, 1, 0, -1]
        assert (hits.label[:, 5].tolist(), hits.uncertainty[:, 5].tolist()) == ([-1] * 5, [torch.inf] * 5)
        torch.testing.assert_close(hits.uncertainty[:, 0], gallery.uncertainty)
        torch.testing.assert_close(hits.query_uncertainty, gallery.uncertainty)


def test_attachments_of_every_size(small: Index) -> None:
    assert small.attached("calibrator") is None
    large = {"weight": torch.randn(600, 512), "count": torch.tensor([1, 2]), "none": torch.zeros(0, 3)}
    small.attach("calibrator", large, {"kind": "isotonic", "text": "ü" * 70_000})
    small.attach("calibrator", large, {"kind": "isotonic", "levels": [0.1, 0.9]})
    found, record = small.attached("calibrator")  # type: ignore[misc]
    assert record == {"kind": "isotonic", "levels": [0.1, 0.9]}
    assert found.keys() == large.keys()
    assert all(torch.equal(found[name], value) for name, value in large.items())
    small.attach("doubt/of 'all'", {}, {})
    assert small.stats()["attachments"] == ["calibrator", "doubt/of 'all'"]
    with pytest.raises(InputError, match="keep infinite numbers in tensors"):
        small.attach("risk", {}, {"threshold": float("inf")})
    small.close()
    with open_index(small.path) as reader:
        assert reader.attached("doubt/of 'all'") == ({}, {})
        assert torch.equal(reader.attached("calibrator")[0]["weight"], large["weight"])  # type: ignore[index]


def test_names_of_every_kind(place: Place) -> None:
    """Quotes, escapes, other scripts, and what looks like a filter, in ids, labels, paths and metadata."""
    odd = ['a"b', "a'b", "a\\", "ü€𝔘", "row >= 0", "]) or (row >= 0", " ", "\n\t", "%s{}", "x" * 3000]
    with create_index_at(place("odd"), family="point", dim=2) as index:
        points = Embedding.point(torch.randn(10, 2, generator=torch.Generator().manual_seed(0)))
        index.add(points, odd, labels=odd, paths=odd, metadata=[{"name": name, "n": [name]} for name in odd])
        assert index.items(index.rows) == [
            Item(name, name, name, {"name": name, "n": [name]}) for name in odd
        ]
        assert index.rows_of(odd) == {name: row for row, name in enumerate(odd)}
        for row, name in enumerate(odd):
            for where in ({"label": name}, {"name": [name]}, {"name": name, "label": [name, "z"]}):
                assert index.search(points[:1], 10, where=where).row[0].tolist() == [row, *[-1] * 9]
        index.remove(odd[:5])
        assert index.ids() == odd[5:]


def test_closed_read_only_and_existing_indexes_say_so(small: Index) -> None:
    small.close()
    small.close()
    for call in (lambda: small.search(POINTS, 1), lambda: len(small), lambda: small.attached("x")):
        with pytest.raises(StoreError, match="is closed"):
            call()
    with open_index(small.path) as reader:
        changes = (
            lambda: reader.add(POINTS[3:], ["d"]),
            lambda: reader.update(POINTS[3:], ["a"]),
            lambda: reader.remove(["a"]),
            lambda: reader.compact(),
            lambda: reader.attach("x", {}, {}),
        )
        for change in changes:
            with pytest.raises(StoreError, match="open for reading; open it with writable=True"):
                change()
        assert reader.ids() == ["a", "b", "c"]
    with pytest.raises(InputError, match="exists already; an index is only created where there is nothing"):
        create_index_at(small.path, family="point", dim=4)
    with open_index(small.path) as reader:
        assert reader.ids() == ["a", "b", "c"]


def test_no_index_there_and_indexes_that_cannot_be(place: Place) -> None:
    for writable in (False, True):
        with pytest.raises(StoreError, match="is no index: there is no"):
            open_index(place("nowhere"), writable=writable)
    with pytest.raises(InputError, match="did you mean 'gaussian'"):
        create_index_at(place("wrong"), family="gausian", dim=4)
    with pytest.raises(InputError, match="stores 1 or 4 variances per item, got 2"):
        create_index_at(place("wrong"), family="gaussian", dim=4, variances=2)


def test_stats(small: Index) -> None:
    found = small.stats()
    assert (found["items"], found["labels"], found["attachments"]) == (3, 2, [])
    assert (found["searched_by"], found["recall@10"]) == ("flat", 1.0)
    assert (found["family"], found["dim"], found["model"]) == ("point", 4, "resnet-1")
    assert "identity" not in found


def test_any_changes_leave_what_they_leave_in_a_folder(place: Place, tmp_path: Path) -> None:
    """The same random changes there and here: same rows, items, labels, distributions and hits."""
    draw, queries = random.Random(1), drawn("projected-diagonal", 3, dim=4, seed=99)
    example = drawn("projected-diagonal", 1, dim=4)
    with created(str(tmp_path / "index"), example) as local, created(place("index"), example) as other:
        ids: list[str] = []
        for step in range(25):
            kind, count = (
                draw.choice(["add", "add", "add", "update", "remove", "attach"]),
                draw.choice([0, 1, 3, 9]),
            )
            chosen = draw.sample(ids, min(len(ids), count))
            fresh = [f"{step} {number}" for number in range(count)] if kind == "add" else chosen
            embedding = drawn("projected-diagonal", max(1, len(fresh)), dim=4, seed=step)[: len(fresh)]
            options: dict[str, Any] = {
                "labels": [draw.choice(["cat", "dog", None, f"new {step}"]) for _ in fresh]
            }
            options |= (
                {"metadata": [{"step": step, "odd": bool(step % 2)} for _ in fresh]} if step % 3 else {}
            )
            for index in (local, other):
                if kind == "attach":
                    index.attach("doubt", {"step": torch.full((5,), float(step))}, {"step": step})
                elif kind == "remove":
                    index.remove(chosen)
                else:
                    (index.add if kind == "add" else index.update)(embedding, fresh, **options)
            ids = local.ids()
        assert len(ids) > 10  # enough that something is left to compare
        assert torch.equal(other.rows, local.rows)
        assert torch.equal(other.labels, local.labels)
        assert (other.items(other.rows), len(other)) == (local.items(local.rows), len(local))
        assert other.label_names == local.label_names
        assert other.attached("doubt")[1] == local.attached("doubt")[1]  # type: ignore[index]
        for name, value in local.embedding().parameters.items():
            assert torch.equal(other.embedding().parameters[name], value)
        for where, score in itertools.product([None, {"odd": True}, {"label": ["cat", None]}], SCORES):
            mine, there = (index.search(queries, 40, where=where, score=score) for index in (other, local))  # type: ignore[arg-type]
            for field in ("row", "score", "expected_squared_distance", "label", "uncertainty"):
                assert torch.equal(getattr(mine, field), getattr(there, field)), field


def test_calibrated_answers_are_those_of_a_folder(place: Place, tmp_path: Path) -> None:
    """Calibrator, risk and doubt lie with the collection; reopened, it answers as a folder does."""
    gallery, labels = made_gallery(200, classes=10)
    queries, _ = made_gallery(20, classes=10, seed=5)
    answers, other = [], place("answers")
    for name in (str(tmp_path / "index"), other):
        with created(name, gallery) as index:
            index.add(gallery, names(200), labels=[f"class {label}" for label in labels.tolist()])
            Gallery(index).calibrate(Targets(target_error=0.2), seed=0)
        with open_index(name) as index:
            answers.append([answer.to_json() for answer in Gallery(index).ask(queries, 5)])
    assert answers[0] == answers[1]


def test_a_question_looks_at_what_it_found_and_not_at_every_item(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a gallery in a database: each question would else wait for all of it to come over."""
    gallery, labels = made_gallery(120, classes=6)
    queries, _ = made_gallery(3, classes=6, seed=5)
    with created(place("asked"), gallery) as index:
        index.add(gallery, names(120), labels=[f"class {label}" for label in labels.tolist()])
        asked = Gallery(index)
        asked.calibrate(Targets(target_error=0.3), seed=0)
        expected = [answer.to_json() for answer in asked.ask(queries, 5)]
        if isinstance(index, MemoryIndex):
            pytest.skip("A plugin that overrides nothing looks at all it has.")
        for every in ("rows", "labels", "ids"):
            monkeypatch.setattr(type(index), every, property(lambda _, what=every: pytest.fail(what)))
        assert [answer.to_json() for answer in asked.ask(queries, 5)] == expected


def test_directions_are_those_of_rows_that_may_repeat_or_be_gone(small: Index) -> None:
    small.remove(["b"])
    wanted = POINTS.direction[[2, 0, 2]].float()
    assert torch.allclose(small.directions(torch.tensor([2, 0, 2])), wanted)
    assert small.directions(torch.tensor([0, 1]))[1].tolist() == [0] * 4
    assert small.directions(torch.tensor([], dtype=torch.long)).shape == (0, 4)


def test_searches_while_it_is_written(place: Place) -> None:
    """Each search sees an addition whole or not at all, whichever thread asks."""
    lot = drawn("point", 50, dim=4, seed=3)
    with create_index_at(place("busy"), family="point", dim=4) as index:
        index.add(lot, names(50))

        def look(_: int) -> int:
            return int(index.search(lot[:1], 400).found.sum())

        with ThreadPoolExecutor(3) as threads:
            counts = threads.map(look, range(24))
            for number in range(1, 6):
                index.add(lot, names(50, 50 * number))
            assert set(counts) <= {50 * number for number in range(1, 7)}
        assert look(0) == 300
