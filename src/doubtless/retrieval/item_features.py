"""Features before the head of an index's own items, from their images: what is not new to this gallery."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from doubtless.data import Progress
from doubtless.errors import InputError

if TYPE_CHECKING:
    from doubtless.api import Model
    from doubtless.retrieval.interface import AnyIndex


LOOKED_AT = 1_000


class ItemFeatures:
    """Looks at the images of items again.

    >>> calibrate_index(index, features_of=ItemFeatures(index, model))         # doctest: +SKIP
    """

    def __init__(self, index: AnyIndex, model: Model, *, progress: Progress | None = None) -> None:
        self.index, self.model, self.progress = index, model, progress

    def __call__(self, rows: Tensor) -> Tensor:
        """(n, F) of the items at rows."""
        paths = [item.path for item in self.index.items(rows)]
        if missing := [path for path in paths if path is None or not Path(path).is_file()]:
            raise InputError(
                f"{len(missing)} of {len(paths)} items have no image file, {missing[0]} for one."
            )
        files = [Path(path) for path in paths if path is not None]
        return self.model.embed_with_features(files, progress=self.progress)[1]


def images_are_there(index: AnyIndex) -> bool:
    """Whether items name image files that can be found; at most `LOOKED_AT` are asked, spread over the index."""
    rows = index.rows
    some = index.items(rows[:: max(1, len(rows) // LOOKED_AT)])
    return bool(some) and all(item.path is not None and Path(item.path).is_file() for item in some)
