"""Networks that timm lacks.

conv-fashion, conv-cifar   the small ones of Warburg et al. 2023 (LAM), up to their last linear layer
resnet9                    a residual network for images of 28 to 64 pixels a side, of which timm's networks leave a
                           pixel or two: that of David Page's *How to train your ResNet* (2018), eight convolutions
                           with batch normalisation, three of them with a pooling by two and four of them in two
                           residual blocks, then the largest value of each channel
googlenet                  Szegedy et al. 2015, up to its last map of features
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from doubtless.errors import InputError


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


class Residual(nn.Sequential):
    """x + f(x)."""

    def forward(self, images: Tensor) -> Tensor:
        """The same shape."""
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


NAME = "googlenet"
STATISTICS = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))  # what torchvision's weights were trained with
AFTER_THE_MAP = {"avgpool", "dropout", "fc", "aux1", "aux2"}


def googlenet(*, pooled: bool = True, pretrained: bool = False) -> nn.Sequential:
    """torchvision's network: images to 1,024 features, or to their map (n, 1024, H/32, W/32) where not `pooled`.

    Layers keep their names, so weights of torchvision fit. `pretrained` downloads those of ImageNet.

    >>> import torch
    >>> googlenet().eval()(torch.zeros(1, 3, 64, 64)).shape
    torch.Size([1, 1024])
    """
    from torchvision.models import GoogLeNet_Weights
    from torchvision.models import googlenet as whole_network

    try:
        if pretrained:
            model = whole_network(weights=GoogLeNet_Weights.IMAGENET1K_V1)
        else:
            model = whole_network(weights=None, aux_logits=False, init_weights=True)
    except (RuntimeError, OSError) as error:
        raise InputError(f"torchvision cannot make {NAME}: {error}.") from error
    layers = OrderedDict((name, layer) for name, layer in model.named_children() if name not in AFTER_THE_MAP)
    if pooled:
        layers |= OrderedDict(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
    return nn.Sequential(layers)
