"""Images inside the page: data URIs, the grid of queries with their neighbours, and the map of an embedding.

The map has two coordinates for each of a sample of items (t-SNE; van der Maaten 2008).
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from doubtless.errors import InputError
from doubtless.report.charts import SERIES, SHAPES, Points, legend, scatter, series
from doubtless.report.page import figure, text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from doubtless.evaluation.result import QueryRecord


LARGEST = 80  # pixels along the longer side: shown at half of that or less, and a page has hundreds
LOSSLESS = 64  # up to here PNG: small pictures gain nothing from JPEG and lose edges


@dataclass(frozen=True)
class ImageLookup:
    """Finds the picture, and if it can the label, of a query or gallery item by its position in its set.

    Images are uint8, (height, width) or (height, width, 3).
    """

    query: Callable[[int], NDArray[np.uint8]]
    gallery: Callable[[int], NDArray[np.uint8]]
    query_label: Callable[[int], int] | None = None
    gallery_label: Callable[[int], int] | None = None

    @classmethod
    def from_arrays(
        cls, images: Sequence[Any], labels: Sequence[Any] | None = None, *, gallery: ImageLookup | None = None
    ) -> ImageLookup:
        """Looks up in arrays. Leave-one-out needs one set; else the queries of another lookup are the gallery.

        >>> import numpy as np
        >>> ImageLookup.from_arrays(np.zeros((5, 28, 28), np.uint8)).gallery(4).shape
        (28, 28)
        """
        label_of = None if labels is None else (lambda index: int(labels[index]))
        if gallery is None:
            return cls(images.__getitem__, images.__getitem__, label_of, label_of)
        return cls(images.__getitem__, gallery.query, label_of, gallery.query_label)


def data_uri(image: NDArray[np.uint8]) -> str:
    """The image as a ``data:`` address: PNG if small, else JPEG, at most 80 pixels along its longer side."""
    from PIL import Image

    shape = tuple(image.shape)
    if (
        str(image.dtype) != "uint8"
        or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3)))
        or 0 in shape
    ):
        raise InputError(
            f"An image of the report has shape {shape} and type {image.dtype}; "
            "accepted are uint8 images of shape (height, width) or (height, width, 3)."
        )
    picture = Image.fromarray(image[:, :, 0] if len(shape) == 3 and shape[2] == 1 else image)
    lossless = max(picture.size) <= LOSSLESS
    picture.thumbnail((LARGEST, LARGEST))
    buffer = io.BytesIO()
    if lossless:
        picture.save(buffer, "PNG", optimize=True)
    else:
        picture.save(buffer, "JPEG", quality=80)
    kind = "png" if lossless else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def grid(
    queries: QueryRecord, rows: Sequence[int], *, images: ImageLookup, names: Sequence[str] | None = None
) -> str:
    """Pictures of these rows of the record: the query, its first hit, and whether that is right."""
    return f'<ul class="grid">{"".join(_pair(queries, row, images, names) for row in rows)}</ul>'


def most_and_least_certain(
    queries: QueryRecord, *, count: int = 12
) -> tuple[str, list[int], list[int]] | None:
    """Rows of the most and the least certain queries, and by what: learned uncertainty, else distance, else None.

    Both lists start with their extreme. With fewer than 2·count queries no query stands in both.
    """
    import torch

    values, source = queries.uncertainty, "uncertainty"
    if values is None:
        values, source = (
            queries.values.get("baseline/distance"),
            "distance to the first hit (a free baseline)",
        )
    if values is None or not len(values):
        return None
    order = torch.argsort(values.detach().cpu(), stable=True).tolist()
    most = order[: min(count, (len(order) + 1) // 2)]
    least = order[::-1][: min(count, len(order) // 2)]
    return source, most, least


def _pair(queries: QueryRecord, row: int, images: ImageLookup, names: Sequence[str] | None) -> str:
    query, neighbor = int(queries.index[row]), int(queries.neighbor[row])
    right = bool(queries.correct[row])
    query_name = _label(images.query_label, query, names)
    neighbor_name = _label(images.gallery_label, neighbor, names)
    verdict, sign = ("right", "✓") if right else ("wrong", "✗")
    caption = (
        f'<span class="pair-names">{text(query_name)}<br>→ {text(neighbor_name)}</span>'
        if query_name and neighbor_name
        else ""
    )
    asking = embedded_image(images.query(query), f"query {query} {query_name}")
    found = embedded_image(images.gallery(neighbor), f"its nearest neighbour {neighbor} {neighbor_name}")
    return (
        f'<li class="{verdict}"><span class="pair">{asking}{found}</span>'
        f'<span class="verdict"><span aria-hidden="true">{sign}</span> {verdict}</span>{caption}</li>'
    )


def embedded_image(image: NDArray[np.uint8], alt: str) -> str:
    """The picture itself inside the page; small ones keep their pixels sharp."""
    sharp = ' class="sharp"' if max(image.shape[:2]) <= LOSSLESS else ""
    return f'<img{sharp} src="{data_uri(image)}" alt="{text(alt.strip())}">'


def _label(lookup: Callable[[int], int] | None, index: int, names: Sequence[str] | None) -> str:
    return "" if lookup is None else label_name(lookup(index), names)


def label_name(label: int, names: Sequence[str] | None) -> str:
    """The label's name, or the label itself where it has none."""
    return str(names[label]) if names is not None and 0 <= label < len(names) else str(label)


