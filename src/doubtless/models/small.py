"""The two small convolutional networks of Warburg et al. 2023 (LAM), up to their last linear layer."""

from __future__ import annotations

from torch import nn


def conv_fashion(channels: int = 1) -> nn.Sequential:
    """28×28 images to 9,216 features."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
    )


def conv_cifar(channels: int = 3) -> nn.Sequential:
    """32×32 images to 1,024 features."""
    return nn.Sequential(
        nn.Conv2d(channels, 32, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(64, 64, 3),
        nn.ReLU(),
        nn.Flatten(),
    )


SMALL = {"conv-fashion": conv_fashion, "conv-cifar": conv_cifar}
