"""A gallery looked after from the command line: labels beside a flat folder, lists, looks, other labels."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from tests.cli.conftest import Command
from tests.ingest.pictures import png, tiny_images, write_folder


@pytest.fixture
def flat(tiny_npz: Path, tmp_path: Path) -> tuple[Path, list[str]]:
    """A folder without class folders, and labels.csv beside it."""
    images, labels = tiny_images(tiny_npz, 24)
    folder = tmp_path / "photos"
    folder.mkdir()
    rows = ["id,label,shop,year"]
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        (folder / f"{number:02d}.png").write_bytes(png(pixels))
        rows.append(f"{number:02d}.png,{label},{'Oslo' if number % 2 else 'Bergen'},{2020 + number % 3}")
    (tmp_path / "labels.csv").write_text("\n".join(rows) + "\n")
    return folder, labels


@pytest.fixture
def shop(flat: tuple[Path, list[str]], tiny_run: Path, tmp_path: Path, command: Command) -> Path:
    code, _, err = command(
        "create", tmp_path / "shop", flat[0], "--labels", tmp_path / "labels.csv", "--model", tiny_run
    )
    assert code == 0, err
    return tmp_path / "shop"


def read(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_labels_beside_a_flat_folder(shop: Path, flat: tuple[Path, list[str]], command: Command) -> None:
    listed = json.loads(command("list", shop, "--limit", "100", "--json")[1])
    assert listed["total"] == 24
    assert [item["label"] for item in listed["items"]] == flat[1]
    assert listed["items"][1]["metadata"] == {"shop": "Oslo", "year": 2021}


def test_images_without_a_row_and_rows_without_an_image_are_said(
    flat: tuple[Path, list[str]], tiny_run: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "few.csv").write_text("id,label\n00,cat\ngone.png,dog\n")
    code, out, _ = command(
        "create", tmp_path / "some", flat[0], "--labels", tmp_path / "few.csv", "--model", tiny_run
    )
    assert code == 0
    assert "23 images have no row in" in out
    assert "1 rows of" in out
    assert "'gone.png'" in out
    (tmp_path / "none.csv").write_text("id,label\nx,cat\n")
    code, _, err = command(
        "create", tmp_path / "none", flat[0], "--labels", tmp_path / "none.csv", "--model", tiny_run
    )
    assert code == 2
    assert "knows none of the 24 images" in err
    assert not (tmp_path / "none").exists()


def test_pages_and_conditions(shop: Path, command: Command) -> None:
    code, out, _ = command("list", shop, "--start", 20, "--limit", 3)
    assert code == 0
    assert "21–23 of 24 items; more with --start 23" in out
    oslo = json.loads(command("list", shop, "--where", "shop=Oslo", "--where", "year=2020", "--json")[1])
    assert oslo["total"] == 4
    assert all(item["metadata"] == {"shop": "Oslo", "year": 2020} for item in oslo["items"])
    label = oslo["items"][0]["label"]
    both = json.loads(command("list", shop, "--where", f"label={label}", "--where", "shop=Oslo", "--json")[1])
    assert {item["label"] for item in both["items"]} == {label}


def test_items_into_files(shop: Path, tmp_path: Path, command: Command) -> None:
    assert command("list", shop, "--csv", tmp_path / "items.csv")[0] == 0
    rows = read((tmp_path / "items.csv").read_text())
    assert list(rows[0]) == ["id", "label", "path", "shop", "year"]
    assert len(rows) == 24
    assert read(command("list", shop, "--csv", "-")[1]) == rows
    assert command("list", shop, "--where", "shop=Oslo", "--parquet", tmp_path / "items.parquet")[0] == 0
    table = parquet.read_table(tmp_path / "items.parquet")
    assert table.num_rows == 12
    assert table.column("year").to_pylist()[:2] == [2021, 2020]


def test_what_was_exported_makes_the_same_gallery(
    shop: Path, tiny_run: Path, tmp_path: Path, command: Command
) -> None:
    """A list of paths, labels and metadata is a way in."""
    command("list", shop, "--csv", tmp_path / "items.csv")
    assert command("create", tmp_path / "again", tmp_path / "items.csv", "--model", tiny_run)[0] == 0
    first, second = (
        json.loads(command("list", place, "--limit", 100, "--json")[1])["items"]
        for place in (shop, tmp_path / "again")
    )
    assert first == second


def test_an_item_and_its_neighbours(shop: Path, command: Command) -> None:
    shown = json.loads(command("show", shop, "03.png", "-k", 4, "--json")[1])
    assert shown["metadata"] == {"shop": "Oslo", "year": 2020}
    hits = shown["among_the_others"]["hits"]
    assert len(hits) == 4
    assert "03.png" not in [hit["id"] for hit in hits]
    code, out, _ = command("show", shop, "03.png")
    assert code == 0
    assert "Oslo" in out
    code, _, err = command("show", shop, "3.png")
    assert code == 2
    assert "has no item '3.png'; the nearest are" in err
    assert err.count("'") == 2 + 2 * 5


def test_other_labels_and_labels_as_they_are_now(shop: Path, command: Command) -> None:
    before = json.loads(command("stats", shop, "--json")[1])
    assert command("relabel", shop, "00.png", "01.png", "--label", "leek")[0] == 0
    now = json.loads(command("stats", shop, "--json")[1])
    assert now["labels"] == before["labels"] + 1
    assert now["label_counts"]["leek"] == 2
    assert command("relabel", shop, "--where", "label=leek", "--no-label")[0] == 0
    assert json.loads(command("stats", shop, "--json")[1])["labels"] == before["labels"]
    assert "items per label: class-" in command("stats", shop)[1]
    code, _, err = command("relabel", shop, "00.png", "99.png", "--label", "leek")
    assert code == 2
    assert "no items '99.png'; nothing was changed" in err


def test_removing_what_is_such(shop: Path, command: Command) -> None:
    code, out, _ = command("remove", shop, "--where", "shop=Oslo")
    assert (code, "12 items removed, 12 are left" in out) == (0, True)
    assert command("remove", shop, "--where", "shop=Oslo", "--json")[0] == 0
    code, _, err = command("remove", shop, "--where", "Oslo")
    assert code == 2
    assert "--where takes key=value" in err
    assert json.loads(command("list", shop, "--json")[1])["total"] == 12


def test_one_label_for_what_is_added(shop: Path, tmp_path: Path, command: Command) -> None:
    (tmp_path / "new.png").write_bytes(png(np.full((12, 12), 99, np.uint8)))
    assert command("add", shop, tmp_path / "new.png", "--label", "onion")[0] == 0
    assert json.loads(command("show", shop, "new.png", "--json")[1])["label"] == "onion"


def test_what_is_skipped_is_named_by_create_and_add(
    tiny_npz: Path, tiny_run: Path, tmp_path: Path, command: Command
) -> None:
    images, labels = tiny_images(tiny_npz, 6)
    write_folder(tmp_path / "photos", images, labels)
    (tmp_path / "photos" / "film.mov").write_bytes(b"film")
    (tmp_path / "photos" / labels[0] / "cut.png").write_bytes(b"\x89PNG")
    code, out, _ = command("create", tmp_path / "shop", tmp_path / "photos", "--model", tiny_run)
    assert code == 0
    assert "2 files skipped" in out
    assert "film.mov: files of the kind .mov are not read" in out
    assert "cut.png: it is no image that Pillow knows" in out
    code, out, _ = command("add", tmp_path / "shop", tmp_path / "photos", "--existing", "skip")
    assert (code, "2 files skipped" in out) == (0, True)
