"""Figures of deep variational metric learning: variation without its classes, and what is synthesised.

Lin et al. 2018, figures 1 and 4.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.functional import normalize

from doubtless.methods.dvml import Dvml
from doubtless.report.charts import SHAPES, Points, legend, scatter, series
from doubtless.report.images import LOSSLESS, data_uri, embedding_map, label_name
from doubtless.report.method_figures.registry import Context, draws_for
from doubtless.report.page import Section, figure, gallery, text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

POINTS = 600  # of each map; t-SNE takes seconds for these
CLASSES = 8  # as many as there are colours: one look a class
SHOWN = 6  # queries whose samples are looked up
DRAWS = 5
COLUMNS = f"grid-template-columns: repeat({1 + DRAWS}, minmax(0, 110px)); margin-bottom: .7rem"


@draws_for("dvml")
def variation_sections(context: Context) -> list[Section]:
    """The two maps, and the real images nearest to synthesised ones."""
    maps = variation_maps(context.embedding.location, context.labels, names=context.label_names)
    return [
        Section("variation", "Variation within classes", maps),
        Section("synthesised", "Synthesised samples", synthesised_pictures(context)),
    ]


def variation_maps(location: Tensor, labels: Tensor, *, names: Sequence[str]) -> str:
    """t-SNE of z_I less its class centre beside t-SNE of z_I, the same images in both: (n, D), (n,).

    Of the largest classes only, so that a colour is a class.
    """
    labels = labels.to(location.device)
    present, inverse, counts = labels.unique(return_inverse=True, return_counts=True)
    largest = counts.argsort(descending=True, stable=True)[:CLASSES]
    rows = torch.isin(inverse, largest).nonzero().squeeze(1)
    if len(rows) < 2:
        return ""
    centers = location.new_zeros(len(present), location.shape[1]).index_add_(0, inverse, location)
    central = location - (centers / counts[:, None])[inverse]
    kept = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:POINTS].sort().values
    rows = rows[kept.to(rows.device)]

    def drawn(title: str, points: Tensor, note: str) -> str:
        shown = embedding_map(points[rows], labels[rows], limit=POINTS)
        groups = []
        for place, label in enumerate(sorted(set(shown.labels.tolist()))):
            of_class = shown.labels == label
            x, y = shown.coordinates[of_class].T.tolist()
            groups.append(
                Points(label_name(label, names), x, y, [2.0] * len(x), series(place), place % SHAPES)
            )
        description = f"{title}: map of {len(rows)} images of {len(groups)} classes"
        return figure(title, scatter(groups, description=description) + legend(groups), note=note)

    return gallery(
        [
            drawn(
                "Central latent space",
                central,
                "Embeddings less the mean of their class (t-SNE). Where variation is alike in all classes, "
                "colours are mixed.",
            ),
            drawn(
                "Embedding",
                location,
                "The same images with their class centres (t-SNE). Colour and shape show the class in both maps.",
            ),
        ]
    )


def synthesised_pictures(context: Context) -> str:
    """A few queries, each followed by the real images nearest to samples synthesised from it."""
    method = context.method
    assert isinstance(method, Dvml)
    count = len(context.labels)
    queries = torch.linspace(0, count - 1, min(SHOWN, count)).long().unique()
    pictures = torch.stack([_tensor(context.images.query(int(query))) for query in queries])
    generator = torch.Generator(method.device).manual_seed(0)
    samples = method.synthesise(pictures, DRAWS, generator=generator)  # (draws, q, D)
    alone = context.gallery is None
    searched = context.embedding if context.gallery is None else context.gallery
    if len(searched) <= alone:
        return ""
    nearest = nearest_real(samples, searched.direction, exclude=queries if alone else None)
    rows = [
        _row(context, int(query), nearest[:, place].tolist()) for place, query in enumerate(queries.tolist())
    ]
    note = (
        f"Each row begins with an image; the others are the real ones nearest, by cosine, to {DRAWS} samples "
        "z_I + z_V synthesised from it. ✓ and ✗ tell whether they are of its class."
    )
    return figure("Nearest real images to synthesised samples", "".join(rows), note=note)


def nearest_real(samples: Tensor, direction: Tensor, *, exclude: Tensor | None = None) -> Tensor:
    """Rows of `direction` (n, D) nearest by cosine to samples (draws, q, D), (draws, q); never row `exclude`."""
    cosine = normalize(samples, dim=-1) @ direction.to(samples).T  # (draws, q, n)
    if exclude is not None:
        cosine[:, torch.arange(len(exclude)), exclude] = -torch.inf
    return cosine.argmax(-1)


def _row(context: Context, query: int, nearest: list[int]) -> str:
    images, names = context.images, context.label_names
    label = int(context.labels[query])
    cells = [_cell(images.query(query), "image", label_name(label, names), kind="")]
    for index in nearest:
        other = None if images.gallery_label is None else images.gallery_label(index)
        name = "" if other is None else label_name(other, names)
        kind = "" if other is None else ("right" if other == label else "wrong")
        cells.append(_cell(images.gallery(index), "nearest to a sample", name, kind=kind))
    return f'<ul class="grid" style="{COLUMNS}">{"".join(cells)}</ul>'


def _cell(image: NDArray[np.uint8], what: str, name: str, *, kind: str) -> str:
    sharp = ' class="sharp"' if max(image.shape[:2]) <= LOSSLESS else ""
    picture = f'<img{sharp} src="{data_uri(image)}" alt="{text(f"{what} {name}".strip())}">'
    sign = {"right": "✓ ", "wrong": "✗ "}.get(kind, "")
    caption = f'<span class="verdict"><span aria-hidden="true">{sign}</span>{text(name)}</span>'
    alone = 'class="pair" style="grid-template-columns: 1fr"'
    return f'<li class="{kind}"><span {alone}>{picture}</span>{caption}</li>'


def _tensor(image: NDArray[np.uint8]) -> Tensor:
    """(height, width) or (height, width, channels) to (channels, height, width)."""
    pixels = torch.from_numpy(image.copy())
    return pixels[None] if pixels.dim() == 2 else pixels.permute(2, 0, 1)
