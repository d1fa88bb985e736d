"""The embedding seen from above: two coordinates for each of a sample of items (t-SNE; van der Maaten 2008)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from doubtless.errors import InputError
from doubtless.report.charts import SERIES, SHAPES, Points, legend, scatter, series
from doubtless.report.images import label_name
from doubtless.report.markup import figure

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

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
                f"a map of {n} labels needs coordinates of shape ({n}, 2) and uncertainties of shape ({n},); "
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
        raise InputError(f"a map needs at least one item; the limit is {limit}.")
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
            f"a map takes directions (n, D), labels (n,) and uncertainties (n,); got {tuple(direction.shape)}, "
            f"{tuple(labels.shape)} and {None if uncertainty is None else tuple(uncertainty.shape)}."
        )
    if not direction.numel() or not bool(direction.isfinite().all()):
        raise InputError("a map needs at least one item, and directions without NaN or infinity.")


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
