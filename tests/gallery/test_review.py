"""What is worth a person's minute: wrong labels, copies, and what becomes of what is said."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery import Gallery
from tests.gallery.galleries import gallery as made_up


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of 600 items 30 carry the label after theirs; ten are there twice, half of these under another label."""
    embedding, labels = made_up(600, noise=0.35, points=True)
    told = labels.clone()
    told[:30] = (told[:30] + 1) % 30
    copies = embedding.location[100:110] + 0.004 * torch.randn(
        10, 8, generator=torch.Generator().manual_seed(3)
    )
    of_copies = torch.where(torch.arange(10) < 5, (labels[100:110] + 7) % 30, labels[100:110])
    vectors = torch.cat([embedding.location, copies])
    names = [f"class {label}" for label in torch.cat([told, of_copies]).tolist()]
    place = tmp_path_factory.mktemp("review") / "shop"
    with Gallery.create(place, embedding=Embedding.point(vectors), labels=names) as shop:
        shop.calibrate(target_error=0.2)
    return place


@pytest.fixture
def shop(made: Path, tmp_path: Path) -> Gallery:
    return Gallery.open(shutil.copytree(made, tmp_path / "shop"), writable=True)


def test_wrong_labels_come_first(shop: Gallery) -> None:
    with shop:
        found = shop.review(1000, kinds=["label"])
        ids = [int(one.id.removeprefix("item:")) for one in found]
        wrong = {*range(30), *range(600, 605)}
        assert len(wrong & set(ids)) >= 30
        assert sum(id in wrong for id in ids[:25]) >= 23
        worth = [one.tells for one in found]
        assert worth == sorted(worth, reverse=True)
        right = {one.id: one.options[0][0] for one in found}
        assert sum(right.get(f"item:{id}") == f"class {id}" for id in range(30)) >= 25


def test_copies_are_found_and_those_under_two_labels_come_first(shop: Gallery) -> None:
    with shop:
        found = shop.review(1000, kinds=["duplicate"])
        pairs = {(int(one.id.removeprefix("item:")), int(one.other or -1)): one.tells for one in found}
        copies = {(100 + number, 600 + number) for number in range(10)}
        assert len(copies & set(pairs)) >= 9
        assert len(set(pairs) - copies) <= 2
        assert all(pairs[pair] == (1.0 if pair[0] < 105 else 0.5) for pair in copies & set(pairs))


def test_what_is_said_becomes_a_label_and_is_not_asked_again(shop: Gallery) -> None:
    with shop:
        before = shop.review(1000, kinds=["label"])
        first, second = before[0], before[1]
        assert first.label is not None
        assert "now, and was" in shop.accept(first.id, first.options[0][0])
        item = shop.item(first.id.removeprefix("item:"))
        assert item is not None
        assert item.label == first.options[0][0]
        assert "as it was said before" in shop.accept(second.id, str(second.label))
        after = {one.id for one in shop.review(1000, kinds=["label"])}
        assert not {first.id, second.id} & after
        with pytest.raises(InputError, match="no item 'nobody'"):
            shop.accept("item:nobody", "leek")
        with pytest.raises(InputError, match="answer:ID or item:ID"):
            shop.accept("nobody", "leek")


def test_what_cannot_be_listed_is_said(shop: Gallery, tmp_path: Path) -> None:
    with shop, pytest.raises(InputError, match="did you mean 'label'"):
        shop.review(kinds=["lable"])
    with Gallery.create(
        tmp_path / "plain", embedding=Embedding.point(torch.eye(4)), labels=list("aabb")
    ) as plain:
        assert plain.review().notes == ("Labels are judged once the gallery is calibrated on them.",)
        assert plain.review().to_json()["questions"] == []
    with Gallery.create(tmp_path / "one", embedding=Embedding.point(torch.eye(4)[:1])) as one:
        assert len(one.review()) == 0
