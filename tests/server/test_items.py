"""Copies of images in the index: there exactly while their item is, also after a kill at any moment."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.index.folder import FolderIndex
from doubtless.server.service.errors import ConflictError, NotFoundError
from doubtless.server.service.items import Shelf
from doubtless.server.service.service import Service


def files(index: Path) -> set[str]:
    return {str(path.relative_to(index)) for path in (index / "images").rglob("*") if path.is_file()}


def test_a_copy_lives_as_long_as_its_item(service: Service, own_index: Path, picture: bytes) -> None:
    service.add("a", picture)
    service.add("b", picture)  # the same image of another item has its own copy
    paths = {str(service.items.get(id).path) for id in "ab"}
    assert files(own_index) == paths
    assert len(paths) == 2
    service.remove(["a"])
    assert files(own_index) == {str(service.items.get("b").path)}
    with pytest.raises(NotFoundError):
        service.remove(["a"])
    with pytest.raises(ConflictError):
        service.add("b", picture)
    assert service.image_of("b").data == picture


def test_an_item_that_is_refused_leaves_no_copy(service: Service, own_index: Path, picture: bytes) -> None:
    with pytest.raises(InputError, match="key"):
        service.add("a", picture, metadata={"label": 1})
    with pytest.raises(InputError, match="id"):
        service.add("", picture)
    assert files(own_index) == set()
    assert len(service.gallery.index) == 120


def test_what_a_kill_left_is_cleared_away(own_index: Path, picture: bytes) -> None:
    """Every moment of storing and of removing an item, as the disk looks if the process ends there."""
    with Service.open(own_index) as service:
        shelf = Shelf(own_index)
        kept, gone, late = (shelf.place(id, picture, ".png") for id in ("kept", "gone", "late"))

        def left_behind(place: str, id: str) -> None:
            note = own_index / "images" / "pending" / Path(place).name
            note.parent.mkdir(parents=True, exist_ok=True)
            note.write_text(f"{place}\n{id}")

        service.add("kept", picture)  # killed after the item was stored: note and file are there
        left_behind(kept, "kept")
        shelf.write(gone, picture)  # killed before the item was stored
        left_behind(gone, "gone")
        left_behind(late, "late")  # killed before its file was written
        outside = own_index / "index.sqlite"
        (own_index / "images" / "pending" / "evil.png").write_text(f"../{outside.name}\nevil")
    before = {path.name for path in own_index.iterdir()}
    with Service.open(own_index) as service:
        assert files(own_index) == {kept}
        assert service.image_of("kept").data == picture
    assert {path.name for path in own_index.iterdir()} == before
    with Service.open(own_index, read_only=True) as service:
        assert len(service.gallery.index) == 121


def test_names_on_the_disk_are_made_here(own_index: Path) -> None:
    shelf, names = Shelf(own_index), set()
    for id in ("../../x", "/etc/passwd", "a\nb", "CON", "a" * 500, "é", "a", "b"):
        place = shelf.place(id, b"data", ".png")
        assert (own_index / place).resolve().is_relative_to(own_index.resolve())
        names.add(place)
    assert len(names) == 8
    assert shelf.place("ab", b"c", ".png") != shelf.place("a", b"bc", ".png")


def test_embeddings_are_stored_as_they_are(service: Service) -> None:
    location = torch.randn(1, 8, generator=torch.Generator().manual_seed(0))
    service.add("vector", Embedding.point(location), label="l", metadata={"n": [1, {"deep": None}]})
    row = service.gallery.index.rows_of(["vector"])["vector"]
    assert torch.equal(service.gallery.index.embedding([row]).location, location)
    assert service.items.get("vector").metadata == {"n": [1, {"deep": None}]}
    with pytest.raises(NotFoundError, match="no image"):
        service.image_of("vector")


def test_removing_an_item_deletes_nothing_outside_of_the_index(
    own_index: Path, tmp_path: Path, picture: bytes
) -> None:
    """Whoever made an index chose its items' paths: only a copy that the shelf made goes with its item."""
    kept = [tmp_path / "precious.png", own_index / "index.sqlite", own_index / "images" / "ab" / "other.png"]
    linked = Shelf(own_index).place("linked", picture, ".png")
    target = tmp_path / "elsewhere" / Path(linked).name
    for file in (kept[0], kept[2], target):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(picture)
    (own_index / linked).parent.symlink_to(target.parent)
    paths = {
        "up": "images/../../precious.png",
        "deep": "images/ab/../../../precious.png",
        "database": "images/../index.sqlite",
        "other": "images/ab/other.png",
        "linked": linked,
    }
    with FolderIndex.open(own_index, writable=True) as index:
        some = index.embedding(index.rows[: len(paths)])
        index.add(some, list(paths), paths=list(paths.values()))
    with Service.open(own_index) as service:
        service.remove(list(paths))
        assert len(service.gallery.index) == 120
    assert [file.name for file in (*kept, target) if not file.is_file()] == []
    left_behind = own_index / "images" / "pending" / Path(linked).name  # a kill, and a link made since
    left_behind.parent.mkdir(exist_ok=True)
    left_behind.write_text(f"{linked}\nlinked")
    with Service.open(own_index):
        assert target.is_file()


def test_looking_for_the_images_of_hits_makes_no_paths(service: Service) -> None:
    """pathlib keeps every part of every path among Python's own words, a table that grew by 8 MB a minute."""
    called: set[str] = set()
    paths = [item.path for item in service.gallery.items(count=20)]
    assert all(map(service.items.has_image, paths))
    sys.setprofile(lambda frame, *_: called.add(frame.f_code.co_filename))
    try:
        found = [service.items.has_image(path) for path in paths]
    finally:
        sys.setprofile(None)
    assert all(found)
    assert [file for file in called if file.endswith("items.py")]
    assert not [file for file in called if "pathlib" in file]
