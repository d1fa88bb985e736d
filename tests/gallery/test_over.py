"""A gallery over vectors that stay where they are: a plain FAISS index, a collection of Qdrant made without us."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.errors import InputError, StoreError
from doubtless.gallery import Gallery
from doubtless.index.in_place.index import AROUND, StoreIndex
from doubtless.index.in_place.store import found_by

DIM, CLASSES, STRANGERS = 16, 40, 20


def drawn(count: int, seed: int, *, first: int = 0, classes: int = CLASSES) -> tuple[Any, list[str]]:
    """Unit vectors (count, 16) around their classes' centres, and the classes."""
    centre = np.random.default_rng(99).standard_normal((CLASSES + STRANGERS, DIM))
    rng = np.random.default_rng(seed)
    label = rng.integers(first, first + classes, size=count)
    vectors = centre[label] + 0.9 * rng.standard_normal((count, DIM))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32), [f"class {one}" for one in label]


ITEMS, LABELS = drawn(2000, 0)
QUERIES, SHOWN = drawn(600, 1)


class Plain:
    """Somebody's own: FAISS and a list of labels."""

    def __init__(self, index: faiss.Index | None = None) -> None:
        self.index = faiss.IndexFlatIP(DIM) if index is None else index
        self.index.add(ITEMS)
        self.labels, self.asked = list(LABELS), list[object]()

    def search(self, vectors: Any, k: int, where: Mapping[str, Any] | None = None) -> tuple[Any, Any, Any]:
        self.asked.append(where)
        scores, places = self.index.search(vectors, k)
        ids = [[None if place < 0 else f"item {place}" for place in row] for row in places]
        return ids, scores, [[None if place < 0 else self.labels[place] for place in row] for row in places]


class Fetching(Plain):
    def __len__(self) -> int:
        return int(self.index.ntotal)

    def fetch(self, ids: Sequence[str]) -> tuple[Any, Any]:
        places = [int(name.split()[1]) for name in ids]
        return ITEMS[places], [self.labels[place] for place in places]


def points(vectors: Any) -> Embedding:
    return Embedding.point(torch.from_numpy(vectors))


@pytest.mark.parametrize("store", [Plain, Fetching])
def test_it_is_calibrated_asked_and_opened_again(tmp_path: Path, store: type[Plain]) -> None:
    """What is promised is kept on queries to come, a tenth of which show what the store does not have."""
    with Gallery.over(store(), tmp_path / "beside", dim=DIM) as gallery:
        assert gallery.status()["calibrated"] is False
        record = gallery.calibrate(target_error=0.1, queries=QUERIES, labels=SHOWN)
        assert (record["queries"], record["labels"]) == (600, CLASSES)
        told = [answer.to_json() for answer in gallery.ask(points(QUERIES[:5]))]
    with Gallery.over(store(), tmp_path / "beside", writable=False) as gallery:
        assert [answer.to_json() for answer in gallery.ask(points(QUERIES[:5]))] == told
        fresh, labels = drawn(1800, 2)
        strange, _ = drawn(200, 3, first=CLASSES, classes=STRANGERS)
        answers = gallery.ask(points(np.concatenate([fresh, strange])), k=3)
        answered = np.array(answers.decisions()) == "answer"
        right = np.array(
            [answers[place].label == label for place, label in enumerate(labels)] + [False] * 200
        )
        assert answered[:1800].mean() > 0.6
        assert (~right[answered]).mean() <= 0.1
        assert answered[1800:].mean() < 0.5 * answered[:1800].mean()
        status, first = gallery.status(), answers[0]
        assert status["promise"]["met"]
        assert status["items"] == (2000 if store is Fetching else None)
        assert (status["in_place"]["without"] is None) == (store is Fetching)
        assert status["in_place"]["known"] > 1000
        assert [hit.id for hit in first.hits] == Plain().search(fresh[:1], 3)[0][0]
        assert 0 < first.probability < 1
        assert first.reason


def test_with_fetch_more_is_looked_at(tmp_path: Path) -> None:
    odd = points(-ITEMS[:1])  # unlike anything
    seen = {}
    for store in (Plain, Fetching):
        with Gallery.over(store(), tmp_path / store.__name__, dim=DIM) as gallery:
            gallery.calibrate(target_error=0.1, queries=QUERIES, labels=SHOWN)
            seen[store] = set(gallery.ask(odd)[0].parts)
            pairs = gallery.status()["pairs_calibrated"]
            assert pairs == (store is Fetching)
            if store is Plain:
                with pytest.raises(InputError, match="has no fetch"):
                    gallery.index.embedding([0])
    assert seen[Plain] < seen[Fetching]


