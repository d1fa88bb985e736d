"""Networks: shapes, normalisation, pooling, local weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torchvision.models import googlenet as torchvision_googlenet

from doubtless.errors import InputError
from doubtless.models import Encoder, GeM
from doubtless.models.encoder import channels_last_pays

NETWORKS = [
    ("conv-fashion", 1, 28, "auto"),
    ("conv-cifar", 3, 32, "auto"),
    ("resnet9", 3, 16, "auto"),
    ("resnet10t", 3, 48, "gem"),
]


@pytest.mark.parametrize(
    ("backbone", "channels", "size", "features"),
    [
        ("conv-fashion", 1, 28, 9216),
        ("conv-cifar", 3, 32, 1024),
        ("resnet9", 1, 28, 512),
        ("resnet9", 3, 8, 512),
    ],
)
def test_small_networks(backbone: str, channels: int, size: int, features: int) -> None:
    encoder = Encoder(backbone, channels=channels, size=size)
    assert encoder.feature_dim == features
    assert encoder(torch.zeros(2, channels, size, size)).shape == (2, features)


def test_resnet9_by_hand() -> None:
    """Layer by layer, with the sums of its two residual blocks written out."""
    torch.manual_seed(0)
    encoder = Encoder("resnet9", channels=3, size=16).eval()
    first, second, residual, third, fourth, last, *_ = encoder.backbone
    for layer in encoder.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):  # statistics that do something
            layer.running_mean.uniform_(-0.1, 0.1)
            layer.running_var.uniform_(0.5, 2)

    def convolution(layer: torch.nn.Sequential, x: torch.Tensor, *, halved: bool = False) -> torch.Tensor:
        x = torch.nn.functional.conv2d(x, layer[0].weight, padding=1)
        norm = layer[1]
        shape = (1, -1, 1, 1)
        x = (x - norm.running_mean.view(shape)) / (norm.running_var.view(shape) + norm.eps).sqrt()
        x = (x * norm.weight.view(shape) + norm.bias.view(shape)).clamp_min(0)
        return torch.nn.functional.max_pool2d(x, 2) if halved else x

    pixels = torch.rand(2, 3, 16, 16)
    x = convolution(second, convolution(first, pixels), halved=True)
    x = x + convolution(residual[1], convolution(residual[0], x))
    x = convolution(fourth, convolution(third, x, halved=True), halved=True)
    x = x + convolution(last[1], convolution(last[0], x))
    torch.testing.assert_close(encoder(pixels), x.amax((-2, -1)), atol=1e-5, rtol=1e-4)
    assert sum(p.numel() for p in encoder.parameters()) == 6_568_000  # and 5,120 of a classifier


def test_bytes_and_floats_mean_the_same() -> None:
    encoder = Encoder("conv-fashion", channels=1, size=28)
    pixels = torch.randint(256, (3, 1, 28, 28), dtype=torch.uint8)
    torch.testing.assert_close(encoder(pixels), encoder(pixels.float() / 255))


def test_timm_model_is_normalised_as_it_was_trained() -> None:
    encoder = Encoder("tf_efficientnet_lite0", channels=3, size=32).eval()
    bare = timm.create_model("tf_efficientnet_lite0", num_classes=0).eval()
    bare.load_state_dict(encoder.backbone.state_dict())
    pixels = torch.rand(2, 3, 32, 32)
    torch.testing.assert_close(encoder(pixels), bare((pixels - 0.5) / 0.5))


def test_grey_images_feed_a_colour_network() -> None:
    encoder = Encoder("resnet10t", channels=1, size=32).eval()
    grey = torch.rand(2, 1, 32, 32)
    torch.testing.assert_close(encoder(grey), encoder(grey.expand(-1, 3, -1, -1)))


def test_gem_between_mean_and_maximum() -> None:
    maps = torch.rand(2, 5, 4, 4)
    torch.testing.assert_close(GeM(p=1.0)(maps), maps.mean((-2, -1)))
    torch.testing.assert_close(GeM(p=200.0)(maps), maps.amax((-2, -1)), rtol=0.02, atol=0)


def test_gem_gradient_is_finite_where_a_channel_is_zero() -> None:
    pool = GeM()
    maps = torch.zeros(1, 2, 3, 3, requires_grad=True)
    pool(maps).sum().backward()
    assert torch.isfinite(maps.grad).all()
    assert torch.isfinite(pool.p.grad).all()


def test_gem_in_an_encoder_learns_its_power() -> None:
    encoder = Encoder("resnet10t", channels=3, size=64, pooling="gem")
    encoder(torch.rand(2, 3, 64, 64)).sum().backward()
    assert encoder.pooling.p.grad.abs() > 0


def test_several_poolings_have_a_power_each() -> None:
    maps = torch.rand(2, 5, 4, 4)
    both = GeM(count=2)
    with torch.no_grad():
        both.p.copy_(torch.tensor([[1.0], [4.0]]))
    torch.testing.assert_close(both(maps), torch.cat([GeM(p=1.0)(maps), GeM(p=4.0)(maps)], dim=1))


def test_an_encoder_pools_apart_where_it_pools() -> None:
    encoder = Encoder("resnet10t", channels=3, size=32, pooling="gem").eval()
    image = torch.rand(2, 3, 32, 32)
    once = encoder(image)
    encoder.requires_grad_(False).pool_apart(2)
    assert (encoder.poolings, encoder.feature_dim) == (2, 1024)
    torch.testing.assert_close(encoder(image), torch.cat([once, once], dim=1))
    assert not encoder.pooling.p.requires_grad  # frozen before, frozen now
    small = Encoder("conv-fashion", channels=1, size=28)
    small.pool_apart(2)
    assert (small.poolings, small.feature_dim) == (1, 9216)


def conv_weights(encoder: Encoder) -> list[torch.Tensor]:
    return [weight for weight in encoder.backbone.parameters() if weight.dim() == 4]


@pytest.mark.parametrize(("backbone", "channels", "size", "pooling"), NETWORKS)
def test_channels_last_changes_strides_alone(backbone: str, channels: int, size: int, pooling: str) -> None:
    encoder = Encoder(backbone, channels=channels, size=size, pooling=pooling).eval()
    images = torch.randint(256, (3, channels, size, size), dtype=torch.uint8)
    state = {name: value.clone() for name, value in encoder.state_dict().items()}
    weights = conv_weights(encoder)
    features = encoder(images)
    features.square().sum().backward()
    gradients = [weight.grad.clone() for weight in weights]
    encoder.zero_grad()
    encoder.use_channels_last(True)
    assert all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)
    assert any(not weight.is_contiguous() for weight in weights)
    laid_out = encoder(images)
    torch.testing.assert_close(laid_out, features, atol=1e-4, rtol=1e-4)  # their order, above all
    laid_out.square().sum().backward()
    for weight, gradient in zip(weights, gradients, strict=True):
        torch.testing.assert_close(weight.grad, gradient, atol=1e-3, rtol=1e-3)
    assert list(encoder.state_dict()) == list(state)
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, state[name])


def test_on_the_cpu_channels_come_first() -> None:
    encoder = Encoder("conv-cifar", channels=3, size=32)
    plain = Encoder("conv-cifar", channels=3, size=32)
    encoder.use_channels_last(True)
    plain.load_state_dict(encoder.state_dict())
    assert all(weight.is_contiguous() for weight in conv_weights(plain))
    encoder.to("cpu")  # what comes back from a GPU
    assert not encoder.channels_last
    assert all(weight.is_contiguous() for weight in conv_weights(encoder))
    images = torch.rand(2, 3, 32, 32)
    assert torch.equal(encoder(images), plain(images))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("backbone", "channels", "size", "pooling"), NETWORKS)
def test_a_gpu_chooses_the_layout_and_the_features_stay(
    backbone: str, channels: int, size: int, pooling: str
) -> None:
    encoder = Encoder(backbone, channels=channels, size=size, pooling=pooling).eval()
    images = torch.randint(256, (3, channels, size, size), dtype=torch.uint8)
    state = {name: value.clone() for name, value in encoder.state_dict().items()}
    with torch.no_grad(), torch.backends.cudnn.flags(allow_tf32=False):
        expected = encoder(images)
        encoder.cuda()
        assert encoder.channels_last == channels_last_pays(backbone, torch.device("cuda"))
        for on in (True, False):
            encoder.use_channels_last(on)
            torch.testing.assert_close(encoder(images.cuda()).cpu(), expected, atol=1e-3, rtol=1e-3)
    encoder.use_channels_last(True)
    encoder.cpu()
    assert all(weight.is_contiguous() for weight in conv_weights(encoder))
    for name, value in encoder.state_dict().items():
        assert torch.equal(value, state[name])


def test_local_weights(tmp_path) -> None:
    model = timm.create_model("resnet10t")
    state = {
        name: value.half() if value.is_floating_point() else value
        for name, value in model.state_dict().items()
    }
    save_file(state, tmp_path / "w.safetensors")
    encoder = Encoder("resnet10t", channels=3, size=32, weights=tmp_path / "w.safetensors")
    torch.testing.assert_close(encoder.backbone.conv1[0].weight, model.conv1[0].weight.half().float())


def test_bad_models_are_sentences(tmp_path) -> None:
    save_file({"nothing": torch.zeros(1)}, tmp_path / "w.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    for arguments, sentence in [
        ({"backbone": "resnet51"}, "the nearest are 'resnet5"),
        ({"backbone": "conv-fashoin"}, "the nearest are 'conv-fashion'"),
        ({"backbone": "conv-cifar", "size": 6}, "cannot take 3×6×6 images"),
        ({"backbone": "conv-cifar", "pooling": "gem"}, "no pooling to choose"),
        ({"backbone": "resnet10t", "weights": tmp_path / "none"}, "no weights at"),
        ({"backbone": "resnet10t", "weights": tmp_path / "broken.safetensors"}, "no readable safetensors"),
        ({"backbone": "resnet10t", "weights": tmp_path / "w.safetensors"}, "do not fit this backbone"),
    ]:
        with pytest.raises(InputError, match=sentence):
            Encoder(**{"channels": 3, "size": 32, **arguments})


def test_googlenet_is_torchvision_s_up_to_its_features(tmp_path: Path) -> None:
    """Named, normalised and weighted as there: its own weights fit, the classifier's are left out."""
    torch.manual_seed(0)
    whole = torchvision_googlenet(weights=None, aux_logits=False, init_weights=False).eval()
    save_file(whole.state_dict(), tmp_path / "weights.safetensors")
    encoder = Encoder("googlenet", channels=3, size=64, weights=tmp_path / "weights.safetensors").eval()
    assert encoder.feature_dim == 1024
    whole.fc = torch.nn.Identity()
    pixels = torch.rand(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(encoder(pixels), whole((pixels - 0.5) / 0.5))


def test_googlenet_pools_by_gem_and_learns() -> None:
    encoder = Encoder("googlenet", channels=3, size=64, pooling="gem")
    encoder.pool_apart(2)
    features = encoder(torch.rand(2, 3, 64, 64))
    assert features.shape == (2, 2048)
    features.sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())
    with pytest.raises(InputError, match="googlenet"):
        Encoder("googlenett", channels=3, size=64)
