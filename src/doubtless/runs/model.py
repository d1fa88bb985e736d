"""`Model`: the trained method of a run, ready to embed images of any kind; and which model made an embedding."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from doubtless.data import ImageLike, ImageSet, Progress, pixels_of
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.methods import Described, Method
from doubtless.models.backbones import PYTHON, Normalization, Pooling
from doubtless.registry import HUB, TIMM, names_network
from doubtless.runs.data import EMBED_BATCH, embed_images, image_size, preparation_of
from doubtless.runs.networks import ImageOptions, address_of, built_network, makes_it_again, raw_method
from doubtless.runs.run import Run


class Model:
    """A trained method, ready to embed images of any kind and size.

    >>> model = load("runs/first")
    >>> embedding = model.embed(["photo.jpg", "shoe.jpg"])
    >>> embedding.direction.shape
    torch.Size([2, 16])
    """

    def __init__(
        self, method: Method, *, label_names: Sequence[str] = (), address: str | None = None
    ) -> None:
        self.method = method
        self.address = address
        self.label_names = list(label_names)
        self.preparation = preparation_of(method)

    @classmethod
    def from_module(
        cls,
        network: nn.Module | Callable[[], nn.Module] | str,
        *,
        size: int = 224,
        channels: int = 3,
        normalization: Normalization = "imagenet",
        pooling: Pooling = "auto",
    ) -> Model:
        """A network of one's own as it is: its features (n, F), or its maps (n, F, h, w) pooled, as points.

        `network` is an `nn.Module`, or what makes one without arguments, or its import path; a copy is taken.
        Images of floats in [0, 1] are normalised before it: "imagenet", "symmetric" ((x − ½)/½) or "none".

        >>> model = Model.from_module(nn.Conv2d(3, 5, 3), size=8)
        >>> model.embed(torch.rand(2, 3, 8, 8)).location.shape
        torch.Size([2, 5])
        """
        options = ImageOptions(size, channels, normalization, pooling)
        built, path = built_network(network)
        kept = makes_it_again(path, built)
        method = raw_method(path, options, network=built)
        return cls(method, address=address_of(path, options) if kept else None)

    def embed(
        self, images: Tensor | ImageSet | Sequence[ImageLike], *, progress: Progress | None = None
    ) -> Embedding:
        """Embeds files, Pillow images, tensors (C, H, W) or a batch of them (n, C, H, W), bytes or [0, 1]."""
        if isinstance(images, ImageSet):
            return embed_images(self.method, images, progress=progress)
        return Embedding.cat([self.method.embed(batch) for batch in self._batches(images, progress)])

    def describe(
        self, images: Tensor | Sequence[ImageLike], *, progress: Progress | None = None
    ) -> Described:
        """The same, and the features (n, W) that novelty is measured by, on the CPU both."""
        batches = self._batches(images, progress)
        return Described.cat([self.method.describe(batch).to("cpu") for batch in batches])

    @property
    def is_of_timm(self) -> bool:
        """Whether it is a network of timm with published weights, named as such."""
        return self.address is not None and self.address.startswith(TIMM)

    @property
    def place(self) -> str | None:
        """What names it so that `open_model` finds it again: its run's folder, or the import path of a network.

        None where nothing leads to it: it then has to be given again.
        """
        return self.address if self.method.folder is None else str(self.method.folder.absolute())

    def save_pretrained(self, folder: str | Path) -> Path:
        """Writes it into a folder as the Hugging Face Hub lays models out: safetensors and JSON.

        It opens from there without the run, timm or the code of its network: ``from_pretrained(folder)``.

        >>> saved = load("runs/first").save_pretrained("my-model")
        >>> Model.from_pretrained(saved).embed(["shoe.jpg"]).dim
        16
        """
        from doubtless.runs.pretrained import save_method

        save_method(self.method, folder)
        return Path(folder)

    @classmethod
    def from_pretrained(cls, place: str | Path) -> Model:
        """What `save_pretrained` wrote, in a folder, or on the Hub by ``hub:USER/NAME``."""
        from doubtless.runs.pretrained import fetch, load_saved

        named = isinstance(place, str) and place.startswith(HUB)
        method = load_saved(fetch(str(place)) if named else place)
        return cls(method, label_names=method.spec.label_names, address=str(place))

    def push_to_hub(self, name: str, *, private: bool = False, token: str | None = None) -> str:
        """Sends it to the Hugging Face Hub as ``USER/NAME``; gives its address there."""
        from doubtless.runs.pretrained import push

        return push(self.method, name, private=private, token=token)

    def to(self, device: torch.device | str) -> Model:
        """Puts the model on a device."""
        self.method.to(device)
        return self

    def _batches(self, images: Tensor | Sequence[ImageLike], progress: Progress | None) -> Iterator[Tensor]:
        if len(images) == 0:
            raise InputError("There is no image to embed.")
        starts: Any = range(0, len(images), EMBED_BATCH)
        if progress is not None:
            starts = progress(starts, "embedding", -(-len(images) // EMBED_BATCH))
        for start in starts:
            some = images[start : start + EMBED_BATCH]
            yield torch.stack([self.preparation(pixels_of(image)) for image in some])


def load(path: str | Path, *, encoder: nn.Module | None = None) -> Model:
    """The model of a finished run, on the CPU; `encoder` is its network where that was given as an object."""
    run = Run.open(path)
    if encoder is not None and not run.has_network_of_others:
        raise InputError(f"{path} names its network itself ({run.config.model.backbone}); give no encoder.")
    method = run.load_method(encoder=encoder)
    return Model(method, label_names=method.spec.label_names)


NOT_RESULTS = ("data", "training", "evaluation", "base")
"""Sections of a configuration that shape how weights come about, but not what they then give."""


def model_fingerprint(method: Method) -> str:
    """32 hexadecimal digits; the same for a run and its copy, another for any change of weights or version.

    Weights (names, types, shapes, bytes), the method's name and version, what images it takes, and the sections
    of its configuration that it reads when it embeds, such as the masks' seed of MC dropout.
    """
    spec, config = method.spec, method.config.to_dict()
    unread = {"weights", "pretrained"}
    if names_network(method.config.model.backbone) or method.config.model.backbone == PYTHON:
        unread.add("backbone")  # where a network of one's own lies; its weights are what it is
    model = {key: value for key, value in config.get("model", {}).items() if key not in unread}
    kept = {key: value for key, value in config.items() if key not in NOT_RESULTS} | {"model": model}
    about = {
        "method": method.name,
        "version": method.version,
        "channels": spec.channels,
        "size": image_size(method),
        "config": kept,
    }
    digest = hashlib.sha256(json.dumps(about, sort_keys=True, default=str).encode())
    for name, value in sorted(method.state_dict().items()):
        plain = value.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)}\n".encode())
        digest.update(plain.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:32]


def must_match(method: Method, expected: str | None, *, where: str | Path) -> None:
    """Refuses a model that is not the one whose embeddings are there."""
    if expected is not None and (found := model_fingerprint(method)) != expected:
        raise InputError(
            f"{where} holds embeddings of another model (fingerprint {expected[:12]}…) than this one "
            f"({found[:12]}…, {method.name}); their distances would mean nothing."
        )


def best_device(accelerator: str) -> torch.device:
    """The device that `training.accelerator` means here."""
    use_gpu = accelerator != "cpu" and torch.cuda.is_available()
    return torch.device("cuda" if use_gpu else "cpu")


def device_name(device: torch.device) -> str:
    """What a table says it was measured on: ``NVIDIA H200``, ``cpu``."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