def test_on_items_of_its_own(tmp_path: Path) -> None:
    ids = [f"item {place}" for place in range(0, 2000, 2)]
    with Gallery.over(Fetching(), tmp_path / "beside", dim=DIM, ids=ids) as gallery:
        assert gallery.calibrate(target_error=0.1)["queries"] == 1000
        assert gallery.index.ids() == ids
        assert torch.allclose(gallery.index.embedding([3]).location, torch.from_numpy(ITEMS[6:7]))
    with Gallery.over(Fetching(), tmp_path / "beside") as gallery:
        assert gallery.index.ids() == ids
        assert gallery.ask(points(QUERIES[:1]))[0].decision
    with (
        Gallery.over(Plain(), tmp_path / "other", dim=DIM) as gallery,
        pytest.raises(InputError, match="calibrated with labelled queries"),
    ):
        gallery.calibrate()


def test_it_is_only_read(tmp_path: Path) -> None:
    with Gallery.over(Fetching(), tmp_path / "beside", dim=DIM) as gallery:
        for change in (
            lambda: gallery.index.add(points(ITEMS[:1]), ["new"]),
            lambda: gallery.index.remove(["item 1"]),
        ):
            with pytest.raises(InputError, match="in a store of your own, which is only read here"):
                change()
    with (
        Gallery.over(Fetching(), tmp_path / "beside", writable=False) as gallery,
        pytest.raises(StoreError, match="open for reading"),
    ):
        gallery.calibrate(queries=QUERIES, labels=SHOWN)


def test_filters_are_the_stores_and_an_answer_from_a_part_says_so(tmp_path: Path) -> None:
    store = Fetching()
    with Gallery.over(store, tmp_path / "beside", dim=DIM) as gallery:
        gallery.calibrate(target_error=0.1, queries=QUERIES, labels=SHOWN)
        answer = gallery.ask(points(QUERIES[:1]), where={"year": 2024})[0]
        assert store.asked[-1] == {"year": 2024}
        assert any("not on the part that was searched" in warning for warning in answer.warnings)


def test_every_metric_gives_the_same_hits() -> None:
    cosine = found_by(Plain(), QUERIES[:9], 5, None, metric="cosine")
    squared = found_by(Plain(faiss.IndexFlatL2(DIM)), QUERIES[:9], 5, None, metric="squared-euclidean")

    class Turned(Plain):
        def __init__(self, turn: Any) -> None:
            super().__init__()
            self.turn = turn

        def search(self, vectors: Any, k: int, where: Any = None) -> tuple[Any, Any, Any]:
            ids, scores, labels = super().search(vectors, k)
            return ids, self.turn(scores.astype(np.float64)), labels

    away = found_by(Turned(lambda score: 1 - score), QUERIES[:9], 5, None, metric="cosine-distance")
    length = found_by(Turned(lambda score: np.sqrt(2 - 2 * score)), QUERIES[:9], 5, None, metric="euclidean")
    for other in (squared, away, length):
        assert other.ids == cosine.ids
        assert np.allclose(other.cosine, cosine.cosine, atol=1e-5)


