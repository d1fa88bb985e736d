"""`Model`: the trained method of a run, ready to embed images of any kind; and which model made an embedding."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from doubtless.data import ImageLike, ImageSet, Preparation, Progress, pixels_of
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.methods import Described, Method
from doubtless.runs.data import EMBED_BATCH, embed_images
from doubtless.runs.run import Run


class Model:
    """A trained method, ready to embed images of any kind and size.

    >>> model = load("runs/fashion")                                      # doctest: +SKIP
    >>> embedding = model.embed(["shoe.jpg", "shirt.png"])                # doctest: +SKIP
    >>> embedding.direction.shape, embedding.uncertainty                  # doctest: +SKIP
    """

    def __init__(self, method: Method, *, label_names: Sequence[str] = ()) -> None:
        self.method = method
        self.label_names = list(label_names)
        self.preparation = Preparation(channels=method.spec.channels, size=method.spec.size)

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
    def place(self) -> str | None:
        """What names it so that `open_model` finds it again: its run's folder; None where it belongs to none."""
        return None if self.method.folder is None else str(self.method.folder.absolute())

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


def load(path: str | Path) -> Model:
    """The model of a finished run, on the CPU."""
    method = Run.open(path).load_method()
    return Model(method, label_names=method.spec.label_names)


def open_model(what: Model | str | Path) -> Model:
    """A model wherever it is, a run's by its folder, on the device its configuration allows."""
    if isinstance(what, Model):
        return what
    model = load(what)
    return model.to(best_device(model.method.config.training.accelerator))


NOT_RESULTS = ("data", "training", "evaluation", "base")
"""Sections of a configuration that shape how weights come about, but not what they then give."""


def model_fingerprint(method: Method) -> str:
    """32 hexadecimal digits; the same for a run and its copy, another for any change of weights or version.

    Weights (names, types, shapes, bytes), the method's name and version, what images it takes, and the sections
    of its configuration that it reads when it embeds, such as the masks' seed of MC dropout.
    """
    spec, config = method.spec, method.config.to_dict()
    model = {
        key: value for key, value in config.get("model", {}).items() if key not in ("weights", "pretrained")
    }
    kept = {key: value for key, value in config.items() if key not in NOT_RESULTS} | {"model": model}
    about = {
        "method": method.name,
        "version": method.version,
        "channels": spec.channels,
        "size": spec.size,
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
