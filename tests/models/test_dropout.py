"""Dropout after the blocks of any network: which they are, and samples that are those of a loop over masks."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from timm.models.densenet import DenseNet
from timm.models.swin_transformer import SwinTransformer
from torch import Tensor, nn

from doubtless.errors import InputError
from doubtless.models import Encoder, dropout
from doubtless.models.backbones import PYTHON
from doubtless.models.blocks import find_blocks
from doubtless.models.dropout import BlockDropout


class Doubled(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layer = nn.Conv2d(channels, channels, 1)

    def forward(self, values: Tensor) -> Tensor:
        return values + self.layer(values).relu()


class Wrapper(nn.Module):
    """A network of somebody else, and a layer behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), Doubled(6), Doubled(6))
        self.neck = nn.Linear(6, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.neck(self.inner(images).mean((-2, -1)))


class LooksAtValues(Wrapper):
    """Cannot run without values, and has a tensor that nobody moves."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.ones(1)

    def forward(self, images: Tensor) -> Tensor:
        if bool(images.isnan().any()):
            return images
        return super().forward(images) * self.plain


def dense() -> nn.Module:
    return DenseNet(growth_rate=4, block_config=(2, 1), num_classes=0)


def swin() -> nn.Module:
    net = SwinTransformer(
        img_size=32, patch_size=4, window_size=4, embed_dim=8, depths=(2, 1), num_heads=(2, 2), num_classes=0
    )
    return nn.Sequential(net, nn.Flatten())


def layers() -> nn.Module:
    first = (nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    return nn.Sequential(*first, nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 28 * 28, 7))


LITE0 = (1, 2, 2, 3, 3, 4, 1)
GOOGLENET = ["3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a"]
CASES: dict[str, tuple[str | Callable[[], nn.Module], int, dict[str, int]]] = {
    # What it is, the side of the images, and its blocks with the axis of their channels, in the order they are run.
    "resnet": ("test_resnet", 32, {f"layer{n}.0": 1 for n in (1, 2, 3)}),
    "efficientnet": (
        "tf_efficientnet_lite0",
        32,
        {f"blocks.{stage}.{n}": 1 for stage, count in enumerate(LITE0) for n in range(count)},
    ),
    "convnext": (
        "test_convnext",
        32,
        {f"stages.{stage}.blocks.{n}": 1 for stage, count in enumerate((1, 2, 4, 2)) for n in range(count)},
    ),
    "vit": ("test_vit", 160, {f"blocks.{n}": 2 for n in range(6)}),
    "densenet": (
        dense,
        32,
        {f"features.denseblock{n}": 1 for n in ("1.denselayer1", "1.denselayer2", "2.denselayer1")},
    ),
    "swin": (swin, 32, {"0.layers.0.blocks.0": 3, "0.layers.0.blocks.1": 3, "0.layers.1.blocks.0": 3}),
    "resnet9": ("resnet9", 16, {str(n): 1 for n in range(5)}),
    "googlenet": (
        "googlenet",
        64,
        {f"conv{n}": 1 for n in (1, 2, 3)} | {f"inception{name}": 1 for name in GOOGLENET},
    ),
    "wrapper": (Wrapper, 16, {"inner.2": 1, "inner.3": 1}),
    "looks": (LooksAtValues, 16, {"inner.2": 1, "inner.3": 1}),
    "layers": (layers, 32, {"2": 1, "5": 1}),
}


def an_encoder(case: str) -> tuple[Encoder, int]:
    torch.manual_seed(3)
    what, size, _ = CASES[case]
    named: dict[str, Any] = (
        {"backbone": what} if isinstance(what, str) else {"backbone": PYTHON, "given": what()}
    )
    encoder = Encoder(**named, channels=3, size=size).eval()
    for module in encoder.modules():  # statistics that tell channels apart, and a scale that reaches the end
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.8, 1.6)
            nn.init.normal_(module.bias, std=0.2)
    return encoder, size


def some_images(count: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)


def looped(encoder: Encoder, head: nn.Linear, image: Tensor, masks: Tensor, axes: dict[str, int]) -> Tensor:
    """One image through a network whose blocks are thinned by hooks, one draw."""
    network, left = copy.deepcopy(encoder), masks

    def thin(axis: int) -> Callable[..., Tensor]:
        def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            nonlocal left
            width = output.shape[axis]
            mask, left = left[:width], left[width:]
            return (output.movedim(axis, -1) * mask).movedim(-1, axis)

        return hook

    for name, axis in axes.items():
        network.backbone.get_submodule(name).register_forward_hook(thin(axis))
    features = network(image[None])[0]
    assert len(left) == len(features)
    return head(features * left)


@pytest.mark.parametrize("case", CASES)
def test_draws_are_those_of_a_loop_over_masks(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, size = an_encoder(case)
    untouched, axes = copy.deepcopy(encoder), CASES[case][2]
    blocks = BlockDropout(encoder, size=size)
    assert {block.name: block.axis for block in blocks.outputs} == axes
    assert encoder.state_dict().keys() == untouched.state_dict().keys()
    head, images = nn.Linear(encoder.feature_dim, 4), some_images(3, size)
    width = sum(blocks.widths) + encoder.feature_dim
    masks = dropout.draw_masks(width, rate=0.2, samples=3, generator=torch.Generator().manual_seed(1))
    monkeypatch.setattr(dropout, "SAMPLED_IMAGES", 6)  # two images with their three draws
    with torch.no_grad():
        found = blocks.draw(encoder, head, images, masks=masks)
        expected = torch.stack(
            [torch.stack([looped(untouched, head, image, mask, axes) for image in images]) for mask in masks]
        )
        assert found.shape == (3, 3, 4)
        scale = float(expected.abs().max())
        torch.testing.assert_close(found, expected, atol=2e-5 * scale, rtol=1e-4)
        assert float((found[0] - found[1]).abs().max()) > 1e-3 * scale
        alone = blocks.draw(encoder, head, images[2:], masks=masks)
        torch.testing.assert_close(alone, found[:, 2:], atol=2e-5 * scale, rtol=1e-4)
        monkeypatch.setattr(dropout, "SAMPLED_VALUES", 1)  # one image, one draw
        torch.testing.assert_close(
            blocks.draw(encoder, head, images[:1], masks=masks), found[:, :1], atol=2e-5 * scale, rtol=1e-4
        )
        assert blocks.draw(encoder, head, images[:0], masks=masks).shape == (3, 0, 4)
        assert torch.equal(encoder(images), untouched(images))  # nobody asks for dropout


def test_what_is_before_the_first_dropout_runs_once_for_an_image() -> None:
    rows: dict[str, int] = {}
    for case, stem, behind in (
        ("resnet", "conv1", "layer4.0"),
        ("densenet", "features.conv0", "features.norm5"),
    ):
        encoder, size = an_encoder(case)
        blocks = BlockDropout(encoder, size=size)
        for name in (stem, behind):
            module = encoder.backbone.get_submodule(name)
            module.register_forward_pre_hook(
                lambda module, values, at=name: rows.update({at: len(values[0])})
            )
        masks = torch.ones(5, sum(blocks.widths) + encoder.feature_dim)
        with torch.no_grad():
            blocks.draw(encoder, nn.Linear(encoder.feature_dim, 2), some_images(2, size), masks=masks)
        assert (rows[stem], rows[behind]) == (2, 10), case


def test_other_sizes_at_test_time_have_the_same_masks() -> None:
    encoder, _ = an_encoder("resnet")
    blocks = BlockDropout(encoder, size=32)
    masks = dropout.draw_masks(
        sum(blocks.widths) + encoder.feature_dim, rate=0.2, samples=2, generator=torch.Generator()
    )
    head, images = nn.Linear(encoder.feature_dim, 4), some_images(2, 48)
    with torch.no_grad():
        found = blocks.draw(encoder, head, images, masks=masks)
        expected = looped(encoder, head, images[1], masks[1], CASES["resnet"][2])
    torch.testing.assert_close(found[1, 1], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("case", ["resnet", "vit", "densenet", "swin"])
def test_training_drops_channels_of_every_image_anew(case: str) -> None:
    encoder, size = an_encoder(case)
    blocks = BlockDropout(encoder, size=size)
    seen: list[Tensor] = []
    block = blocks.outputs[0]
    encoder.backbone.get_submodule(block.name).register_forward_hook(
        lambda *call: seen.append(call[2].detach())
    )
    images = some_images(1, size).expand(40, -1, -1, -1)
    encoder(images)
    with blocks.per_image(0.25):
        features = encoder(images)
    kept, thinned = (values.movedim(block.axis, 1).flatten(2) for values in seen)
    dropped = (thinned == 0).all(-1)[
        :, (kept != 0).any(-1).all(0)
    ]  # (image, channel), all places of a channel at once
    torch.testing.assert_close(thinned, torch.where((thinned == 0).all(-1)[..., None], 0.0, kept / 0.75))
    assert float(dropped.float().mean()) == pytest.approx(0.25, abs=0.1)
    assert len(dropped.unique(dim=0)) > 8
    features.square().sum().backward()
    for name, value in encoder.backbone.named_parameters():
        assert value.grad is None or bool(torch.isfinite(value.grad).all()), name
    assert sum(value.grad is not None for value in encoder.parameters()) > 4
    assert torch.equal(encoder(images), encoder(images))


def test_threads_that_share_a_network_do_not_drop_for_each_other() -> None:
    encoder, size = an_encoder("resnet")
    blocks, images = BlockDropout(encoder, size=size), some_images(2, size)
    found: list[Tensor] = []
    with torch.no_grad(), blocks.per_image(0.5):
        thread = threading.Thread(target=lambda: found.append(encoder(images).detach()))
        thread.start()
        thread.join()
    assert torch.equal(found[0], encoder(images))


def test_a_copy_has_hooks_of_its_own() -> None:
    encoder, size = an_encoder("densenet")
    blocks = BlockDropout(encoder, size=size)
    other, images = copy.deepcopy(encoder), some_images(2, size)
    head, masks = nn.Linear(encoder.feature_dim, 2), torch.ones(3, sum(blocks.widths) + encoder.feature_dim)
    with torch.no_grad():
        found = blocks.draw(other, head, images, masks=masks)
        torch.testing.assert_close(found[1], head(encoder(images)), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "count", "kind"),
    [
        ("resnet50", 16, "Bottleneck"),
        ("densenet161", 78, "DenseLayer"),
        ("convnext_tiny", 18, "ConvNeXtBlock"),
        ("vit_small_patch16_224", 12, "Block"),
        ("swin_tiny_patch4_window7_224", 12, "SwinTransformerBlock"),
        ("mobilenetv3_small_050", 12, None),
        ("regnety_002", 13, "Bottleneck"),
        ("vgg11", 8, "Conv2d"),
    ],
)
def test_blocks_of_timms_networks(name: str, count: int, kind: str | None) -> None:
    with torch.device("meta"):
        network = timm.create_model(name, num_classes=0)
    names = find_blocks(network)
    kinds = {type(network.get_submodule(block)).__name__ for block in names}
    assert len(names) == count
    assert kind is None or kinds == {kind}
    wrapped = nn.Sequential(network, nn.Flatten())
    assert find_blocks(wrapped) == [f"0.{block}" for block in names]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Doubled(3), Doubled(3)])

    def forward(self, images: Tensor) -> Tensor:
        for block in (*self.blocks, *self.blocks):
            images = block(images)
        return images


class Pairs(Doubled):
    def forward(self, values: Any) -> Any:
        return super().forward(values), 0


class Unpaired(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Pairs(3), Pairs(3)])

    def forward(self, images: Tensor) -> Tensor:
        for block in self.blocks:
            images, _ = block(images)
        return images


@pytest.mark.parametrize(
    ("network", "sentence"),
    [
        (nn.Conv2d(3, 4, 1), "finds no block in python but what the head takes"),
        (nn.Sequential(nn.Conv2d(3, 4, 1), nn.ReLU()), "finds no block in python but what the head takes"),
        (nn.Flatten(), "finds no block in python"),
        (Twice(), "blocks that are run once; this network repeats some"),
        (Unpaired(), r"one tensor with a row for each image; blocks\.0 gives a tuple for 2 images"),
    ],
)
def test_networks_without_blocks_are_sentences(network: nn.Module, sentence: str) -> None:
    encoder = Encoder(PYTHON, given=network, channels=3, size=8)
    with pytest.raises(InputError, match=sentence):
        BlockDropout(encoder, size=8)
    assert not any(module._forward_hooks for module in encoder.modules())
