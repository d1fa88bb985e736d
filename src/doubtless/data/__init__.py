"""Data sources, splits, preparation and loaders."""

from doubtless.data.batches import BalancedBatches
from doubtless.data.loading import Batch, ImageSet, in_order, training_batches
from doubtless.data.prepare import Preparation, decode_image, image_tensor
from doubtless.data.source import Places, Source, tensor_source
from doubtless.data.sources import KINDS, Progress, open_source
from doubtless.data.splits import Split, make_split

__all__ = [
    "Source",
    "open_source",
    "tensor_source",
    "KINDS",
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
    "Progress",
]