FEWEST = 10  # below this many points t-SNE has no neighbourhoods to keep
LARGEST_LEGEND = SERIES * SHAPES
RADIUS_LOW, RADIUS_HIGH = 1.0, 3.6


@dataclass(frozen=True)
class EmbeddingMap:
    """A picture of the embedding: where each item lies, its label, and its uncertainty if it has one."""

    coordinates: NDArray[np.float64]  # (n, 2)
    labels: NDArray[np.int64]  # (n,)
    uncertainty: NDArray[np.float64] | None = None  # (n,)

    def __post_init__(self) -> None:
        n = len(self.labels)
        if self.coordinates.shape != (n, 2) or (
            self.uncertainty is not None and self.uncertainty.shape != (n,)
        ):
            raise InputError(
                f"A map of {n} labels needs coordinates of shape ({n}, 2) and uncertainties of shape ({n},); "
                f"got {self.coordinates.shape} and {None if self.uncertainty is None else self.uncertainty.shape}."
            )


def embedding_map(
    direction: Tensor, labels: Tensor, uncertainty: Tensor | None = None, *, limit: int = 1000, seed: int = 0
) -> EmbeddingMap:
    """Lays out at most `limit` items, drawn by `seed`, on a plane; the same seed draws the same map.

    direction (n, D), labels (n,), uncertainty (n,) or None. Fewer than ten items are laid out by PCA.

    >>> import torch
    >>> embedding_map(torch.randn(5, 3), torch.arange(5)).coordinates.shape
    (5, 2)
    """
    import torch

    _check(direction, labels, uncertainty)
    if limit < 1:
        raise InputError(f"A map needs at least one item; the limit is {limit}.")
    n = len(direction)
    chosen = torch.randperm(n, generator=torch.Generator().manual_seed(seed))[:limit].sort().values

    def taken(values: Tensor) -> Tensor:  # each from the device it is on: embeddings may be on a GPU
        return values.detach()[chosen.to(values.device)].cpu()

    return EmbeddingMap(
        coordinates=_layout(taken(direction).double().numpy(), seed),
        labels=taken(labels).long().numpy(),
        uncertainty=None if uncertainty is None else taken(uncertainty).double().numpy(),
    )


def draw_map(shown: EmbeddingMap, *, names: Sequence[str] | None = None) -> str:
    """The map as a figure: label as colour and shape, uncertainty as size (by rank: outliers do not rule)."""
    import numpy as np

    classes, counts = np.unique(shown.labels, return_counts=True)
    radii = _radii(shown.uncertainty, len(shown.labels))
    groups = []
    for place, label in enumerate(classes):
        of_class = shown.labels == label
        # Shapes advance with each round of colours, so that 24 classes all differ.
        shape = (place % SERIES + place // SERIES) % SHAPES
        (x, y), radius = shown.coordinates[of_class].T.tolist(), radii[of_class].tolist()
        groups.append(Points(label_name(int(label), names), x, y, radius, series(place), shape))
    many = len(classes) > LARGEST_LEGEND
    note = "Each dot is an image; near dots have similar embeddings. Colour and shape show the label"
    note += f" (of {len(classes)} classes, so that looks repeat)" if many else ""
    note += ", size the uncertainty: large is unsure." if shown.uncertainty is not None else "."
    description = (
        f"Map of {int(counts.sum())} images of {len(classes)} classes, similar embeddings near each other"
    )
    body = scatter(groups, description=description) + ("" if many else legend(groups))
    return figure("Map of the embedding", body, note=note, kind="chart wide")


def _check(direction: Tensor, labels: Tensor, uncertainty: Tensor | None) -> None:
    n = len(direction)
    if direction.ndim != 2 or labels.shape != (n,) or (uncertainty is not None and uncertainty.shape != (n,)):
        raise InputError(
            f"A map takes directions (n, D), labels (n,) and uncertainties (n,); got {tuple(direction.shape)}, "
            f"{tuple(labels.shape)} and {None if uncertainty is None else tuple(uncertainty.shape)}."
        )
    if not direction.numel() or not bool(direction.isfinite().all()):
        raise InputError("A map needs at least one item, and directions without NaN or infinity.")


def _layout(points: NDArray[np.float64], seed: int) -> NDArray[np.float64]:  # (m, D) → (m, 2)
    import numpy as np
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    flat: NDArray[np.float64]
    if len(points) == 1 or not np.ptp(points, axis=0).any():  # a collapsed embedding is one spot
        return np.zeros((len(points), 2))
    if len(points) < FEWEST:
        flat = PCA(min(2, *points.shape), random_state=seed).fit_transform(points)
        return np.pad(flat, ((0, 0), (0, 2 - flat.shape[1])))
    start = "pca" if points.shape[1] >= 2 else "random"
    layout = TSNE(2, perplexity=min(30.0, (len(points) - 1) / 3), init=start, random_state=seed)
    flat = layout.fit_transform(points).astype(np.float64)
    return flat


def _radii(uncertainty: NDArray[np.float64] | None, n: int) -> NDArray[np.float64]:
    import numpy as np

    if uncertainty is None:
        return np.full(n, 2.0)
    ordered = np.sort(uncertainty)
    # Equal uncertainties get equal sizes: the middle of their ranks.
    rank = (
        np.searchsorted(ordered, uncertainty, "left") + np.searchsorted(ordered, uncertainty, "right") - 1
    ) / 2
    return RADIUS_LOW + (RADIUS_HIGH - RADIUS_LOW) * rank / max(n - 1, 1)
