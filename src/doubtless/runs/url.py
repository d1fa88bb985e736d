"""A run measured by URL's protocol: its test part, crops of it, and what people said of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import functional

from doubtless.data import ImageSet, Progress
from doubtless.errors import InputError
from doubtless.evaluation.url import (
    PUBLISHED,
    UrlFigures,
    picture_uncertainty,
    read_human_labels,
    url_figures,
)
from doubtless.files import write_json
from doubtless.methods import Method
from doubtless.runs.data import embed_images, image_batches
from doubtless.runs.evaluation import RunEvaluation
from doubtless.runs.run import Run

SMALLEST, LARGEST = 0.1, 0.9  # side of a crop, as a share of the image's
DATA = ("CUB", "Cars", "Stanford Online Products")


def measure_url(
    run: Run | str | Path,
    *,
    data: str | None = None,
    human_labels: str | Path | None = None,
    progress: Progress | None = None,
) -> tuple[UrlFigures, list[str], Path]:
    """URL's figures of a run's test part or of another source, what differs from URL, and the file they are in.

    human_labels   .npy (images, classes), in the order of the source's images that are measured
    """
    opened = run if isinstance(run, Run) else Run.open(run)
    work = RunEvaluation(opened, data=data, progress=progress)
    images, method = work.queries, work.method
    if images.places is not None:
        raise InputError("URL's protocol is of classes, and places have positions instead.")
    human = None if human_labels is None else _in_order_of(images, read_human_labels(human_labels))
    embedding = embed_images(method, images, progress=progress)
    cropped = torch.cat(list(_cropped(method, images, progress)))
    figures = url_figures(embedding, images.labels, cropped=cropped, human=human)
    notes = differences(work)
    path = work.folder / "url.json"
    record: dict[str, Any] = {"figures": figures.to_json(), "published": PUBLISHED, "differences": notes}
    write_json(path, record)
    return figures, notes, path


def differences(work: RunEvaluation) -> list[str]:
    """Sentences that say what is otherwise than in the published means."""
    config = work.config
    seen = work.measured is None and config.data.split == "closed"
    notes = [
        f"Data: {work.measured or config.data.source} alone; the published means are over {', '.join(DATA)}.",
        f"Network: {config.model.backbone}; the published ones are a ResNet-50 and a ViT.",
        "Training: URL's networks saw ImageNet alone and none of the data that they are measured on; "
        f"this run was trained on {config.data.source}.",
        f"Crops: the middle {SMALLEST:.0%} to {LARGEST:.0%} of the side, by a fixed seed; URL draws its own.",
        "Neighbours: an image is left out by its index; URL leaves out the first hit, which a duplicate may be.",
    ]
    if seen:
        notes.insert(
            0, "Classes: this run was trained on the classes it is measured on; URL measures unseen ones."
        )
    if config.method == "deterministic":
        notes.append("Uncertainty: points have none of their own; the figure is of the embedding's length.")
    return notes


def _in_order_of(images: ImageSet, human: Tensor) -> Tensor:
    """Rows of people's labels, which follow the source's order, as the images lie."""
    if len(human) != len(images):
        raise InputError(
            f"People labelled {len(human)} images, and {len(images)} are measured; they must be the same ones."
        )
    place = torch.empty(len(images), dtype=torch.long)
    order = torch.as_tensor(images.index).long().cpu().argsort()
    place[order] = torch.arange(len(images))
    return human[place]


@torch.no_grad()
def _cropped(method: Method, images: ImageSet, progress: Progress | None) -> Iterator[Tensor]:
    """The uncertainty of a crop of each image, (batch,): its middle, resized to what it was."""
    generator = torch.Generator().manual_seed(0)
    shares = SMALLEST + (LARGEST - SMALLEST) * torch.rand(len(images), generator=generator)
    start = 0
    for batch in image_batches(images, "crops", progress, device=torch.device("cpu")):
        sides = (shares[start : start + len(batch)] * min(batch.shape[-2:])).round().clamp_min(1)
        crops = [
            functional.resize(
                functional.center_crop(image, [int(side)]), list(batch.shape[-2:]), antialias=True
            )
            for image, side in zip(batch, sides.tolist(), strict=True)
        ]
        start += len(batch)
        yield picture_uncertainty(method.embed(torch.stack(crops)))
