"""The head of a gallery of a network that nobody trained: fixed at creation, kept, the same for what is added."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from doubtless import Gallery
from doubtless.errors import InputError
from doubtless.gallery import head as heads
from doubtless.laplace import half_whitened
from doubtless.runs.model import Model
from doubtless.runs.names import open_model
from tests.runs.test_pretrained import Scaled

IMAGES = torch.rand(12, 3, 9, 9, generator=torch.Generator().manual_seed(0))
LABELLED = [(image, f"label {number % 3}") for number, image in enumerate(IMAGES)]


def folder(place: Path, images: torch.Tensor, start: int = 0) -> Path:
    """The same as files."""
    from torchvision.io import write_png

    for number, image in enumerate(images, start):
        (place / f"label {number % 3}").mkdir(parents=True, exist_ok=True)
        write_png(
            (image * 255).round().to(torch.uint8), str(place / f"label {number % 3}" / f"{number:02}.png")
        )
    return place


@pytest.fixture
def model() -> Model:
    return Model.from_module(Scaled(), size=9)


def test_half_whitened_features_of_the_gallery_are_kept_for_whatever_comes(
    model: Model, tmp_path: Path
) -> None:
    place = tmp_path / "shop"
    photos = folder(tmp_path / "photos", IMAGES[:8])
    with Gallery.create(place, photos, model=model, head="half-whitened", dim=4) as gallery:
        assert gallery.index.dim == 4
        features = model.embed(IMAGES).location
        weight, bias = half_whitened(features[[0, 3, 6, 1, 4, 7, 2, 5]], 4)  # by label
        assert bias is not None
        expected = features @ weight.T + bias
    with Gallery.open(place, writable=True) as gallery:  # from what it has kept
        gallery.add(folder(tmp_path / "more", IMAGES[8:], 8))
        ids = gallery.index.ids()
        found = gallery.index.embedding().location
        order = [int(Path(id).stem) for id in ids]
        torch.testing.assert_close(found, expected[order], rtol=1e-3, atol=1e-3)
        assert gallery.ask(IMAGES[3], k=1).hits[0].score > 0.999


def test_a_model_of_a_gallery_is_a_model(model: Model, tmp_path: Path) -> None:
    Gallery.create(tmp_path / "shop", LABELLED, model=model, head="half-whitened").close()
    again = open_model(tmp_path / "shop")
    assert again.embed(IMAGES[:2]).dim == 5  # as many as the network has features
    Gallery.create(tmp_path / "second", LABELLED[:5], model=tmp_path / "shop").close()
    with Gallery.open(tmp_path / "second") as second, Gallery.open(tmp_path / "shop") as first:
        torch.testing.assert_close(second.index.embedding().location, first.index.embedding().location[:5])


def test_unasked_only_networks_of_timm_and_many_labels_are_half_whitened(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_timm = Model(model.method, address="timm:some")

    def dim(name: str, which: Model) -> int:
        with Gallery.create(tmp_path / name, LABELLED, model=which) as gallery:
            assert torch.isfinite(gallery.ask(IMAGES[0]).hits[0].score * torch.ones(1)).all()
            return gallery.index.dim

    assert dim("few", of_timm) == 5
    monkeypatch.setattr(heads, "LABELS", 3)
    monkeypatch.setattr(heads, "DIM", 2)
    assert dim("many", of_timm) == 2
    assert dim("own", model) == 5


def test_small_galleries_and_wrong_heads_are_sentences(model: Model, tiny_run: Path, tmp_path: Path) -> None:
    def create(images: list, **options: object) -> None:  # type: ignore[type-arg]
        place = tmp_path / f"shop {len(images)}"
        Gallery.create(place, images, **{"model": model, **options}).close()  # type: ignore[arg-type]

    with pytest.raises(InputError, match="three images or more, got 2; take --head raw"):
        create(LABELLED[:2], head="half-whitened")
    with pytest.raises(InputError, match="3 images with 5 features has 1 to 2 dimensions, got 4"):
        create(LABELLED[:3], head="half-whitened", dim=4)
    with pytest.raises(InputError, match="A dimension is chosen for a half-whitened head"):
        create(LABELLED, dim=4)
    with pytest.raises(InputError, match="no head 'white'"):
        create(LABELLED, head="white")
    with pytest.raises(InputError, match="has a head of its own"):
        create(LABELLED, model=tiny_run, head="half-whitened")
    assert not list(tmp_path.glob("shop*"))
    with Gallery.create(
        tmp_path / "one", LABELLED[:1], model=Model(model.method, address="timm:some")
    ) as one:
        assert one.ask(IMAGES[0]).hits[0].label == "label 0"
