"""Images inside the page: data URIs and the grid of queries with their nearest neighbours."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from doubtless.errors import InputError
from doubtless.report.markup import text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
        own = None if labels is None else (lambda index: int(labels[index]))
        if gallery is None:
            return cls(images.__getitem__, images.__getitem__, own, own)
        return cls(images.__getitem__, gallery.query, own, gallery.query_label)


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
            f"an image of the report has shape {shape} and type {image.dtype}; "
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
    asked = _label(images.query_label, query, names)
    found = _label(images.gallery_label, neighbor, names)
    verdict, sign = ("right", "✓") if right else ("wrong", "✗")
    caption = f'<span class="pair-names">{text(asked)}<br>→ {text(found)}</span>' if asked and found else ""
    return (
        f'<li class="{verdict}"><span class="pair">{_image(images.query(query), f"query {query} {asked}")}'
        f"{_image(images.gallery(neighbor), f'its nearest neighbour {neighbor} {found}')}</span>"
        f'<span class="verdict"><span aria-hidden="true">{sign}</span> {verdict}</span>{caption}</li>'
    )


def _image(image: NDArray[np.uint8], alt: str) -> str:
    sharp = ' class="sharp"' if max(image.shape[:2]) <= LOSSLESS else ""
    return f'<img{sharp} src="{data_uri(image)}" alt="{text(alt.strip())}">'


def _label(lookup: Callable[[int], int] | None, index: int, names: Sequence[str] | None) -> str:
    return "" if lookup is None else label_name(lookup(index), names)


def label_name(label: int, names: Sequence[str] | None) -> str:
    """The label's name, or the label itself where it has none."""
    return str(names[label]) if names is not None and 0 <= label < len(names) else str(label)
