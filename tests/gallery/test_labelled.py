"""Queries that say what they show, from every place they may lie in; what of them is used and what left out."""

from __future__ import annotations

import csv
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery.calibration.labelled import LabelledQueries, labelled_queries, sentences
from doubtless.gallery.gallery import Gallery
from doubtless.ingest.bulk import embed_files
from doubtless.runs.model import load
from tests.gallery.galleries import gallery as made_up
from tests.ingest.pictures import tiny_images, write_folder

COUNT = 96
UNKNOWN = "class-5"
"""The label of which the shop has nothing."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny_npz: Path, tiny_run: Path) -> Path:
    """photos/ with one picture of five classes, queries/ with others of all six, and the shop made of the first."""
    folder = tmp_path_factory.mktemp("labelled")
    images, labels = tiny_images(tiny_npz, COUNT + 6)
    there = [row for row in range(6) if labels[row] != UNKNOWN]
    write_folder(folder / "photos", images[there], [labels[row] for row in there])
    write_folder(folder / "queries", images[6:], labels[6:])
    Gallery.create(folder / "shop", folder / "photos", model=tiny_run).close()
    return folder


@pytest.fixture
def shop(home: Path) -> Iterator[Gallery]:
    with Gallery.open(home / "shop", writable=True) as opened:
        yield opened


@pytest.fixture(scope="module")
def places(
    home: Path, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, Path | None]]:
    """The same queries in every form: where they are, and the CSV of their labels where they have none."""
    files = sorted((home / "queries").rglob("*.png"))
    ids = [file.relative_to(home / "queries").as_posix() for file in files]
    labels = [file.parent.name for file in files]
    folder = tmp_path_factory.mktemp("places")
    lists = folder / "lists"
    lists.mkdir()
    tables: dict[str, tuple[str, list[Any]]] = {
        "relative": ("path", [os.path.relpath(file, lists) for file in files]),
        "absolute": ("image", files),
        "ids": ("id", ids),
    }
    for name, (column, names) in tables.items():
        with (lists / f"{name}.csv").open("w", newline="") as lines:
            csv.writer(lines).writerows([(column, "label"), *zip(names, labels, strict=True)])
    model = load(tiny_run)
    embed_files(model, home / "queries", folder / "embedded", shard_size=40)
    embed_files(model, home / "queries", folder / "columns", format="parquet")
    np.save(folder / "queries.npy", model.embed(files).location.numpy())
    return {
        "folder": (home / "queries", None),
        "relative": (lists / "relative.csv", None),
        "absolute": (lists / "absolute.csv", None),
        "embed": (folder / "embedded", None),
        "parquet": (folder / "columns", None),
        "vectors": (folder / "queries.npy", lists / "ids.csv"),
    }


@pytest.mark.parametrize("form", ["folder", "relative", "absolute", "embed", "parquet", "vectors"])
def test_every_place_gives_the_same_queries(
    shop: Gallery, home: Path, places: dict[str, tuple[Path, Path | None]], form: str
) -> None:
    place, labels = places[form]
    read = labelled_queries(place, shop, labels=labels)
    files = sorted((home / "queries").rglob("*.png"))
    assert read.labels == [file.parent.name for file in files]
    assert [Path(name).name for name in read.ids] == [file.name for file in files]
    wanted = shop.read(files).embedding
    torch.testing.assert_close(read.embedding.location, wanted.location, rtol=0, atol=1e-5)
    assert read.known.tolist() == [file.parent.name != UNKNOWN for file in files]
    record = read.record()
    assert record["place"] == str(place)
    assert (record["known"], record["unknown"]) == (80, 16)
    assert (record["known_labels"], record["gallery_labels"]) == (5, 5)
    assert (record["unknown_labels"], record["first_unknown_labels"]) == (1, [UNKNOWN])
    assert not record["unreadable"] + record["unlabelled"] + record["in_gallery"]
    assert record["respelt"] == {}


def test_one_picture_per_label_is_calibrated_with_queries(shop: Gallery, home: Path) -> None:
    with pytest.raises(
        InputError, match=r"Of 5 labelled items 0 share .* --queries FOLDER, or calibrate\(queries"
    ):
        shop.calibrate()
    record = shop.calibrate(target_error=0.4, queries=home / "queries")
    assert (record["queries"], record["without_positive"]) == (80, 16)
    assert record["given"]["unknown"] == 16
    strangers = shop.ask(sorted((home / "queries" / UNKNOWN).iterdir())).decisions()
    assert record["given"]["unknown_decisions"] == {
        name: strangers.count(name) / 16 for name in set(strangers)
    }
    with Gallery.open(home / "shop") as again:
        assert again.status()["calibration"] == json.loads(json.dumps(record))
        assert again.ask(home / "photos" / "class-0" / "0000.png").probability is not None
    read = labelled_queries(home / "queries", shop)
    assert shop.calibrate(target_error=0.4, queries=read) == record
    by_hand = shop.calibrate(target_error=0.4, queries=read.embedding, labels=read.labels)
    assert {**by_hand, "given": record["given"]} == record
    assert "given" not in by_hand


@pytest.fixture
def strays(home: Path, tmp_path: Path) -> Path:
    """Queries with one of everything that may be wrong."""
    folder = tmp_path / "strays"
    shutil.copytree(home / "queries", folder)
    (folder / "class-1").rename(folder / "Class 1 ")
    (folder / "class-2" / "broken.png").write_text("no picture")
    (folder / "class-2" / "0000.png").write_bytes(next((home / "photos" / "class-0").iterdir()).read_bytes())
    shutil.copy(next((folder / "class-0").iterdir()), folder / "whose.png")
    return folder


def test_what_cannot_be_used_is_named_and_counted(shop: Gallery, strays: Path) -> None:
    read = labelled_queries(strays, shop)
    assert len(read) == 80
    assert set(read.labels) == {"class-0", "class-2", "class-3", "class-4", UNKNOWN}
    assert [(image.id, image.reason) for image in read.bad] == [
        ("class-2/broken.png", "it is no image that Pillow knows")
    ]
    assert (read.unlabelled, read.in_gallery) == (1, 1)
    assert read.respelt == {"Class 1 ": ("class-1", 16)}
    assert sentences(read.record()) == [
        f"64 queries from {strays}, of 4 of the gallery's 5 labels.",
        "16 queries of labels that the gallery does not have: 'class-5'.",
        "'Class 1 ' is no label of the gallery, 'class-1' is; 16 queries left out until they say so.",
        "1 image left out, unreadable: class-2/broken.png (it is no image that Pillow knows).",
        "1 query left out, without a label.",
        "1 query left out: items of the gallery itself, which would find themselves.",
    ]


def test_a_csv_names_images_that_are_not_there(shop: Gallery, home: Path, tmp_path: Path) -> None:
    files = sorted((home / "queries").rglob("*.png"))[:30]
    lines = [f"{file},{file.parent.name}" for file in files]
    (tmp_path / "some.csv").write_text("\n".join(["path,label", *lines, "gone.png,class-0", f"{files[0]}x,"]))
    read = labelled_queries(tmp_path / "some.csv", shop)
    assert len(read) == 30
    assert [image.id for image in read.bad] == ["gone.png", f"{files[0]}x"]
    assert read.record()["first_unreadable"][0] == "gone.png (No such file or directory)"


def test_places_that_are_refused(shop: Gallery, home: Path, tmp_path: Path) -> None:
    for name, text in (
        ("columns.csv", "file,label\na.png,class-0\n"),
        ("nothing.csv", "path,label\na.png,\n"),
        ("gone.csv", "path,label\na.png,class-0\n"),
        ("strange.csv", "path,label\na.png,cat\nb.png,dog\n"),
        ("case.csv", "path,label\na.png,CLASS-0\n"),
    ):
        (tmp_path / name).write_text(text)
    np.save(tmp_path / "bare.npy", np.ones((30, 8), np.float32))
    cases: list[tuple[object, str]] = [
        (tmp_path / "columns.csv", "no column 'path'.*path or image or id.* got file, label"),
        (tmp_path / "nothing.csv", "says of no query what it shows"),
        (tmp_path / "gone.csv", r"None of the 1 images .*a\.png \(No such file or directory\)"),
        (
            tmp_path / "strange.csv",
            "got 'cat', 'dog'; the gallery has 'class-0', 'class-1', 'class-2' and 2 more",
        ),
        (tmp_path / "case.csv", "'CLASS-0' is no label of the gallery, 'class-0' is"),
        (tmp_path / "none.csv", "There is no file"),
        (tmp_path / "bare.npy", "says of no query what it shows"),
        (home, "No query of .* carries a label of the gallery: got 'photos', 'queries'"),
        (home / "queries" / "class-0", "says of no query what it shows"),
        (home / "photos", r"gallery's labels \(5\) are pictures of the gallery itself"),
        ("querries", "There is no file or folder querries, and no data source of that name"),
        ("digits", "got '0', '1', '2' and 7 more"),
    ]
    for place, sentence in cases:
        with pytest.raises(InputError, match=sentence):
            shop.calibrate(queries=place)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="has labels of its own"):
        shop.calibrate(queries=tmp_path / "gone.csv", labels=tmp_path / "case.csv")
    with pytest.raises(InputError, match="are read from there"):
        shop.calibrate(queries=home / "queries", labels=["class-0"] * COUNT)
    with pytest.raises(InputError, match="A CSV of labels goes with"):
        shop.calibrate(queries=[home / "queries"], labels="labels.csv")
    with pytest.raises(InputError, match="Labels say what queries show"):
        shop.calibrate(labels=["class-0"])


def test_embeddings_of_another_model_are_refused(
    shop: Gallery, home: Path, tmp_path: Path, places: dict[str, tuple[Path, Path | None]]
) -> None:
    shutil.copytree(places["embed"][0], tmp_path / "other")
    about = json.loads((tmp_path / "other" / "embed.json").read_text())
    (tmp_path / "other" / "embed.json").write_text(json.dumps(about | {"model": "0" * 32}))
    with pytest.raises(InputError, match="distances between models mean nothing"):
        labelled_queries(tmp_path / "other", shop)


def named(labels: torch.Tensor) -> list[str]:
    return [f"class {label}" for label in labels.tolist()]


@pytest.mark.parametrize("shared", [18, 20])
def test_a_gallery_that_can_hardly_search_itself(tmp_path: Path, shared: int) -> None:
    embedding, labels = made_up(50, classes=50, points=True)
    labels[:shared] = labels[:shared] // 2  # pairs
    with Gallery.create(tmp_path / "g", embedding=embedding, labels=named(labels)) as opened:
        if shared < 20:
            with pytest.raises(InputError, match="Of 50 labelled items 18 share their label"):
                opened.calibrate()
        else:
            assert opened.calibrate()["queries"] == 20


def test_labels_whose_items_are_gone_are_unknown(tmp_path: Path) -> None:
    embedding, labels = made_up(60, points=True)
    queries, asked = made_up(90, seed=3, points=True)
    queries.save(tmp_path / "queries.safetensors", labels=asked)
    with Gallery.create(
        tmp_path / "g", embedding=embedding, labels=[str(x) for x in labels.tolist()]
    ) as opened:
        assert bool(labelled_queries(tmp_path / "queries.safetensors", opened).known.all())
        opened.remove(["0", "30"])  # both items of label 0
        read = labelled_queries(tmp_path / "queries.safetensors", opened)
    assert read.gallery_labels == 29
    assert torch.equal(read.known, asked != 0)


def test_a_gallery_without_labels_says_so_before_anything_is_read(tmp_path: Path) -> None:
    embedding, _ = made_up(60)
    with (
        Gallery.create(tmp_path / "bare", embedding=embedding) as bare,
        pytest.raises(InputError, match="no labels that queries could ask for"),
    ):
        labelled_queries("nowhere", bare)


def test_many_of_a_kind_are_named_in_part() -> None:
    point = Embedding.point(torch.eye(8))
    labels = [f"new {number}" for number in range(7)]
    read = LabelledQueries(
        "here",
        point,
        [*labels, "old"],
        [str(number) for number in range(8)],
        torch.tensor([False] * 7 + [True]),
        gallery_labels=1,
        respelt={f"OLD{' ' * number}": ("old", 1) for number in range(8)},
    )
    decided = {"answer": 0.25, "abstain": 0.75}
    assert sentences({**read.record(), "unknown_decisions": decided})[1].endswith(
        "and 2 more. Asked now, 25.0% of them are answered, 0.0% called not in the gallery."
    )
    told = sentences(read.record())
    assert told[0] == "1 query from here, of 1 of the gallery's 1 labels."
    assert told[1].endswith("'new 3', 'new 4' and 2 more.")
    assert told[2:7] == [sentence for sentence in told if "is no label" in sentence]
    assert told[7:] == ["So are 3 more labels."]
