"""Embeddings on disk: safetensors with the family's parameters, `ids` and `labels`; `.npz` from outside."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from doubtless.embedding.base import FAMILIES, Embedding
from doubtless.errors import InputError
from doubtless.files import write_bytes

SCHEMA = 1


@dataclass(frozen=True)
class StoredEmbedding:
    """What a file holds: the distributions, and who they are."""

    embedding: Embedding
    ids: list[str] | None = None
    labels: Tensor | None = None
    uncertainty: Tensor | None = None
    """Only from outside: one number per item that some other method made (its family knows nothing of it)."""


def save_embedding(
    path: str | Path, embedding: Embedding, *, ids: Sequence[str] | None = None, labels: Tensor | None = None
) -> None:
    """Writes one safetensors file; all or nothing."""
    tensors = {name: value.detach().cpu().contiguous() for name, value in embedding.parameters.items()}
    for name, values in (("ids", ids), ("labels", labels)):
        if values is not None and len(values) != len(embedding):
            raise InputError(
                f"The {name} must have one entry per item, got {len(values)} for {len(embedding)}."
            )
    if labels is not None:
        tensors["labels"] = labels.detach().cpu().long()
    if ids is not None:
        tensors["ids"] = torch.frombuffer(bytearray(json.dumps(list(ids)).encode()), dtype=torch.uint8)
    metadata = {"family": embedding.family, "schema": str(SCHEMA)}
    write_bytes(path, save(tensors, metadata=metadata))


def read_embedding(path: str | Path) -> StoredEmbedding:
    """Reads safetensors written by `save_embedding`, or `.npz` with `location` and, where there are any,
    `variance`, `uncertainty`, `labels`, `ids`."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    if path.suffix == ".npz":
        return _read_npz(path)
    return _read_safetensors(path)


def _read_safetensors(path: Path) -> StoredEmbedding:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise InputError(f"The file {path} is no readable safetensors file: {error}.") from error
    if int(metadata.get("schema", SCHEMA)) > SCHEMA:
        raise InputError(
            f"The file {path} was written by a newer doubtless (schema {metadata['schema']}); update to read it."
        )
    labels, ids = tensors.pop("labels", None), tensors.pop("ids", None)
    uncertainty = tensors.pop("uncertainty", None)
    family = metadata.get("family", "gaussian" if "variance" in tensors else "point")
    return StoredEmbedding(
        embedding=_build(path, family, tensors),
        ids=None if ids is None else json.loads(bytes(ids.numpy())),
        labels=labels,
        uncertainty=uncertainty,
    )


def _read_npz(path: Path) -> StoredEmbedding:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError) as error:
        raise InputError(f"The file {path} is no readable .npz file: {error}.") from error
    tensors = {
        name: torch.from_numpy(np.ascontiguousarray(arrays[name], dtype=np.float32))
        for name in ("location", "variance", "concentration", "samples", "uncertainty")
        if name in arrays
    }
    uncertainty = tensors.pop("uncertainty", None)
    family = str(arrays["family"]) if "family" in arrays else _family_of(tensors)
    return StoredEmbedding(
        embedding=_build(path, family, tensors),
        ids=[str(name) for name in arrays["ids"]] if "ids" in arrays else None,
        labels=torch.from_numpy(arrays["labels"].astype(np.int64)) if "labels" in arrays else None,
        uncertainty=uncertainty,
    )


def _family_of(tensors: dict[str, Tensor]) -> str:
    if "samples" in tensors:
        return "empirical"
    if "concentration" in tensors:
        return "vmf"
    return "gaussian" if "variance" in tensors else "point"


def _build(path: Path, family: str, tensors: dict[str, Tensor]) -> Embedding:
    if family not in FAMILIES:
        raise InputError(
            f"The file {path} holds family {family!r}; this version knows {', '.join(sorted(FAMILIES))}."
        )
    needed = set(FAMILIES[family].item_axes)
    if missing := needed - set(tensors):
        raise InputError(
            f"The file {path} lacks {', '.join(sorted(missing))}, which a {family} embedding needs."
        )
    return FAMILIES[family]({name: tensors[name] for name in FAMILIES[family].item_axes})
