"""Networks of the user's own: what names them, and a model around one that nobody trained here.

A network is an `nn.Module`, or something to call without arguments that makes one, also by its import path. What is
saved names the import path wherever that leads to the same network; elsewhere the object has to be given again.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args
from urllib.parse import parse_qsl, urlencode

import torch
from torch import nn

from doubtless.errors import InputError, nearest
from doubtless.methods import DataSpec, Method, method_class
from doubtless.methods.configuration import make_config
from doubtless.models.backbones import PYTHON, Normalization, Pooling
from doubtless.registry import TIMM, call_import_path, import_path_of


@dataclass(frozen=True)
class ImageOptions:
    """What images a network takes: a square of `size` pixels, its channels, and how these are normalised."""

    size: int = 224
    channels: int = 3
    normalization: Normalization = "imagenet"
    pooling: Pooling = "auto"

    def __post_init__(self) -> None:
        if (
            self.size < 1
            or self.channels not in (1, 3)
            or self.normalization not in get_args(Normalization)
            or self.pooling not in get_args(Pooling)
        ):
            raise InputError(
                "A network takes size=224 or another side, channels=1 or 3, normalization="
                f"{', '.join(get_args(Normalization))}, and pooling={', '.join(get_args(Pooling))}, got {self}."
            )


def address_of(path: str, options: ImageOptions) -> str:
    """An import path with what images the network takes: what a gallery keeps of its model.

    >>> address_of("module:package.function", ImageOptions(size=64))
    'module:package.function?size=64&channels=3&normalization=imagenet&pooling=auto'
    """
    return f"{path}?{urlencode(asdict(options))}"


def read_address(address: str) -> tuple[str, dict[str, Any]]:
    """The path of an address, and the options that it names.

    >>> read_address("module:package.function?size=64")
    ('module:package.function', {'size': 64})
    """
    path, _, query = address.partition("?")
    options: dict[str, Any] = dict(parse_qsl(query))
    known = list(asdict(ImageOptions()))
    if unknown := [name for name in options if name not in known]:
        raise InputError(f"{address} has no option {unknown[0]!r}{nearest(unknown[0], known)}")
    try:
        return path, {
            key: int(value) if key in ("size", "channels") else value for key, value in options.items()
        }
    except ValueError:
        raise InputError(f"The size and channels of {address} must be whole numbers.") from None


def raw_method(
    name: str,
    options: ImageOptions,
    *,
    network: nn.Module | None = None,
    weights: str | Path | None = None,
) -> Method:
    """A network's own features as points, untrained: by its backbone's name, or the object itself.

    Of a timm model with the weights of a file, or else with its published ones.
    """
    pretrained = name.startswith(TIMM) and weights is None
    config = make_config(
        {
            "method": "pretrained",
            "data": {"source": PYTHON, "size": options.size, "channels": options.channels},
            "model": {
                "backbone": name.removeprefix(TIMM),
                "normalization": options.normalization,
                "pooling": options.pooling,
                "pretrained": pretrained,
                "weights": None if weights is None else str(weights),
            },
            "features": {"head": "raw"},
        }
    )
    spec = DataSpec(options.channels, options.size, [], backbone=network)
    return method_class(config.method)(config, spec).eval()


def built_network(encoder: Any) -> tuple[nn.Module, str]:
    """An encoder as the user gives it, built, and the import path that makes it, or "python".

    `encoder`: an `nn.Module`, a function or class to call without arguments, or its import path.
    """
    if isinstance(encoder, str):
        return _as_network(encoder, call_import_path(encoder)), encoder
    if isinstance(encoder, nn.Module):
        return encoder, _path_of(encoder)
    if callable(encoder):
        return _as_network(repr(encoder), encoder()), import_path_of(encoder) or PYTHON
    raise InputError(
        f"An encoder is an nn.Module, a function that makes one, or module:package.function, got {encoder!r}."
    )


def makes_it_again(path: str, network: nn.Module) -> bool:
    """Whether an import path leads to a network with the very same weights."""
    if path == PYTHON:
        return False
    with torch.random.fork_rng(devices=[]):  # whoever asks has no random numbers less
        again, state = call_import_path(path).state_dict(), network.state_dict()
    return again.keys() == state.keys() and all(torch.equal(again[key], state[key].cpu()) for key in state)


def _as_network(name: str, value: Any) -> nn.Module:
    if not isinstance(value, nn.Module):
        raise InputError(f"{name} must make an nn.Module, got a {type(value).__name__}.")
    return value


def _path_of(network: nn.Module) -> str:
    """The import path of a network's class, where calling it without arguments makes a network like this one."""
    path = import_path_of(type(network))
    if path is None:
        return PYTHON
    try:
        with torch.random.fork_rng(devices=[]):
            again = call_import_path(path)
        again.load_state_dict(network.state_dict())
    except Exception:  # its constructor wants arguments, or makes other shapes
        return PYTHON
    return path if repr(again) == repr(network) else PYTHON
