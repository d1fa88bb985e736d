"""What an embedding becomes in an index: the numbers that are stored, and the vectors that are searched.

Stored, as float32: location, then variance (1 or D) or concentration; `unpacked` gives the distributions back.
Searched: `direction` for cosines; for expected distances the vectors of `search.scores.gallery_vectors`,
R·direction for unit families and [μ, −½(‖μ‖² + tr Σ)] for Gaussians. Points need the first only.

Samples (`empirical`) would be s vectors per item; an index keeps the von Mises-Fisher distribution behind them,
which has the samples' mean direction and, their number accounted for, their resultant length.

Attachments of an index (calibrator, doubt, …) as bytes and text: safetensors and JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doubtless.embedding import FAMILIES, Embedding
from doubtless.errors import InputError
from doubtless.index.settings import Settings
from doubtless.search.scores import gallery_vectors

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

SURE = 1e30
"""Concentration of samples that all agree: infinity cannot be stored, and R is 1 long before."""

ITEM = np.dtype([("row", "<i8"), ("spread", "<f8"), ("uncertainty", "<f4"), ("label", "<i4")])
"""What a search needs of an item beside its vectors; spread: R of unit families, tr Σ of Gaussians."""


class Block(NamedTuple):
    """Some rows as they are stored."""

    rows: Integers  # (n,)
    labels: Integers  # (n,) codes, −1 without
    numbers: Floats  # (n, width)


@dataclass(frozen=True)
class Searchable:
    """n items as a cache keeps them."""

    items: NDArray[np.void]  # (n,) of ITEM
    matrices: dict[str, Floats]  # score → (n, D) or (n, D + 1)

    def __len__(self) -> int:
        return len(self.items)


def matrix_widths(settings: Settings) -> dict[str, int]:
    """Score → width of the vectors that are searched by it."""
    widths = {"direction": settings.dim}
    if settings.family != "point":
        widths["expected-distance"] = settings.dim + settings.is_gaussian
    return widths


def fitting(embedding: Embedding, settings: Settings, *, model: str | None = None) -> Embedding:
    """The embedding as this index can take it, float32 on the CPU; refused where it is of another kind."""
    if model is not None and settings.model is not None and model != settings.model:
        raise InputError(
            f"These embeddings come from model {model!r}, the index holds those of {settings.model!r}; "
            "distances between models mean nothing. Embed again with the index's model, or make a new index."
        )
    if embedding.family == "empirical" and settings.family == "vmf":
        embedding = _fitted(embedding)
    if embedding.family == "point" and settings.takes_plain_vectors:
        embedding = Embedding.gaussian(embedding.location, torch.zeros(len(embedding), 1))
    if embedding.family != settings.family:
        raise InputError(
            f"The index holds {settings.family} embeddings, got {embedding.family}; accepted: {settings.family}"
            f"{' or empirical' if settings.family == 'vmf' else ''}."
        )
    if embedding.dim != settings.dim:
        raise InputError(f"The index has dimension {settings.dim}, got embeddings of {embedding.dim}.")
    variance = embedding.parameters.get("variance")
    if variance is not None and variance.shape[1] > settings.variances:
        raise InputError(
            f"The index stores one variance per item, got {variance.shape[1]}; create it with "
            f"variances={settings.dim} for diagonal covariances."
        )
    narrow = {name: value.detach().cpu().float() for name, value in embedding.parameters.items()}
    return FAMILIES[embedding.family](narrow)  # looks again: float64 may not fit into float32


def packed(embedding: Embedding, settings: Settings) -> Floats:
    """The numbers of `fitting` embeddings that are stored, (n, width)."""
    parts = [embedding.location]
    for name in ("variance", "concentration"):
        if name in embedding.parameters:
            doubt = embedding.parameters[name]
            doubt = doubt if doubt.dim() == 2 else doubt.unsqueeze(1)  # a concentration has one axis
            parts.append(doubt.expand(-1, settings.variances))
    return np.ascontiguousarray(torch.cat(parts, dim=1).numpy(), dtype="<f4")


def unpacked(numbers: Floats, settings: Settings) -> Embedding:
    """The distributions behind stored numbers (n, width)."""
    whole = torch.from_numpy(np.array(numbers, dtype=np.float32))
    location, doubt = whole[:, : settings.dim].contiguous(), whole[:, settings.dim :].contiguous()
    if settings.family == "point":
        return Embedding.point(location)
    if settings.family == "vmf":
        return Embedding.vmf(location, doubt[:, 0])
    return FAMILIES[settings.family]({"location": location, "variance": doubt})


def searchable(embedding: Embedding, settings: Settings, *, rows: Integers, labels: Integers) -> Searchable:
    """What is searched, of `fitting` embeddings."""
    matrices = {
        name: _plain(gallery_vectors(name, embedding))  # type: ignore[arg-type]
        for name in matrix_widths(settings)
    }
    items = np.zeros(len(embedding), dtype=ITEM)
    items["row"], items["label"] = rows, labels
    items["spread"] = spread(embedding).numpy()
    uncertainty = embedding.uncertainty
    items["uncertainty"] = 0 if uncertainty is None else uncertainty.numpy()
    return Searchable(items, matrices)


def new_items(embedding: Embedding, settings: Settings, ids: Sequence[str]) -> Searchable:
    """What is searched of `fitting` embeddings that have no rows yet; refuses what could not be found."""
    nowhere = np.zeros(len(embedding), np.int64)
    new = searchable(embedding, settings, rows=nowhere, labels=nowhere)
    refuse_unsearchable(new, ids, embedding)
    return new


def spread(embedding: Embedding) -> Tensor:
    """What an expected distance needs beside locations, float64 (n,): tr Σ of Gaussians, else R."""
    if embedding.family == "gaussian":
        return embedding.parameters["variance"].double().expand_as(embedding.location).sum(-1)
    return embedding.resultant.double()


def refuse_unsearchable(new: Searchable, ids: Sequence[str], embedding: Embedding) -> None:
    """Items nothing could be compared with: without a direction, or with numbers too large to be squared."""
    directed = np.abs(np.linalg.norm(new.matrices["direction"], axis=1) - 1) < 1e-3
    finite = np.all([np.isfinite(matrix).all(1) for matrix in new.matrices.values()], axis=0)
    wrong = np.flatnonzero(~(directed & finite))
    if len(wrong):
        length = float(embedding.location[int(wrong[0])].double().norm())
        others = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise InputError(
            f"Item {ids[int(wrong[0])]!r}{others} has a location of length {length:g}, which gives no direction "
            "or distance to be found by; leave it out or embed it again."
        )


def _fitted(embedding: Embedding) -> Embedding:
    """The von Mises-Fisher distributions behind samples."""
    uncertainty = embedding.uncertainty
    assert uncertainty is not None
    return Embedding.vmf(embedding.location, uncertainty.reciprocal().clamp(max=SURE))


def _plain(vectors: Tensor) -> Floats:
    return np.ascontiguousarray(vectors.numpy(), dtype=np.float32)


def packed_attachment(
    name: str, tensors: Mapping[str, Tensor], record: Mapping[str, Any]
) -> tuple[bytes, str]:
    """Safetensors and JSON."""
    from safetensors.torch import save

    plain = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
    try:
        return save(plain), json.dumps(dict(record), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"The record of {name!r} cannot be written as JSON ({error}); keep infinite numbers in tensors."
        ) from error


def read_attachment(tensors: bytes, record: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What `packed_attachment` was given."""
    from safetensors.torch import load

    return load(tensors), json.loads(record)
