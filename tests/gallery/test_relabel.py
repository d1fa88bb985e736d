"""Saying of items what they show: embeddings, paths and metadata stay."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.gallery import Gallery

FAMILIES = {
    "point": Embedding.point(torch.randn(6, 4, generator=torch.Generator().manual_seed(0))),
    "gaussian": Embedding.gaussian(torch.eye(6), torch.rand(6, 6) + 0.1),
    "vmf": Embedding.vmf(torch.eye(6), torch.linspace(1, 90, 6)),
}


def made(place: Path, embedding: Embedding) -> Gallery:
    return Gallery.create(
        place,
        embedding=embedding,
        labels=["leek", "leek", "garlic", None, "leek", "garlic"],
        metadata=[{"shelf": number} for number in range(6)],
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_only_the_label_changes(tmp_path: Path, family: str) -> None:
    with made(tmp_path / "shop", FAMILIES[family]) as shop:
        before = shop.index.embedding([shop.index.rows_of(["1"])["1"]])
        shop.relabel(["1", "3"], "garlic")
        after = shop.index.embedding([shop.index.rows_of(["1"])["1"]])
        for name, value in before.parameters.items():
            assert torch.equal(value, after.parameters[name])
    with Gallery.open(tmp_path / "shop") as shop:
        item = shop.item("1")
        assert item is not None
        assert (item.label, item.metadata) == ("garlic", {"shelf": 1})
        assert sorted(shop.index.ids(shop.index.rows[shop.index.labels == 1])) == ["1", "2", "3", "5"]
        assert len(shop) == 6


def test_nothing_is_a_label_too_and_one_unknown_id_changes_nothing(tmp_path: Path) -> None:
    with made(tmp_path / "shop", FAMILIES["point"]) as shop:
        shop.relabel(["0"], None)
        assert shop.index.items(shop.index.rows[-1:])[0].label is None
        with pytest.raises(InputError, match="no items 'nobody'"):
            shop.relabel(["1", "nobody"], "garlic")
        item = shop.item("1")
        assert item is not None
        assert item.label == "leek"
        shop.relabel([], "garlic")
