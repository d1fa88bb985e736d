"""Encoder: images to features. Scaling, normalisation, backbone and pooling in one module."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm

from doubtless.errors import InputError
from doubtless.models.backbones import STATISTICS, Normalization, Pooling, build_backbone, load_weights

BatchNorm = Literal["trained", "frozen"]
FeatureNorm = Literal["none", "layer"]


class GeM(nn.Module):
    """(batch, C, H, W) → (batch, C): `(mean x^p)^(1/p)` of the positive part, p learned.

    Generalised-mean pooling (Radenović et al. 2018): between the mean (p = 1) and the maximum (p → ∞).

    `count` of them, each with its own p, give (batch, count · C), one after the other.

    >>> GeM(p=1.0)(torch.ones(2, 8, 7, 7)).shape
    torch.Size([2, 8])
    """

    def __init__(self, p: float = 3.0, floor: float = 1e-6, *, count: int = 1) -> None:
        super().__init__()
        self.p = nn.Parameter(torch.tensor(p) if count == 1 else torch.full((count, 1), p))
        self.floor = floor  # a channel that is zero everywhere would have an infinite gradient

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (batch, C, H, W) to (batch, count · C)."""
        # Powers of small numbers vanish in half precision.
        with torch.autocast(maps.device.type, enabled=False):
            positive = maps.float().clamp_min(self.floor)
            if self.p.dim() == 0:
                return positive.pow(self.p).mean(dim=(-2, -1)).pow(1 / self.p)
            powers = positive.unsqueeze(1).pow(self.p[..., None, None])  # (batch, count, C, H, W)
            return powers.mean(dim=(-2, -1)).pow(1 / self.p).flatten(1)


def first_stages(network: nn.Module, count: int, *, name: str) -> list[str]:
    """Names of all modules of a network up to the end of its `count`-th stage, in the order they are defined in.

    Stages are those that timm says a network has, after each of which maps have another size; of other networks
    they are its children. None of them: no names.

    >>> first_stages(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3)), 2, name="mine")
    ['0', '1']
    """
    if count == 0:
        return []
    told = getattr(network, "feature_info", None)
    stages = [one["module"] for one in told] if told else [child for child, _ in network.named_children()]
    if count > len(stages):
        raise InputError(f"model.frozen_stages is {count}, but {name} has {len(stages)} stages.")
    modules = [module for module, _ in network.named_modules()][1:]
    last = max(
        number
        for number, module in enumerate(modules)
        if module == stages[count - 1] or module.startswith(f"{stages[count - 1]}.")
    )
    inside = modules[: last + 1]
    # A module that goes on after the stage's end is not of the stage, though it begins before.
    return [
        module
        for module in inside
        if not any(later.startswith(f"{module}.") for later in modules[last + 1 :])
    ]


def channels_last_pays(backbone: str, device: torch.device) -> bool:
    """Whether a network is faster with the channels of a pixel side by side in memory: on a GPU."""
    return device.type == "cuda"


