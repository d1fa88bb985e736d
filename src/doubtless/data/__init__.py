"""Data sources, splits, preparation and loaders."""

from doubtless.data.batches import BalancedBatches
from doubtless.data.loading import Batch, ImageSet, in_order, training_batches
from doubtless.data.objects import as_source
from doubtless.data.prepare import ImageLike, Preparation, decode_image, image_tensor, pixels_of
from doubtless.data.source import Places, Source, tensor_source
from doubtless.data.sources import (
    SOURCES,
    Progress,
    SourceKind,
    SourceRequest,
    named_source,
    open_source,
    source_kind,
)
from doubtless.data.splits import Split, make_split
from doubtless.data.streams import training as _training  # noqa: F401 (registers sources of lists and shards)

__all__ = [
    "Source",
    "open_source",
    "tensor_source",
    "as_source",
    "named_source",
    "SOURCES",
    "SourceKind",
    "SourceRequest",
    "source_kind",
    "Places",
    "Split",
    "make_split",
    "Preparation",
    "ImageSet",
    "Batch",
    "BalancedBatches",
    "training_batches",
    "in_order",
    "decode_image",
    "image_tensor",
    "pixels_of",
    "ImageLike",
    "Progress",
]
