"""Models around networks that nobody trained here: by objects, import paths and addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import doubtless
from doubtless.errors import InputError
from doubtless.runs.model import Model, model_fingerprint
from doubtless.runs.names import open_model


class Seeded(nn.Module):
    """Always the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 5, 3)
        with torch.no_grad():
            for number, value in enumerate(self.parameters()):
                value.copy_(torch.linspace(-1, 1 + number, value.numel()).view_as(value))

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images)


class Random(Seeded):
    """Other weights every time."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.layer.weight)


def grey() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LayerNorm(64))


PATH = f"module:{__name__}"
IMAGES = torch.rand(4, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def test_features_of_a_network_are_points() -> None:
    network = Seeded()
    embedding = Model.from_module(network, size=12, normalization="none").embed(IMAGES)
    assert embedding.family == "point"
    images = (IMAGES * 255).round() / 255
    torch.testing.assert_close(embedding.location, network(images).mean((-2, -1)).detach())


def test_the_address_makes_it_again() -> None:
    model = Model.from_module(Seeded(), size=12)
    assert model.place == f"{PATH}.Seeded?size=12&channels=3&normalization=imagenet&pooling=auto"
    again = open_model(model.place)
    assert model_fingerprint(again.method) == model_fingerprint(model.method)
    assert torch.equal(again.embed(IMAGES).location.cpu(), model.embed(IMAGES).location)
    assert again.place == model.place
    assert open_model(model) is model


def test_other_weights_have_no_address_and_another_fingerprint() -> None:
    one, other = Model.from_module(Random(), size=12), Model.from_module(Random(), size=12)
    assert one.place is None
    assert model_fingerprint(one.method) != model_fingerprint(other.method)
    changed = Seeded()
    nn.init.zeros_(changed.layer.bias)  # type: ignore[arg-type]
    assert Model.from_module(changed, size=12).place is None


def test_where_a_network_lies_is_no_part_of_what_it_is() -> None:
    class Moved(Seeded):
        pass

    fingerprints = {
        model_fingerprint(Model.from_module(network, size=12).method)
        for network in (Seeded(), Moved(), f"{PATH}.Seeded")
    }
    assert len(fingerprints) == 1
    assert model_fingerprint(Model.from_module(Seeded(), size=13).method) not in fingerprints


def test_options_are_written_into_the_address_or_given() -> None:
    model = open_model(f"{PATH}.grey?size=8&channels=1&normalization=none")
    assert model.embed(torch.rand(2, 1, 8, 8)).dim == 64
    assert open_model(f"{PATH}.grey", size=8, channels=1, normalization="none").method.spec.size == 8
    assert open_model(Seeded(), size=9).method.spec.size == 9


@pytest.mark.parametrize(
    ("what", "options", "sentence"),
    [
        (f"{PATH}.grey?sice=8", {}, "did you mean 'size'"),
        (f"{PATH}.grey?size=small", {}, "must be whole numbers"),
        (f"{PATH}.grey?size=8&channels=2", {}, "channels=1 or 3"),
        (f"{PATH}.grey?size=9", {}, "cannot take 3×9×9 images"),
        (f"{PATH}.grey?size=8", {"channels": 1}, "imagenet is for colour images"),
        (f"{PATH}.none", {}, "has no none"),
        (f"{PATH}.PATH", {}, "must name something to call"),
        ("timm:resnet5O", {}, "the nearest are 'resnet50'"),
    ],
)
def test_what_is_no_model_is_a_sentence(what: str, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        open_model(what, **options)


def test_a_run_knows_its_images(tiny_run: Path) -> None:
    assert open_model(tiny_run).place == str(tiny_run)
    with pytest.raises(InputError, match="knows its images; got size"):
        open_model(tiny_run, size=5)


def test_a_gallery_of_a_network_of_ones_own(tmp_path: Path) -> None:
    images = [(IMAGES[number % 4], f"class {number % 2}") for number in range(4)]
    model = Model.from_module(Seeded(), size=12)
    doubtless.Gallery.create(tmp_path / "shop", images=images, model=model).close()
    with doubtless.Gallery.open(tmp_path / "shop") as gallery:  # by the import path it has kept
        answer = gallery.ask(IMAGES[2], k=1)
        assert answer.hits[0].label == "class 0"
    other = Model.from_module(Random(), size=12)
    doubtless.Gallery.create(tmp_path / "nameless", images=images, model=other).close()
    with doubtless.Gallery.open(tmp_path / "nameless") as gallery:  # no name leads to it: it is kept itself
        assert gallery.ask(IMAGES[2], k=1).hits[0].label == "class 0"
