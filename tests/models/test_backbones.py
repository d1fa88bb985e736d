"""Networks of others: by their import path, as objects, by plugins."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from doubtless.errors import InputError
from doubtless.models import BACKBONES, Encoder, GeM
from doubtless.models.backbones import PYTHON


class Maps(nn.Module):
    """Images (n, 3, H, W) to maps (n, 4, H, W)."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 1)

    def forward(self, images: Tensor) -> Tensor:
        return self.layer(images)


class Two(nn.Module):
    def forward(self, images: Tensor) -> Any:
        return images, images


def flat() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, 5))


def nothing() -> int:
    return 0


def test_an_import_path_names_a_network() -> None:
    encoder = Encoder(f"module:{__name__}.Maps", channels=3, size=8)
    assert encoder.feature_dim == 4
    images = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(encoder(images), encoder.backbone(images).mean((-2, -1)))
    assert Encoder(f"module:{__name__}.flat", channels=3, size=8).feature_dim == 5


def test_maps_are_pooled_as_configured_and_images_normalised() -> None:
    encoder = Encoder(f"module:{__name__}.Maps", channels=3, size=8, pooling="gem", normalization="imagenet")
    assert isinstance(encoder.pooling, GeM)
    assert encoder.mean.flatten().tolist() == pytest.approx([0.485, 0.456, 0.406])


def test_an_object_is_copied() -> None:
    mine = Maps()
    encoder = Encoder(PYTHON, given=mine, channels=3, size=8)
    images = torch.rand(1, 3, 8, 8)
    torch.testing.assert_close(encoder(images), mine(images).mean((-2, -1)))
    nn.init.zeros_(encoder.backbone.layer.weight)  # type: ignore[union-attr, arg-type]
    assert bool(mine.layer.weight.any())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"backbone": PYTHON}, "given as a Python object"),
        ({"backbone": f"module:{__name__}.nothing"}, "must be an nn.Module, got a int"),
        ({"backbone": f"module:{__name__}.none"}, "has no none"),
        ({"backbone": f"module:{__name__}.flat", "pooling": "gem"}, "no pooling to choose"),
        ({"backbone": f"module:{__name__}.flat", "size": 9}, "cannot take 3×9×9 images"),
        ({"backbone": f"module:{__name__}.flat", "pretrained": True}, "no pretrained weights to fetch"),
        ({"backbone": "mine", "given": Two()}, "one tensor of features, got a tuple"),
        ({"backbone": "mine", "given": nn.Identity(), "channels": 1}, None),
    ],
)
def test_networks_that_do_not_fit_are_sentences(arguments: dict[str, Any], sentence: str | None) -> None:
    if sentence is None:
        assert Encoder(**{"channels": 3, "size": 8, **arguments}).feature_dim == 1
        return
    with pytest.raises(InputError, match=sentence):
        Encoder(**{"channels": 3, "size": 8, **arguments})


def test_a_backbone_can_be_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BACKBONES, "_items", dict(BACKBONES._items))

    @BACKBONES.register("wide")
    def wide(channels: int) -> nn.Module:
        return nn.Conv2d(channels, 7, 3)

    assert Encoder("wide", channels=1, size=8).feature_dim == 7
    with pytest.raises(InputError, match="the nearest are 'wide'"):
        Encoder("wibe", channels=1, size=8)
    with pytest.raises(InputError, match="must be a function"):
        BACKBONES.register("number", 5)  # type: ignore[arg-type]