def test_short_lists_and_items_without_label_and_a_label_that_changes(tmp_path: Path) -> None:
    class Small:
        label: str | None = "cat"

        def search(self, vectors: Any, k: int, where: Any = None) -> tuple[Any, Any, Any]:
            return (
                [["b", None, "a"]] * len(vectors),
                [[0.2, 9.0, 0.7]] * len(vectors),
                [[None, "x", self.label]],
            )

    store = Small()
    with StoreIndex.over(store, tmp_path / "beside", dim=2) as index:
        hits = index.search(points(np.ones((1, 2), np.float32)), 4)
        assert [item.id for item in index.items(hits.row[0, :2])] == ["a", "b"]
        assert hits.row[0, 2:].tolist() == [-1, -1]
        assert hits.label is not None
        assert hits.label[0].tolist() == [0, -1, -1, -1]
        store.label = "dog"
        after = index.search(points(np.ones((1, 2), np.float32)), 4)
        assert after.row[0, 0] not in hits.row
        assert index.rows_of(["a"]) == {"a": int(after.row[0, 0])}


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    class Wrong:
        def __init__(self, *result: Any) -> None:
            self.result = result

        def search(self, vectors: Any, k: int, where: Any = None) -> Any:
            return self.result

    query = np.ones((1, 2), np.float32)
    refused = [
        (([["a"]], [[0.5]]), "gives ids, scores and labels"),
        (([["a"]], [[0.5]], []), "one list per query"),
        (([["a"]], [[0.5, 0.1]], [["x"]]), "as many scores and labels per query"),
        (([["a"] * 4], [[0.5] * 4], [["x"] * 4]), "up to k = 3 ids"),
        (([["a"]], [[3.0]], [["x"]]), "gave 3, which is none of vectors of unit length"),
        (([["a"]], [[np.nan]], [["x"]]), "gave nan"),
    ]
    for result, sentence in refused:
        with pytest.raises(InputError, match=sentence):
            found_by(Wrong(*result), query, 3, None, metric="cosine")
    with pytest.raises(InputError, match="did you mean 'cosine'"):
        Gallery.over(Plain(), tmp_path / "a", dim=DIM, metric="cosin")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="has a method search"):
        Gallery.over(object(), tmp_path / "b", dim=DIM)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="say how long"):
        Gallery.over(Plain(), tmp_path / "c")
    with pytest.raises(InputError, match="belongs to a store of dimension 16, got 3"):
        Gallery.over(Plain(), tmp_path / "a", dim=3)
    Gallery.create(tmp_path / "d", embedding=points(ITEMS[:3])).close()
    with pytest.raises(InputError, match="holds items of its own"):
        Gallery.over(Plain(), tmp_path / "d")


def test_a_collection_of_qdrant_made_without_us_stays_as_it_is(tmp_path: Path) -> None:
    from qdrant_client import QdrantClient, models

    client = QdrantClient(path=str(tmp_path / "theirs"))
    client.create_collection(
        "shop", vectors_config=models.VectorParams(size=DIM, distance=models.Distance.COSINE)
    )
    client.upsert(
        "shop",
        [
            models.PointStruct(id=place, vector=vector.tolist(), payload={"kind": label})
            for place, (vector, label) in enumerate(zip(ITEMS[:800], LABELS[:800], strict=True))
        ],
    )

    class Shop:
        def search(self, vectors: Any, k: int, where: Any = None) -> tuple[Any, Any, Any]:
            wanted = [models.QueryRequest(query=one.tolist(), limit=k, with_payload=True) for one in vectors]
            found = [answer.points for answer in client.query_batch_points("shop", wanted)]
            return (
                [[point.id for point in points] for points in found],
                [[point.score for point in points] for points in found],
                [[point.payload["kind"] for point in points] for points in found],
            )

        def fetch(self, ids: Sequence[str]) -> tuple[Any, Any]:
            found = client.retrieve("shop", [int(name) for name in ids], with_vectors=True)
            place = {point.id: point for point in found}
            return (
                [place[int(name)].vector for name in ids],
                [place[int(name)].payload["kind"] for name in ids],
            )

    with Gallery.over(Shop(), tmp_path / "beside", dim=DIM) as gallery:
        gallery.calibrate(target_error=0.1, queries=QUERIES[:300], labels=SHOWN[:300])
        fresh, labels = drawn(200, 5)
        answers = gallery.ask(points(fresh))
        answered = [place for place, decision in enumerate(answers.decisions()) if decision == "answer"]
        assert len(answered) > 60
        assert sum(answers[place].label != labels[place] for place in answered) <= 0.15 * len(answered)
    assert [one.name for one in client.get_collections().collections] == ["shop"]
    assert client.count("shop").count == 800
    client.close()


def test_without_its_label_is_exact_while_the_list_is_long_enough() -> None:
    """Against a search of a store from which the label was taken out."""
    from doubtless.gallery.calibration.fit import hits_without_label
    from doubtless.search.hits import Hits

    names = sorted(set(LABELS))
    code = torch.tensor([names.index(label) for label in LABELS])
    score = torch.from_numpy(QUERIES[:50] @ ITEMS.T)
    own = torch.tensor([names.index(label) for label in SHOWN[:50]])
    best = score.topk(AROUND)
    hits = Hits(best.indices, best.values, 2 - 2 * best.values, label=code[best.indices])
    found = hits_without_label(hits, own, 60)
    wanted = score.masked_fill(code == own.unsqueeze(1), -torch.inf).topk(60)
    assert torch.equal(found.row, wanted.indices)
    assert torch.equal(found.score, wanted.values)
