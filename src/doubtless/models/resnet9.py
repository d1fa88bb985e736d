"""ResNet-9: a residual network for images of 28 to 64 pixels a side, of which timm's networks leave a pixel or two.

The network of David Page's *How to train your ResNet* (2018): eight convolutions with batch normalisation, three of
them with a pooling by two and four of them in two residual blocks, then the largest value of each channel.
"""

from __future__ import annotations

from torch import Tensor, nn


class Residual(nn.Sequential):
    """x + f(x)."""

    def forward(self, images: Tensor) -> Tensor:
        return images + super().forward(images)


def resnet9(channels: int = 3) -> nn.Sequential:
    """Images of 8×8 or larger to 512 features.

    >>> import torch
    >>> resnet9(1).eval()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 512])
    """
    return nn.Sequential(
        _convolution(channels, 64),
        _convolution(64, 128, halved=True),
        Residual(_convolution(128, 128), _convolution(128, 128)),
        _convolution(128, 256, halved=True),
        _convolution(256, 512, halved=True),
        Residual(_convolution(512, 512), _convolution(512, 512)),
        nn.AdaptiveMaxPool2d(1),
        nn.Flatten(),
    )


def _convolution(inputs: int, outputs: int, *, halved: bool = False) -> nn.Sequential:
    layers = [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
    return nn.Sequential(*layers, *([nn.MaxPool2d(2)] if halved else []))
