"""The report of a measured run: its metrics, pictures and figures as one page, and what made them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from doubtless.data import ImageSet
from doubtless.embedding import Embedding
from doubtless.evaluation import Evaluation
from doubtless.methods import Method
from doubtless.report import ImageLookup, embedding_map, write_report
from doubtless.report.method_figures import Context, method_sections
from doubtless.report.together import Strip
from doubtless.runs.disturbed import AREAS, CROPS, STRENGTHS, Disturbed, changed
from doubtless.runs.run import Run
from doubtless.runs.timing import phases_of
from doubtless.version import __version__


@dataclass(frozen=True)
class Measured:
    """What was measured: the method of a run, the images that asked and those that were searched, embedded."""

    run: Run
    method: Method
    queries: ImageSet
    embedding: Embedding
    gallery: ImageSet | None = None
    """None: the queries search among themselves."""
    gallery_embedding: Embedding | None = None
    ood: Mapping[str, Embedding] = field(default_factory=dict)
    ood_images: Mapping[str, ImageSet] = field(default_factory=dict)
    disturbed: Disturbed | None = None


def write_run_report(
    path: Path, measured: Measured, evaluation: Evaluation, *, title: str, command: str = ""
) -> None:
    """Writes the page. `command` is what made it, as one types it; where none did it says none."""
    queries, embedding, log = measured.queries, measured.embedding, measured.run.log
    images, names = image_lookup(queries, measured.gallery), queries.source.label_names
    context = Context(
        measured.method,
        evaluation,
        embedding,
        queries.labels,
        images,
        names,
        measured.gallery_embedding,
        measured.ood,
        log,
    )
    write_report(
        path,
        title=title,
        evaluation=evaluation,
        config=measured.run.config.to_dict(),
        log=log,
        versions=versions(),
        command=command,
        images=images,
        embedding_map=embedding_map(embedding.direction, queries.labels, embedding.uncertainty),
        label_names=names,
        of_method=method_sections(context),
        timing=phases_of(path.parent),
        strangers={name: _pictures(images) for name, images in measured.ood_images.items()},
        strips=[] if measured.disturbed is None else strips_of(measured.disturbed),
    )


def versions() -> dict[str, str]:
    """What made these numbers."""
    return {
        "doubtless": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def image_lookup(queries: ImageSet, gallery: ImageSet | None) -> ImageLookup:
    """Pictures and labels of queries and of what they search, by position; None: they search among themselves."""
    searched = gallery or queries
    return ImageLookup(
        query=_pictures(queries),
        gallery=_pictures(searched),
        query_label=lambda index: int(queries.labels[index]),
        gallery_label=lambda index: int(searched.labels[index]),
    )


def strips_of(disturbed: Disturbed) -> list[Strip]:
    """The picture of middling uncertainty at every step of every way."""
    place = disturbed.middling
    where = int(disturbed.images.index[disturbed.rows[place]])
    picture = disturbed.images.source.image(where)
    strips = []
    for way, steps in disturbed.ways.items():
        still = steps.values[0]
        name = "uncertainty" if "uncertainty" in still else "distance"
        captions = []
        for amount, values in zip(AREAS if way == CROPS else STRENGTHS, steps.values, strict=True):
            said = f"{100 * amount:.0f} % kept" if way == CROPS else f"strength {amount:g}"
            surer = float((still[name] < values[name][place]).double().mean())
            captions.append((said, f"{100 * surer:.0f} %"))
        pictures = [_array(changed(disturbed.images, picture, where, change)) for change in steps.changes]
        strips.append(Strip(way.capitalize(), pictures, captions))
    return strips


def _array(pixels: torch.Tensor) -> NDArray[np.uint8]:
    array: NDArray[np.uint8] = pixels.permute(1, 2, 0).numpy()  # (H, W, C)
    return array[:, :, 0] if array.shape[-1] == 1 else array


def _pictures(images: ImageSet) -> Callable[[int], NDArray[np.uint8]]:
    def picture(index: int) -> NDArray[np.uint8]:
        return _array(images[index].inputs)

    return picture
