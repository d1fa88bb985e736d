"""Models by name: whatever a person may write after `--model`, opened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from doubtless.data.source import locate
from doubtless.errors import InputError
from doubtless.index.settings import KEPT_MODEL
from doubtless.models.backbones import Pooling, weights_names
from doubtless.models.onnx import OURS, OnnxNetwork
from doubtless.registry import HUB, MODULE, TIMM, names_network
from doubtless.runs.model import Model, best_device, load
from doubtless.runs.networks import ImageOptions, address_of, raw_method, read_address
from doubtless.runs.pretrained import is_saved

DEFAULT_MODEL = "timm:tf_efficientnet_lite0"
"""The network of a gallery that names none: small, free to use (Apache-2.0); measured in docs/own-pictures.md."""
POOLINGS: dict[str, Pooling] = {"tf_efficientnet_lite0": "gem"}
"""Poolings other than a network's own; docs/own-pictures.md says where this one is better and where not."""
ACCEPTED = (
    "timm:NAME, a run's folder, a folder of save_pretrained, hub:USER/NAME, an .onnx file, a gallery, or "
    "module:package.function"
)


def open_model(
    what: Model | nn.Module | str | Path, *, weights: str | Path | None = None, **options: Any
) -> Model:
    """A model wherever it is, on the device its configuration allows.

    `what`: ``timm:NAME`` with the weights of a file or its published ones, a run's folder, a folder that
    `save_pretrained` wrote, ``hub:USER/NAME``, an ONNX file, a gallery, whose model it then is, a network as an
    object or by ``module:package.function``, or a `Model`. `options` of a network are those of `Model.from_module`;
    an address may have them, too: ``module:package.function?size=64``.
    """
    if isinstance(what, Model):
        return what
    if isinstance(what, nn.Module):
        model = Model.from_module(what, **options)
    else:
        model = _named(str(what), weights, options)
    return model.to(best_device(model.method.config.training.accelerator))


def _named(name: str, weights: str | Path | None, options: dict[str, Any]) -> Model:
    path, written = read_address(name) if _has_options(name) else (name, {})
    options = {**written, **options}
    if weights is not None and not path.startswith(TIMM):
        raise InputError(f"Weights of a file go with timm:NAME; {name} has its own.")
    if path.startswith(TIMM):
        return _of_timm(path, weights, options)
    if path.startswith(MODULE):
        return Model.from_module(path, **options)
    if path.endswith(".onnx"):
        return _of_onnx(path, options)
    if options:
        raise InputError(f"{path} knows its images; got {', '.join(options)}.")
    if path.startswith(HUB):
        return Model.from_pretrained(path)
    for folder in (Path(path), Path(path) / KEPT_MODEL):
        if is_saved(folder):
            return Model.from_pretrained(folder)
    if not Path(path).exists():
        raise InputError(f"There is no model {name}; accepted: {ACCEPTED}.")
    return load(path)


def _has_options(name: str) -> bool:
    return names_network(name) or ".onnx?" in name


def _of_timm(path: str, weights: str | Path | None, options: dict[str, Any]) -> Model:
    import timm

    name = path.removeprefix(TIMM)
    about = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    # timm knows how its models were trained, unless one asks for something else.
    usual: dict[str, Any] = {"normalization": "auto", "pooling": POOLINGS.get(name, "auto")}
    if about is not None and about.input_size:
        usual["size"] = about.input_size[-1]
    chosen = ImageOptions(**{**usual, **options})
    if weights is None:
        found = [file for file in map(locate, weights_names(name)) if file.is_file()]
        weights = found[0] if found else None
    return Model(raw_method(path, chosen, weights=weights), address=address_of(path, chosen))


def _of_onnx(path: str, options: dict[str, Any]) -> Model:
    """A network in an ONNX file; one of `doubtless export` normalises images itself."""
    network = OnnxNetwork.read(path)
    channels, side = network.image_shape
    ours = (
        any(output.name == OURS for output in network.session.get_outputs())
        and "doubtless" in network.about()
    )
    fixed = {"channels": channels, "size": side, "normalization": "none" if ours else None}
    chosen = ImageOptions(
        **{**{name: value for name, value in fixed.items() if value is not None}, **options}
    )
    return Model(raw_method("python", chosen, network=network), address=str(Path(path).absolute()))
