"""What goes into an index comes out again, changes are whole, and what does not fit is refused with a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.errors import InputError, StoreError
from doubtless.index.folder import FolderIndex
from doubtless.index.items import Item
from tests.reference.gallery import DRAWN, drawn

POINTS = Embedding.point(torch.eye(4))


def variances_of(embedding: Embedding) -> int | None:
    variance = embedding.parameters.get("variance")
    return None if variance is None else variance.shape[1]


@pytest.fixture
def index(tmp_path: Path):
    with FolderIndex.create(tmp_path / "index", family="point", dim=4, model="resnet-1") as index:
        index.add(
            POINTS[:3],
            ["a", "b", "c"],
            labels=["cat", None, "dog"],
            paths=["a.png", Path("b.png"), None],
            metadata=[{"shelf": 1, "tags": ["x", "ü"]}, None, {}],
        )
        yield index


@pytest.mark.parametrize("family", list(DRAWN))
def test_distributions_come_back_as_they_were(tmp_path: Path, family: str) -> None:
    stored = drawn(family, 20)
    with FolderIndex.create(
        tmp_path / "index", family=stored.family, dim=8, variances=variances_of(stored)
    ) as index:
        index.add(stored, [str(item) for item in range(20)])
        index.remove(["7"])
    with FolderIndex.open(tmp_path / "index") as index:
        kept = [item for item in range(20) if item != 7]
        for name, value in index.embedding().parameters.items():
            assert torch.equal(value, stored[kept].parameters[name])
        some = index.embedding([19, 0, 19])
        for name, value in some.parameters.items():
            assert torch.equal(value, stored[[19, 0, 19]].parameters[name])
        assert index.rows.tolist() == kept


def test_float64_and_scalar_variances_fit_into_a_diagonal_index(tmp_path: Path) -> None:
    wide = drawn("gaussian-scalar", 5).to(torch.float64)
    with FolderIndex.create(tmp_path / "index", family="gaussian", dim=8) as index:
        index.add(wide, list("abcde"))
        assert torch.equal(index.embedding().parameters["variance"], wide.variance.float())


def test_items(index: FolderIndex) -> None:
    assert index.items([0, 1, 2]) == [
        Item("a", "cat", "a.png", {"shelf": 1, "tags": ["x", "ü"]}),
        Item("b", None, "b.png", {}),
        Item("c", "dog", None, {}),
    ]
    assert index.items(torch.tensor([[2], [0]])) == index.items([2, 0])
    assert index.ids() == ["a", "b", "c"]
    assert (index.label_names, index.labels.tolist()) == (["cat", "dog"], [0, -1, 1])
    assert (len(index), index.family, index.dim, index.model) == (3, "point", 4, "resnet-1")


def test_update_keeps_what_is_not_given(index: FolderIndex) -> None:
    index.update(POINTS[3:], ["a"])
    assert index.items([3]) == [Item("a", "cat", "a.png", {"shelf": 1, "tags": ["x", "ü"]})]
    assert torch.equal(index.embedding([3]).location, POINTS[3:].location)
    index.update(POINTS[:1], ["a"], labels=["bird"], paths=[None], metadata=[{"shelf": 2}])
    assert index.items([4]) == [Item("a", "bird", None, {"shelf": 2})]
    index.update(POINTS[:1], ["a"], labels=[None])
    assert index.items([5]) == [Item("a", None, None, {"shelf": 2})]
    assert (len(index), index.rows.tolist(), index.labels.tolist()) == (3, [1, 2, 5], [-1, 1, -1])
    assert index.label_names == ["cat", "dog", "bird"]


def test_rows_name_one_version_of_one_item_for_ever(index: FolderIndex) -> None:
    index.remove(["b"])
    index.update(POINTS[:1], ["a"])
    index.compact()
    index.add(POINTS[1:2], ["b"])
    assert index.rows.tolist() == [2, 3, 4]
    assert index.ids([2, 3, 4]) == ["c", "a", "b"]
    for gone in (0, 1, -1, 99):
        with pytest.raises(InputError, match=f"Row {gone} is not in the index"):
            index.items([gone])
        with pytest.raises(InputError, match=f"Row {gone} is not in the index"):
            index.embedding([2, gone])
    with pytest.raises(InputError, match="Rows are whole numbers"):
        index.items(torch.tensor([0.5]))


def test_compaction_gives_space_back(tmp_path: Path) -> None:
    gallery = drawn("gaussian-diagonal", 4000, dim=32)
    with FolderIndex.create(tmp_path / "index", family="gaussian", dim=32) as index:
        index.add(gallery, [str(item) for item in range(4000)])
    with FolderIndex.open(tmp_path / "index", writable=True) as index:
        index.remove([str(item) for item in range(3500)])
        before = index.stats()
        hits = index.search(gallery[3600:3610], 3)
        index.compact()
        after = index.stats()
        assert (before["removed"], after["removed"], after["items"]) == (3500, 0, 500)
        assert after["bytes"] < before["bytes"] / 3
        assert torch.equal(index.search(gallery[3600:3610], 3).row, hits.row)
    with FolderIndex.open(tmp_path / "index") as index:
        assert torch.equal(index.search(gallery[3600:3610], 3).row, hits.row)


def test_attachments(index: FolderIndex) -> None:
    assert index.attached("calibrator") is None
    tensors = {"weight": torch.randn(3, 2, dtype=torch.float64), "count": torch.tensor([1, 2])}
    index.attach("calibrator", tensors, {"kind": "isotonic", "levels": [0.1, 0.9]})
    found, record = index.attached("calibrator")
    assert record == {"kind": "isotonic", "levels": [0.1, 0.9]}
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
    index.attach("calibrator", {}, {})
    index.attach("doubt", {"a": torch.zeros(1).expand(3)}, {})
    assert index.attached("calibrator") == ({}, {})
    assert index.stats()["attachments"] == ["calibrator", "doubt"]
    with pytest.raises(InputError, match="keep infinite numbers in tensors"):
        index.attach("risk", {}, {"threshold": float("inf")})
    index.close()
    with FolderIndex.open(index.path) as reader:
        assert torch.equal(reader.attached("doubt")[0]["a"], torch.zeros(3))


REFUSED = [
    (POINTS[:2], ["x", "x"], {}, "given more than once: 'x'"),
    (POINTS[:2], ["x", "b"], {}, "has items 'b' already"),
    (POINTS[:2], ["x"], {}, "Ids must have one entry per item, got 1 for 2"),
    (POINTS[:2], ["x", 3], {}, "The id of item 3 must be a string, got int"),
    (POINTS[:2], ["x", ""], {}, "a string that is not empty"),
    (POINTS[:2], ["x", None], {}, "a string that is not empty"),
    (POINTS[:2], ["x", "y\0"], {}, "has a zero character"),
    (POINTS[:2], ["x", "\udc80"], {}, "cannot be written as UTF-8"),
    (POINTS[:1], "x", {}, "got the one string 'x'"),
    (POINTS[:2], ["x", "y"], {"labels": ["cat"]}, "Labels must have one entry per item"),
    (POINTS[:2], ["x", "y"], {"labels": ["cat", 7]}, "The label of item 'y' must be a string, got int 7"),
    (POINTS[:1], ["x"], {"metadata": [{"a": float("nan")}]}, "cannot be written as JSON"),
    (POINTS[:1], ["x"], {"metadata": [{"a": object()}]}, "cannot be written as JSON"),
    (POINTS[:1], ["x"], {"metadata": [{"label": "cat"}]}, "other than 'label'"),
    (POINTS[:1], ["x"], {"metadata": [{'a"b': 1}]}, "without quotation marks"),
    (POINTS[:1], ["x"], {"metadata": [["a"]]}, "must be a dictionary, got list"),
    (
        POINTS[:1],
        ["x"],
        {"model": "resnet-2"},
        "come from model 'resnet-2', the index holds those of 'resnet-1'",
    ),
    (Embedding.point(torch.eye(3)), list("xyz"), {}, "dimension 4, got embeddings of 3"),
    (Embedding.vmf(torch.eye(4), torch.ones(4)), list("wxyz"), {}, "holds point embeddings, got vmf"),
    (
        Embedding.point(torch.diag(torch.tensor([1.0, 0, 1, 0]))),
        list("wxyz"),
        {},
        r"'x' \(and 1 more\) has a loca",
    ),
    (Embedding.point(1e300 * torch.eye(4).double()), list("wxyz"), {}, "NaN or infinite"),
    (Embedding.point(1e-300 * torch.eye(4).double()), list("wxyz"), {}, "location of length 0,"),
    (Embedding.point(1e-20 * torch.eye(4)), list("wxyz"), {}, "location of length 1e-20,"),
    (Embedding.point(1e30 * torch.eye(4)), list("wxyz"), {}, r"location of length 1e\+30,"),
]


@pytest.mark.parametrize(("embedding", "ids", "options", "sentence"), REFUSED)
def test_what_does_not_fit_changes_nothing(
    index: FolderIndex, embedding, ids, options, sentence: str
) -> None:
    before = index.search(POINTS, 3)
    with pytest.raises(InputError, match=sentence):
        index.add(embedding, ids, **options)
    assert (len(index), index.ids(), index.label_names) == (3, ["a", "b", "c"], ["cat", "dog"])
    assert torch.equal(index.search(POINTS, 3).row, before.row)


def test_nan_is_refused_before_it_comes_near_an_index() -> None:
    with pytest.raises(InputError, match="NaN"):
        Embedding.point(torch.full((1, 4), torch.nan))


def test_too_long_to_be_squared(tmp_path: Path) -> None:
    with FolderIndex.create(tmp_path / "index", family="gaussian", dim=4, variances=1) as index:
        with pytest.raises(InputError, match=r"length 1e\+25, which gives no direction"):
            index.add(Embedding.gaussian(1e25 * torch.eye(4), torch.ones(4, 1)), list("abcd"))
        assert len(index) == 0


def test_models_are_compared_where_both_are_known(index: FolderIndex) -> None:
    index.add(POINTS[3:], ["d"], model="resnet-1")
    with pytest.raises(InputError, match="come from model 'other'"):
        index.search(POINTS, 1, model="other")
    with pytest.raises(InputError, match="come from model 'other'"):
        index.update(POINTS[:1], ["a"], model="other")
    assert index.search(POINTS, 1, model="resnet-1").row[:, 0].tolist() == [0, 1, 2, 3]


def test_unknown_ids(index: FolderIndex) -> None:
    for change in (lambda: index.remove(["a", "z"]), lambda: index.update(POINTS[:2], ["a", "z"])):
        with pytest.raises(InputError, match="has no items 'z'; nothing was changed"):
            change()
    assert index.ids() == ["a", "b", "c"]
    index.remove([])
    assert len(index) == 3


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"family": "gausian", "dim": 4}, "did you mean 'gaussian'"),
        ({"family": "gaussian", "dim": 4, "variances": 2}, "stores 1 or 4 variances per item, got 2"),
        ({"family": "point", "dim": 4, "variances": 4}, "stores 0 variances"),
        ({"family": "point", "dim": 0}, "cannot be 0"),
        ({"family": "vmf", "dim": 1}, "cannot be 1"),
        ({"family": "point", "dim": 4, "kind": "hsnw"}, "did you mean 'hnsw'"),
        (
            {"family": "point", "dim": 4, "score": "mutual-likelihood"},
            "There is no score 'mutual-likelihood'",
        ),
    ],
)
def test_indexes_that_cannot_be(tmp_path: Path, options, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        FolderIndex.create(tmp_path / "index", **options)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_overwritten(tmp_path: Path, index: FolderIndex) -> None:
    index.close()
    before = sorted(index.path.rglob("*"))
    with pytest.raises(InputError, match="exists already"):
        FolderIndex.create(index.path, family="point", dim=4)
    assert sorted(index.path.rglob("*")) == before
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="exists already"):
        FolderIndex.create(tmp_path / "file", family="point", dim=4)
    (tmp_path / "empty").mkdir()
    FolderIndex.create(tmp_path / "empty", family="point", dim=4).close()
    FolderIndex.open(tmp_path / "empty").close()


def test_closed_and_read_only_indexes_say_so(index: FolderIndex) -> None:
    index.close()
    index.close()
    with pytest.raises(StoreError, match="is closed"):
        index.search(POINTS, 1)
    with FolderIndex.open(index.path) as reader:
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


def test_no_index_there(tmp_path: Path) -> None:
    for writable in (False, True):
        with pytest.raises(StoreError, match=r"is no index: there is no index\.sqlite in it"):
            FolderIndex.open(tmp_path / "nowhere", writable=writable)
    assert list(tmp_path.iterdir()) == []