class Encoder(nn.Module):
    """Images (n, C, H, W), uint8 or floats in [0, 1], to features (n, F).

    `backbone`: "conv-fashion", "conv-cifar", "resnet9", "googlenet", a plugin's, any timm model's name, or
    "module:package.function"; `given` is the network itself, of which a copy is taken. `size` is the side of the
    images, where the number of features depends on it. Normalisation lies in here, so that nobody can forget it.
    `frozen_stages`, `batch_norm`, `feature_norm` and `dropout` are those of the section `model`.

    >>> Encoder("conv-fashion", channels=1, size=28)(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 9216])
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        backbone: str,
        *,
        given: nn.Module | None = None,
        channels: int,
        size: int,
        pooling: Pooling = "auto",
        weights: str | Path | None = None,
        pretrained: bool = False,
        normalization: Normalization = "auto",
        frozen_stages: int = 0,
        batch_norm: BatchNorm = "trained",
        feature_norm: FeatureNorm = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.name = backbone
        self.channels_last = False
        self.freezes_batch_norm = batch_norm == "frozen"
        self.feature_norm = feature_norm
        self.dropout = nn.Dropout(dropout)
        self.poolings = 1
        self._resting: list[str] = []
        built = build_backbone(
            backbone, given=given, channels=channels, pooling=pooling, pretrained=pretrained
        )
        self.backbone: nn.Module = built.network
        self.pooling: nn.Module = nn.Identity()
        self.takes = built.channels
        statistics = built.statistics if normalization == "auto" else STATISTICS[normalization]
        if len(statistics[0]) > built.channels:
            raise InputError(
                f"model.normalization: {normalization} is for colour images, got {channels} channel."
            )
        if weights is not None:
            load_weights(self.backbone, Path(weights))
        for name, values in zip(("mean", "std"), statistics, strict=True):
            self.register_buffer(name, torch.tensor(values).view(1, -1, 1, 1), persistent=False)
        if built.poolable:
            self._pool_maps(pooling, self._try(channels, size))
        elif pooling == "gem":
            self.pooling = GeM()
        self.feature_dim = self._count_features(self._try(channels, size))
        self._resting = first_stages(self.backbone, frozen_stages, name=backbone)
        for part in self._resting:
            for parameter in self.backbone.get_submodule(part).parameters(recurse=False):
                parameter.requires_grad_(False)

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
        """Images (batch, C, H, W), bytes or floats in [0, 1], to features (batch, F)."""
        return self.before_head(self._pooled(images))

    def _pooled(self, images: Tensor) -> Tensor:
        if not images.is_floating_point():
            images = images.to(self.mean.dtype) / 255
        if images.shape[1] == 1 and self.takes == 3:
            images = images.expand(-1, 3, -1, -1)
        images = (images - self.mean) / self.std
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return self.pooling(self.backbone(images))

    def before_head(self, features: Tensor) -> Tensor:
        """Pooled features (batch, F) as a head takes them: each pooling's normalised, and dropped, where so set."""
        if self.feature_norm == "layer":
            each = features.unflatten(-1, (self.poolings, -1))
            features = layer_norm(each, each.shape[-1:]).flatten(-2)
        return self.dropout(features)

    def extra_repr(self) -> str:
        """What its parts do not say; cached features are known by it."""
        return f"feature_norm={self.feature_norm}"

    def train(self, mode: bool = True) -> Encoder:
        """Batch norm that is frozen, and stages that are, stay in evaluation mode: their statistics stay."""
        super().train(mode)
        for part in self._resting:
            self.backbone.get_submodule(part).training = False
        if self.freezes_batch_norm:
            for module in self.backbone.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    @torch.no_grad()
    def _try(self, channels: int, size: int) -> Tensor:
        """What a black image gives."""
        training = self.training
        self.eval()
        try:
            features = self._pooled(torch.zeros(1, channels, size, size))
        except (RuntimeError, ValueError, TypeError) as error:
            raise InputError(f"{self.name} cannot take {channels}×{size}×{size} images: {error}.") from error
        self.train(training)
        if not isinstance(features, Tensor) or not features.is_floating_point():
            raise InputError(
                f"{self.name} must give one tensor of features, got a {type(features).__name__}."
            )
        return features

    def _pool_maps(self, pooling: Pooling, output: Tensor) -> None:
        """Pools where a network gives maps (n, F, h, w)."""
        if output.dim() == 4:
            self.pooling = GeM() if pooling == "gem" else nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        elif pooling == "gem":
            raise InputError(f"{self.name} gives features, not maps of them: it has no pooling to choose.")

    def _count_features(self, features: Tensor) -> int:
        if features.dim() != 2:
            raise InputError(
                f"{self.name} gives features of shape {tuple(features.shape)[1:]}; set model.pooling."
            )
        return features.shape[1]
