"""Random faults in a gallery's files, in its model, pictures and feedback as well, are noticed by a check."""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from doubtless.errors import DoubtlessError, StoreError
from doubtless.gallery import Gallery
from doubtless.gallery.feedback.store import FeedbackStore
from doubtless.gallery.safekeeping import backup, check, restore, salvage
from doubtless.index.settings import DATABASE
from doubtless.server.service.service import Service
from tests.index.test_faults import spoil

FAULTS, FEW = 300, 25
STORED = ["stored 0", "stored 1", "stored 2"]


@pytest.fixture(scope="module")
def whole(served_index: Path, picture: bytes, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated gallery with its model, some pictures of its own, and what somebody said."""
    path = Path(shutil.copytree(served_index, tmp_path_factory.mktemp("faults") / "gallery"))
    with Service.open(path) as service:
        for id in STORED:
            service.add(id, picture, label="class-0")
        for answer in service.answer_images([picture, picture]):
            service.judgements.say(answer, "right", label=None, who="Ada", at_random=True).result()
    return path


def told(path: Path, picture: Path) -> list[Any]:
    """All that a gallery says of a picture, of what it keeps, and of what was said."""
    with Gallery.open(path) as gallery:
        answer = gallery.ask(picture, k=5).to_json()
        kept = [(gallery.folder / str(item.path)).read_bytes() for item in map(gallery.item, STORED) if item]
        entries = [entry.to_json() for entry in FeedbackStore(path).entries()]
        return [answer, kept, gallery.status(), gallery.label_counts(), entries]


def verdict(path: Path, right: list[Any], picture: Path) -> str:
    """How a fault shows."""
    found = check(path, thorough=True)
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            same = told(path, picture) == right
    except (
        DoubtlessError,
        FileNotFoundError,
    ):  # the second of a picture that is gone, read here past the gallery
        return "refused" if found.damage else "refused, and check saw nothing"
    if same:
        return "harmless"
    return "noticed" if said or found.damage else "SILENT"


@pytest.mark.parametrize("count", [FEW, pytest.param(FAULTS, marks=pytest.mark.slow)])
def test_every_fault_is_noticed_by_a_check_or_harmless(
    whole: Path, picture: bytes, tmp_path: Path, count: int
) -> None:
    file = tmp_path / "asked.png"
    file.write_bytes(picture)
    right, draw, counts = told(whole, file), random.Random(count), Counter[str]()
    assert check(whole, thorough=True).is_whole
    for _ in range(count):
        path = Path(shutil.copytree(whole, tmp_path / "gallery"))
        part = draw.choice([path / "model", path / "images", path])
        fault = spoil(part, draw)
        how = verdict(path, right, file)
        assert how in ("harmless", "noticed", "refused"), (fault, how)
        counts[f"{part.name}: {how}"] += 1
        shutil.rmtree(path)
    print(dict(counts))


def test_what_was_said_and_is_gone_is_noticed(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "gallery"))
    backup(path, tmp_path / "copy")
    for file in path.glob("feedback.sqlite*"):
        file.unlink()
    (sentence,) = check(path, thorough=True).damage
    assert "entry 2 was acknowledged, and it has come to 0" in sentence
    with pytest.raises(StoreError, match="damaged and was not copied"):
        backup(path, tmp_path / "another")
    assert check(tmp_path / "copy", thorough=True).is_whole
    (path / "feedback-last").unlink()  # as the sentence says
    assert check(path, thorough=True).is_whole
    restore(tmp_path / "copy", tmp_path / "again")
    assert len(FeedbackStore(tmp_path / "again").entries()) == 2


def test_pictures_that_are_all_gone_are_noticed(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "gallery"))
    (path / "images").rename(tmp_path / "elsewhere")
    assert len(check(path, thorough=True).damage) == len(STORED)
    (path / "images").symlink_to(tmp_path / "elsewhere")  # of links nothing is copied
    with pytest.raises(StoreError, match="damaged and was not copied"):
        backup(path, tmp_path / "copy")


def test_what_is_saved_of_a_damaged_gallery_has_its_pictures_and_its_model(
    whole: Path, picture: bytes, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "gallery"))
    with contextlib.closing(sqlite3.connect(path / DATABASE)) as connection, connection:
        connection.execute("UPDATE item SET label = 1 WHERE row = 4")
    saved = salvage(path, tmp_path / "saved")
    assert saved.lost == 1
    assert check(tmp_path / "saved", thorough=True).is_whole
    assert (tmp_path / "saved" / "model" / "model.safetensors").is_file()
    with Service.open(tmp_path / "saved", read_only=True) as service:
        assert service.image_of(STORED[0]).data == picture
    assert len(FeedbackStore(tmp_path / "saved").entries()) == 2

    feedback = path / "feedback.sqlite"  # damaged as well, it stays where it is
    feedback.write_bytes(b"SQLite format 3\0" + bytes(feedback.stat().st_size))
    salvage(path, tmp_path / "less")
    assert check(tmp_path / "less", thorough=True).is_whole
    assert not FeedbackStore(tmp_path / "less").exists


def test_a_gallery_with_another_model_is_not_copied(whole: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(whole, tmp_path / "gallery"))
    weights = path / "model" / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    (sentence,) = check(path, thorough=True).damage
    assert "is not what was stored" in sentence
    with pytest.raises(StoreError, match="damaged and was not copied"):
        backup(path, tmp_path / "copy")
    weights.unlink()
    (sentence,) = check(path, thorough=True).damage
    assert "is not whole" in sentence
    with pytest.raises(StoreError, match="damaged and was not copied"):
        restore(path, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
