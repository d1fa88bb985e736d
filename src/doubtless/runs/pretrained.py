"""A model in a folder of its own, as the Hugging Face Hub lays models out: safetensors and JSON, never pickle.

    config.json         the method, its configuration, the images it takes
    model.safetensors   weights
    network.json        the operations of its network, so that it opens without timm or whoever wrote it

A gallery keeps its model in such a folder; `Model.save_pretrained` writes one, `Model.push_to_hub` sends one to the
Hub, and `hub:USER/NAME` opens it there.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from doubtless.config import Config
from doubtless.errors import FileError, InputError
from doubtless.files import read_json, reading, write_bytes, write_json, write_text
from doubtless.hub import reachable_hub
from doubtless.methods import DataSpec, Method, method_class
from doubtless.methods.configuration import make_config
from doubtless.models.backbones import PYTHON
from doubtless.models.graph import CONSTANT, GraphNetwork, traced
from doubtless.models.networks import SMALL
from doubtless.models.onnx import OnnxNetwork
from doubtless.registry import HUB
from doubtless.runs.data import image_size
from doubtless.version import __version__

if TYPE_CHECKING:
    from torch import nn

SCHEMA = 1
ABOUT, WEIGHTS, NETWORK = "config.json", "model.safetensors", "network.json"
FILES = (ABOUT, WEIGHTS, NETWORK)
OURS = (*SMALL, "resnet9")
"""Networks whose code is always at hand."""


def is_saved(folder: str | Path) -> bool:
    """Whether a folder holds a model that was saved like this, and not a run."""
    folder = Path(folder)
    return (folder / ABOUT).is_file() and (folder / WEIGHTS).is_file()


def can_be_saved(method: Method) -> bool:
    """All but ensembles: their members are runs, which stay where they are."""
    return method.name != "ensemble"


def save_method(method: Method, folder: str | Path) -> None:
    """Writes a finished method into a folder, its description last."""
    if not can_be_saved(method):
        raise InputError(
            "An ensemble is made of runs, which lie beside each other; name its run wherever it is wanted."
        )
    folder = Path(folder)
    device, training = method.device, method.training
    method.to("cpu").eval()
    try:
        network, constants = _network_of(method)
        state = {name: value.detach().contiguous() for name, value in method.state_dict().items()}
        write_bytes(
            folder / WEIGHTS, save_safetensors({**state, **constants}, metadata={"schema": str(SCHEMA)})
        )
        if network is not None:
            write_json(folder / NETWORK, network)
        write_json(folder / ABOUT, _about(method))
    finally:
        method.to(device).train(training)


def load_saved(folder: str | Path) -> Method:
    """The method of such a folder, on the CPU, in evaluation mode."""
    folder = Path(folder)
    about = read_json(folder / ABOUT)
    if not isinstance(about, dict) or "doubtless" not in about:
        raise InputError(
            f"{folder} holds no model of doubtless: its {ABOUT} is another library's. A network of timm is named "
            "timm:NAME."
        )
    if not isinstance(about.get("schema", 0), int):
        raise FileError(f"{folder / ABOUT} is damaged; save the model again.")
    if about.get("schema", 0) > SCHEMA:
        raise InputError(
            f"{folder / ABOUT} has schema {about['schema']}, this doubtless {__version__} reads up to {SCHEMA}; "
            f"update doubtless (it was written by {about['doubtless']})."
        )
    try:
        state = load_safetensors((folder / WEIGHTS).read_bytes())
    except (SafetensorError, OSError) as error:
        raise FileError(
            f"{folder / WEIGHTS} is damaged or missing ({error}); save the model again."
        ) from error
    constants = {name: state.pop(name) for name in list(state) if name.startswith(CONSTANT)}
    network = read_json(folder / NETWORK) if (folder / NETWORK).is_file() else None
    return _rebuilt(about, network, state, constants, where=folder)


def fetch(name: str) -> Path:
    """The folder on this machine of a model on the Hub: ``hub:USER/NAME`` or ``hub:USER/NAME@REVISION``."""
    from huggingface_hub import snapshot_download

    repository, _, revision = name.removeprefix(HUB).partition("@")
    if repository.count("/") != 1:
        raise InputError(f"A model on the Hub is named hub:USER/NAME, got {name!r}.")
    otherwise = "Copy the model's folder to this machine and name it instead."
    with reachable_hub(repository, ABOUT, otherwise=otherwise):
        found = snapshot_download(
            repository, revision=revision or None, allow_patterns=list(FILES), etag_timeout=5
        )
    if not is_saved(found):
        raise InputError(
            f"{name} holds no model of doubtless: it has no {ABOUT} or no {WEIGHTS}. A network of timm on the Hub "
            "is named timm:hf_hub:USER/NAME."
        )
    return Path(found)


def push(method: Method, name: str, *, private: bool = False, token: str | None = None) -> str:
    """Sends a model to the Hub as ``USER/NAME``, which is made if it is not there; gives its address."""
    from huggingface_hub import HfApi

    repository = name.removeprefix(HUB)
    if repository.count("/") != 1:
        raise InputError(f"A model on the Hub is named USER/NAME, got {name!r}.")
    api = HfApi(token=token)
    with tempfile.TemporaryDirectory() as place:
        save_method(method, place)
        write_text(Path(place) / "README.md", _card(method, repository))
        otherwise = "`doubtless push` writes a folder as well, which can be sent later."
        with reachable_hub(repository, ABOUT, otherwise=otherwise):
            api.create_repo(repository, private=private, exist_ok=True)
            api.upload_folder(repo_id=repository, folder_path=place, commit_message="Model of doubtless")
    return f"{api.endpoint}/{repository}"


def _about(method: Method) -> dict[str, Any]:
    return {
        "doubtless": __version__,
        "schema": SCHEMA,
        "library_name": "doubtless",
        "method": method.name,
        "method_version": method.version,
        "data": method.spec.record(),
        "config": _portable(method.config),
        "statistics": [method.encoder.mean.flatten().tolist(), method.encoder.std.flatten().tolist()],
        "takes": method.encoder.takes,
        "record": method.record(),
    }


def _portable(config: Config) -> dict[str, Any]:
    """A configuration less where things lay on this machine: weights are in the folder, images and runs are not."""
    values = config.to_dict()
    values["model"] = {**values["model"], "weights": None, "pretrained": False}
    data = {name: values["data"].get(name) for name in ("size", "channels")}
    values["data"] = {"source": PYTHON, **{name: value for name, value in data.items() if value}}
    values.pop("base", None)
    return values


def _network_of(method: Method) -> tuple[dict[str, Any] | None, dict[str, Tensor]]:
    """The operations of a method's network where they give what the method gives, and their constants.

    None for networks of doubtless itself, and where they do not, as where torch cannot follow: such a model needs
    its code again.
    """
    encoder = method.encoder
    if method.config.model.backbone in OURS:
        return None, {}
    if isinstance(encoder.backbone, OnnxNetwork):
        return {"kind": "onnx"}, {}
    if isinstance(encoder.backbone, GraphNetwork):  # opened from a folder like this
        kept = encoder.backbone
        names = [one["place"] for one in kept.description["tensors"] if one["kind"] == "constant"]
        return {"kind": "graph", **kept.description}, {name: getattr(kept, name) for name in names}
    size = image_size(method)
    images = torch.rand(3, encoder.takes, size, size, generator=torch.Generator().manual_seed(0))
    try:
        description, constants = traced(encoder.backbone, images[:2])
        network = {"kind": "graph", **description}
        state = dict(method.state_dict())
        again = _rebuilt(_about(method), network, state, constants, where="this model")
    except InputError:
        return None, {}
    probes = images if encoder.takes == method.spec.channels else images[:, : method.spec.channels]
    one, other = method.embed(probes), again.embed(probes)
    same = one.family == other.family and all(
        torch.allclose(value, other.parameters[name], rtol=1e-4, atol=1e-6)
        for name, value in one.parameters.items()
    )
    return (network, constants) if same else (None, {})


def _rebuilt(
    about: dict[str, Any],
    network: dict[str, Any] | None,
    state: dict[str, Tensor],
    constants: dict[str, Tensor],
    *,
    where: str | Path,
) -> Method:
    """The method that a description, a graph and a state make together."""
    with reading(where, "model", then="Save it again."):
        config, data = make_config(about["config"]), about["data"]
        backbone = None if network is None else _backbone(network, state, constants, about)
        spec = DataSpec(data["channels"], data["size"], list(data["label_names"]), backbone=backbone)
        # A graph has no stages to freeze; nothing is trained here.
        model = config.model.model_copy(update={"frozen_stages": 0})
        method = method_class(config.method)(config.model_copy(update={"model": model}), spec)
        method.config = config
        method.load_state_dict(state)
    return method.eval()


def _backbone(
    network: dict[str, Any], state: dict[str, Tensor], constants: dict[str, Tensor], about: dict[str, Any]
) -> nn.Module:
    kind = network.get("kind")
    if kind not in ("graph", "onnx"):
        raise InputError(f"A network is a graph or of ONNX, got {kind!r}; update doubtless.")
    made: Any
    if kind == "onnx":
        made = OnnxNetwork(state["encoder.backbone.file"].numpy().tobytes())
    else:
        made = GraphNetwork(network, constants)
    mean, std = about["statistics"]
    made.statistics, made.takes = (tuple(mean), tuple(std)), int(about["takes"])
    return made


def _card(method: Method, repository: str) -> str:
    """The README of a model on the Hub."""
    config = method.config
    return (
        "---\nlibrary_name: doubtless\ntags: [image-retrieval, image-feature-extraction]\n---\n\n"
        f"# {repository}\n\nA model of doubtless {__version__}: method `{method.name}`, network "
        f"`{config.model.backbone}`, images of {image_size(method)} × {image_size(method)} pixels.\n\n"
        f"```sh\ndoubtless create gallery photos --model hub:{repository}\n```\n"
    )
