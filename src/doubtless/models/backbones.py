"""Backbones by name: our small networks and those of plugins, GoogLeNet, every timm model, a function of yours."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import nn

from doubtless.errors import InputError, nearest_few
from doubtless.models import networks
from doubtless.registry import MODULE, Registry, call_import_path

Pooling = Literal["auto", "gem", "avg"]
Normalization = Literal["auto", "none", "imagenet", "symmetric"]
Statistics = tuple[tuple[float, ...], tuple[float, ...]]

STATISTICS: dict[str, Statistics] = {
    "none": ((0.0,), (1.0,)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "symmetric": ((0.5,), (0.5,)),
}
PYTHON = "python"
"""The name of a network that was given as an object and that no import path leads to."""


def _check_backbone(name: str, build: Any) -> None:
    if not callable(build):
        raise InputError(
            f"The backbone {name!r} must be a function of the number of channels, got {build!r}."
        )


BACKBONES: Registry[Callable[[int], nn.Module]] = Registry(
    "backbone", group="doubtless.backbones", check=_check_backbone
)
"""Functions of the number of channels that make a network: images (n, C, H, W) to features (n, F) or maps of them
(n, F, h, w), which are pooled."""
for _name, _build in {**networks.SMALL, "resnet9": networks.resnet9}.items():
    BACKBONES.register(_name, _build)


class Backbone(NamedTuple):
    """A network without pooling, the channel statistics it was trained with, and the channels it takes."""

    network: nn.Module
    statistics: Statistics
    channels: int
    poolable: bool
    """Whether it leaves pooling to the encoder where it gives maps: what timm makes pools by itself."""


def build_backbone(
    name: str, *, given: nn.Module | None = None, channels: int, pooling: Pooling, pretrained: bool
) -> Backbone:
    """A backbone by its name, or a copy of the one that is `given` as an object.

    >>> build_backbone("conv-fashion", channels=1, pooling="auto", pretrained=False).channels
    1
    """
    if given is None and name != PYTHON and not name.startswith(MODULE) and name not in BACKBONES:
        return _from_a_hub(name, pooling, pretrained)
    if pretrained:
        raise InputError(f"{name} has no pretrained weights to fetch; name a file of them by model.weights.")
    if given is not None:
        network = copy.deepcopy(given)
    elif name == PYTHON:
        raise InputError(
            "The network was given as a Python object, which no name leads to; give it again: "
            "doubtless.load(run, encoder=...) or train(..., encoder=...)."
        )
    else:
        network = call_import_path(name) if name.startswith(MODULE) else BACKBONES.get(name)(channels)
    if not isinstance(network, nn.Module):
        raise InputError(f"The backbone {name} must be an nn.Module, got a {type(network).__name__}.")
    # A network that was saved has said what it was trained with.
    statistics: Any = getattr(given, "statistics", STATISTICS["none"])
    return Backbone(network, statistics, int(getattr(given, "takes", channels)), poolable=True)


def _from_a_hub(name: str, pooling: Pooling, pretrained: bool) -> Backbone:
    """A timm model or GoogLeNet, without its classifier."""
    import timm

    if name == networks.NAME:
        network = networks.googlenet(pooled=pooling != "gem", pretrained=pretrained)
        return Backbone(network, networks.STATISTICS, 3, poolable=False)
    if not timm.is_model(name):
        known = [*BACKBONES, networks.NAME, *timm.list_models()]
        raise InputError(f"There is no backbone {name!r}{nearest_few(name, known)}")
    # GeM wants the map of features, the others want timm's own pooling.
    arguments: dict[str, Any] = {"auto": {}, "gem": {"global_pool": ""}, "avg": {"global_pool": "avg"}}[
        pooling
    ]
    try:
        with _weights_at_hand(name) if pretrained else nullcontext():
            model = timm.create_model(name, pretrained=pretrained, num_classes=0, **arguments)
    except InputError:
        raise
    except Exception as error:  # timm and what it asks the network with raise their own
        raise InputError(f"timm cannot make {name}: {error}.") from error
    trained_with: Any = model.pretrained_cfg
    return Backbone(model, (tuple(trained_with["mean"]), tuple(trained_with["std"])), 3, poolable=False)


def _weights_at_hand(name: str) -> AbstractContextManager[None]:
    """Refuses to wait for a hub that does not answer."""
    import timm

    from doubtless.hub import reachable_hub

    about = timm.get_pretrained_cfg(name)
    if about is None or not about.hf_hub_id:  # from elsewhere, or none
        return nullcontext()
    otherwise = (
        f"Get its weights as a safetensors file where there is a network, and name it with --weights FILE "
        f"(model.weights in a configuration), or put it at $DOUBTLESS_DATA/{weights_names(name)[0]}."
    )
    return reachable_hub(about.hf_hub_id, "model.safetensors", otherwise=otherwise)


def weights_names(name: str) -> list[str]:
    """What a file of weights for a timm model may be called below $DOUBTLESS_DATA.

    >>> weights_names("tf_efficientnet_lite0")
    ['tf_efficientnet_lite0.safetensors', 'efficientnet_lite0.safetensors']
    """
    return list(dict.fromkeys(f"{one}.safetensors" for one in (name, name.removeprefix("tf_"))))


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
