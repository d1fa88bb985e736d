"""The head of a gallery whose network nobody has trained: its features as they are, or half-whitened.

Half-whitening goes by the gallery's own features, and so knows its labels' directions. A query of a label that was
taken out then looks stranger than a true stranger does, whose directions nobody knew, and the promise that is
fitted on such queries is too good, the less so the more labels there are: features stay as they are below `LABELS`.
Measured in docs/own-pictures.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from doubtless.embedding import Embedding
from doubtless.errors import InputError, nearest
from doubtless.ingest.create import Finish
from doubtless.ingest.shards import EmbeddedShard
from doubtless.laplace import half_whitened
from doubtless.methods import Method
from doubtless.methods.pretrained import Pretrained
from doubtless.runs.model import Model

HeadName = Literal["auto", "raw", "half-whitened"]
LABELS = 400
"""So many labels a gallery has at least before its features are half-whitened unasked."""
DIM = 256
MOST = 50_000
"""Images that a head is fitted on at most."""
Shards = Callable[[], Iterable[EmbeddedShard]]


def head_for(model: Model, head: HeadName = "auto", dim: int | None = None) -> Finish | None:
    """What gives a gallery's model its head once all images are embedded; None: it stays as it is.

    head   "raw", "half-whitened", or "auto": half-whitened for networks of timm in galleries of many labels
    dim    of a half-whitened head; at most one less than there are images
    """
    if head not in get_args(HeadName):
        raise InputError(f"There is no head {head!r}{nearest(head, get_args(HeadName))}")
    method = model.method
    is_raw = isinstance(method, Pretrained) and method.options.head == "raw"
    if head == "half-whitened" and not is_raw:
        raise InputError("This model has a head of its own; a half-whitened one is for a network as it is.")
    if dim is not None and head != "half-whitened":
        raise InputError("A dimension is chosen for a half-whitened head: --head half-whitened --dim 128.")
    if head == "raw" or not is_raw or (head == "auto" and not model.is_of_timm):
        return None

    def finish(first: Model | Method, shards: Shards) -> tuple[Model | Method, Iterable[EmbeddedShard]]:
        if head == "auto" and _labels(shards()) < LABELS:
            return first, shards()
        assert isinstance(method, Pretrained)
        made = method.half_whitened(*_fitted(shards(), dim))
        return Model(made, address=model.address), _through(made, shards())

    return finish


def _labels(shards: Iterable[EmbeddedShard]) -> int:
    return len({label for shard in shards for label in shard.labels if label is not None})


def _fitted(shards: Iterable[EmbeddedShard], dim: int | None) -> tuple[Tensor, Tensor]:
    """The head's weight (D, F) and bias (D,)."""
    parts, count = list[Tensor](), 0
    for shard in shards:
        if shard.embedding is not None and count < MOST:
            parts.append(shard.embedding.location[: MOST - count])
            count += len(parts[-1])
    if count < 3:
        raise InputError(f"A half-whitened head needs three images or more, got {count}; take --head raw.")
    features = torch.cat(parts)
    most = min(count - 1, features.shape[1])
    weight, bias = half_whitened(features, min(DIM, most) if dim is None else dim)
    assert bias is not None
    return weight, bias


def _through(method: Method, shards: Iterable[EmbeddedShard]) -> Iterator[EmbeddedShard]:
    """Shards of features as the head makes embeddings of them."""
    for shard in shards:
        if shard.embedding is None:
            yield shard
            continue
        with torch.no_grad():
            located = method.distribution(shard.embedding.location.to(method.device))["location"]
        yield replace(shard, embedding=Embedding.point(located.to("cpu")))
