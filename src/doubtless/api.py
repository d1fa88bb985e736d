"""The front door: train, load, embed, evaluate in a line each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from doubtless.config import Config, load_config, make_config
from doubtless.data import ImageSet, Preparation, Progress, decode_image, image_tensor
from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.evaluation import Evaluation
from doubtless.methods import Method
from doubtless.training import Run
from doubtless.training.parts import EMBED_BATCH, embed_images
from doubtless.training.run_evaluation import RunEvaluation

ImageLike = str | Path | Image.Image | Tensor


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
        if len(images) == 0:
            raise InputError("there is no image to embed.")
        return Embedding.cat([self.method.embed(batch) for batch in self._batches(images, progress)])

    @torch.no_grad()
    def embed_with_features(
        self, images: Tensor | Sequence[ImageLike], *, progress: Progress | None = None
    ) -> tuple[Embedding, Tensor]:
        """The same, and the features (n, F) before the head: what novelty is measured by, on the CPU both."""
        method = self.method.eval()
        if len(images) == 0:
            raise InputError("there is no image to embed.")
        embedded, kept = [], []
        for batch in self._batches(images, progress):
            features = method.encode(batch.to(method.device)).float()
            embedded.append(method.embed_features(features))
            kept.append(method.novelty_features(features))
        return Embedding.cat(embedded).to("cpu"), torch.cat(kept).cpu()

    def to(self, device: torch.device | str) -> Model:
        self.method.to(device)
        return self

    def _batches(self, images: Tensor | Sequence[ImageLike], progress: Progress | None) -> Iterator[Tensor]:
        starts: Any = range(0, len(images), EMBED_BATCH)
        if progress is not None:
            starts = progress(starts, "embedding", -(-len(images) // EMBED_BATCH))
        for start in starts:
            some = images[start : start + EMBED_BATCH]
            yield torch.stack([self.preparation(pixels_of(image)) for image in some])


def train(
    config: Config | Mapping[str, Any] | str | Path,
    out: str | Path,
    *,
    resume: bool = False,
    quiet: bool = False,
    progress: Progress | None = None,
) -> Run:
    """Trains what a configuration (a file, a dict or a `Config`) says and returns the finished run.

    >>> run = train("configs/fashion-sample/deterministic.yaml", "runs/fashion")      # doctest: +SKIP
    """
    if isinstance(config, str | Path):
        config = load_config(config)
    elif not isinstance(config, Config):
        config = make_config(config)
    from doubtless.training import train_run  # with Lightning: only who trains waits for it

    return train_run(config, out, resume=resume, quiet=quiet, progress=progress)


def load(path: str | Path) -> Model:
    """The model of a finished run, on the CPU."""
    method = Run.open(path).load_method()
    return Model(method, label_names=method.spec.label_names)


def evaluate_run(
    run: Run | str | Path,
    *,
    data: str | None = None,
    ood: Sequence[str] | None = None,
    gallery: str | None = None,
    bootstrap: int = 1000,
    report: bool = True,
    progress: Progress | None = None,
) -> Evaluation:
    """Measures a run on its test part (or another source) and writes metrics.json and report.html.

    ood      sources nothing of which the model was trained on; None: those of the run's configuration
    gallery  "train": the training part is searched; a source's name: that one; None: leave-one-out
    """
    opened = run if isinstance(run, Run) else Run.open(run)
    work = RunEvaluation(opened, data=data, ood=ood, gallery=gallery, progress=progress)
    return work.measure(bootstrap=bootstrap, report=report)


def pixels_of(image: ImageLike) -> Tensor:
    """One image of any kind as uint8 (C, H, W)."""
    if isinstance(image, str | Path):
        return decode_image(image)
    if isinstance(image, Image.Image):
        return image_tensor(image)
    if image.dim() != 3:
        raise InputError(f"an image must have shape (C, H, W), got {tuple(image.shape)}.")
    if not image.is_floating_point():
        return image
    if not bool(torch.isfinite(image).all()) or float(image.min()) < 0 or float(image.max()) > 1:
        raise InputError("an image of floats must lie in [0, 1], without NaN.")
    return (image * 255).round().to(torch.uint8)


__all__ = ["Model", "train", "load", "evaluate_run"]
