"""GoogLeNet (Szegedy et al. 2015) up to its last map of features: the one network of the papers that timm lacks."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from doubtless.errors import InputError

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
