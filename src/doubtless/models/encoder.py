"""Generalised-mean pooling (Radenović et al. 2018): between the mean (p = 1) and the maximum (p → ∞).

Encoder: images to features. Scaling, normalisation, backbone and pooling in one module.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from doubtless.errors import InputError, nearest
from doubtless.models import networks as torchvision_net
from doubtless.models.networks import SMALL, resnet9


class GeM(nn.Module):
    """(batch, C, H, W) → (batch, C): `(mean x^p)^(1/p)` of the positive part, p learned.

    `count` of them, each with its own p, give (batch, count · C), one after the other.

    >>> GeM(p=1.0)(torch.ones(2, 8, 7, 7)).shape
    torch.Size([2, 8])
    """

    def __init__(self, p: float = 3.0, floor: float = 1e-6, *, count: int = 1) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor(p) if count == 1 else torch.full((count, 1), p))
        self.floor = floor  # a channel that is zero everywhere would have an infinite gradient

    def forward(self, maps: Tensor) -> Tensor:
        # Powers of small numbers vanish in half precision.
        with torch.autocast(maps.device.type, enabled=False):
            positive = maps.float().clamp_min(self.floor)
            if self.p.dim() == 0:
                return positive.pow(self.p).mean(dim=(-2, -1)).pow(1 / self.p)
            powers = positive.unsqueeze(1).pow(self.p[..., None, None])  # (batch, count, C, H, W)
            return powers.mean(dim=(-2, -1)).pow(1 / self.p).flatten(1)


OWN: dict[str, Callable[[int], nn.Module]] = {**SMALL, "resnet9": resnet9}  # by their number of channels
Pooling = Literal["auto", "gem", "avg"]
Normalization = Literal["auto", "none", "imagenet", "symmetric"]

STATISTICS = {
    "none": ((0.0,), (1.0,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "symmetric": ((0.5,), (0.5,)),
}


def channels_last_pays(backbone: str, device: torch.device) -> bool:
    """Whether a network is faster with the channels of a pixel side by side in memory: on a GPU."""
    return device.type == "cuda"


class Encoder(nn.Module):
    """Images (n, C, H, W), uint8 or floats in [0, 1], to features (n, F).

    `backbone`: "conv-fashion", "conv-cifar", "resnet9", "googlenet" or any timm model's name. `size` is the
    side of the images, where the number of features depends on it. Normalisation lies in here, so that nobody can
    forget it.

    >>> Encoder("conv-fashion", channels=1, size=28)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 9216])
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: str,
        *,
        channels: int,
        size: int,
        pooling: Pooling = "auto",
        weights: str | Path | None = None,
        pretrained: bool = False,
        normalization: Normalization = "auto",
    ) -> None:
        super().__init__()
        self.name = backbone
        self.channels_last = False
        if backbone in OWN:
            if pooling == "gem" or pretrained:
                raise InputError(f"{backbone} has neither a pooling to choose nor pretrained weights.")
            self.backbone: nn.Module = OWN[backbone](channels)
            self.pooling: nn.Module = nn.Identity()
            statistics = STATISTICS["none" if normalization == "auto" else normalization]
            self.takes = channels
        else:
            self.backbone, statistics = _timm_model(backbone, pooling, pretrained, normalization)
            self.pooling = GeM() if pooling == "gem" else nn.Identity()
            self.takes = 3
        if weights is not None:
            load_weights(self.backbone, Path(weights))
        for name, values in zip(("mean", "std"), statistics, strict=True):
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1), persistent=False)
        self.feature_dim = self._count_features(backbone, channels, size)
        self.poolings = 1

    def pool_apart(self, count: int) -> None:
        """GeM `count` times, each with a p of its own: features (n, count · F). Without GeM nothing changes.

        For heads that look at an image in different ways: a mean and a variance, say.

        >>> encoder = Encoder("resnet10t", channels=3, size=32, pooling="gem").eval()
        >>> encoder.pool_apart(2)
        >>> encoder(torch.zeros(1, 3, 32, 32)).shape, encoder.feature_dim
        (torch.Size([1, 1024]), 1024)
        """
        if not isinstance(self.pooling, GeM):
            return
        frozen = not self.pooling.p.requires_grad
        self.feature_dim = self.feature_dim // self.poolings * count
        self.pooling, self.poolings = GeM(count=count).requires_grad_(not frozen), count

    def use_channels_last(self, on: bool) -> None:
        """Lays weights and, in `forward`, images out with the channels last, or first again.

        Only strides change: shapes, state dicts and the order of features are what they were.
        """
        self.channels_last = on
        layout = torch.channels_last if on else torch.contiguous_format
        self.backbone.to(memory_format=layout)  # type: ignore[call-overload]  # torch's types leave it out

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Encoder:
        """What `to`, `cuda` and `cpu` end in: on another device another layout may pay."""
        super()._apply(fn, recurse)
        pays = channels_last_pays(self.name, self.mean.device)
        if pays != self.channels_last:
            self.use_channels_last(pays)
        return self

    def forward(self, images: Tensor) -> Tensor:
        if not images.is_floating_point():
            images = images.to(self.mean.dtype) / 255
        if images.shape[1] == 1 and self.takes == 3:
            images = images.expand(-1, 3, -1, -1)
        images = (images - self.mean) / self.std
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return self.pooling(self.backbone(images))

    @torch.no_grad()
    def _count_features(self, backbone: str, channels: int, size: int) -> int:
        training = self.training
        self.eval()
        try:
            features = self(torch.zeros(1, channels, size, size))
        except RuntimeError as error:
            raise InputError(f"{backbone} cannot take {channels}×{size}×{size} images: {error}.") from error
        self.train(training)
        if features.dim() != 2:
            raise InputError(
                f"{backbone} gives features of shape {tuple(features.shape)[1:]}; set model.pooling."
            )
        return features.shape[1]


def _timm_model(
    name: str, pooling: Pooling, pretrained: bool, normalization: Normalization
) -> tuple[nn.Module, tuple[tuple[float, ...], tuple[float, ...]]]:
    """A timm model (or GoogLeNet) without its classifier, and the channel statistics it was trained with."""
    import timm

    if name == torchvision_net.NAME:
        made = torchvision_net.googlenet(pooled=pooling != "gem", pretrained=pretrained)
        return made, torchvision_net.STATISTICS if normalization == "auto" else STATISTICS[normalization]
    if not timm.is_model(name):
        known = [*OWN, torchvision_net.NAME, *timm.list_models()]
        raise InputError(f"There is no backbone {name!r}{nearest(name, known)}")
    # GeM wants the map of features, the others want timm's own pooling.
    arguments: dict[str, Any] = {"auto": {}, "gem": {"global_pool": ""}, "avg": {"global_pool": "avg"}}[
        pooling
    ]
    try:
        model = timm.create_model(name, pretrained=pretrained, num_classes=0, **arguments)
    except (RuntimeError, OSError, TypeError) as error:
        raise InputError(f"timm cannot make {name}: {error}.") from error
    if normalization != "auto":
        return model, STATISTICS[normalization]
    trained_with: Any = model.pretrained_cfg
    return model, (tuple(trained_with["mean"]), tuple(trained_with["std"]))


def load_weights(model: nn.Module, path: Path) -> None:
    """Loads local safetensors weights; a classifier that the model does not have is left out."""
    from safetensors.torch import load_file

    if not path.is_file():
        raise InputError(f"There are no weights at {path}.")
    try:
        state = load_file(path)
    except Exception as error:
        raise InputError(f"{path} is no readable safetensors file: {error}.") from error
    expected = model.state_dict()
    if missing := [key for key in expected if key not in state and not key.endswith("num_batches_tracked")]:
        raise InputError(
            f"The weights at {path} do not fit this backbone: {len(missing)} of {len(expected)} tensors are "
            f"missing, the first is {missing[0]}."
        )
    try:
        kept = {key: state[key].to(expected[key].dtype) for key in expected if key in state}
        model.load_state_dict(kept, strict=False)
    except RuntimeError as error:
        raise InputError(f"The weights at {path} do not fit this backbone: {error}.") from error
