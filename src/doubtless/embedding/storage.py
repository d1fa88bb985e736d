"""Embeddings on disk: safetensors with the family's parameters, `ids` and `labels`; other people's files, too."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from doubtless.embedding.base import FAMILIES, Embedding
from doubtless.errors import InputError
from doubtless.files import reading, write_bytes
from doubtless.parquet import arrow_and_parquet, opened_parquet

SCHEMA = 1
VECTOR_NAMES = ("location", "embeddings", "embedding", "vectors", "vector", "features", "x", "arr_0")
"""What vectors are called in files, ours first."""
LABELS, IDS = ("label", "labels", "class"), ("id", "ids", "key")


@dataclass(frozen=True)
class StoredEmbedding:
    """What a file holds: the distributions, and who they are."""

    embedding: Embedding
    ids: list[str] | None = None
    labels: Tensor | None = None
    uncertainty: Tensor | None = None
    """Only from outside: one number per item that some other method made (its family knows nothing of it)."""
    label_names: list[str] | None = None
    """What the labels' numbers stand for, where the file has names."""

    def label_words(self) -> list[str] | None:
        """Labels as names: their own, or their numbers written out."""
        if self.labels is None:
            return None
        codes = self.labels.tolist()
        return [str(code) if self.label_names is None else self.label_names[code] for code in codes]


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
    """Embeddings of a file, with labels and ids where it has them.

    .safetensors    as `save_embedding` writes them
    .npz            `location` and, where there are any, `variance`, `uncertainty`, `labels`, `ids`
    .npy            vectors (n, D) alone
    .parquet        a column of vectors, and where there are any `label`, `id`, `uncertainty`

    Of other people's files, vectors may be called `embeddings`, `vectors`, `features` or `x`, or be all that there
    is; labels are whole numbers or names.
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    readers = {".npz": _read_npz, ".npy": _read_npy, ".parquet": _read_parquet, ".pq": _read_parquet}
    with reading(path, "file of embeddings"):
        stored = readers.get(path.suffix.lower(), _read_safetensors)(path)
        _check_words(path, stored)
    for name, values in (("ids", stored.ids), ("labels", stored.labels)):
        if values is not None and len(values) != len(stored.embedding):
            raise InputError(
                f"{path} has {len(stored.embedding)} embeddings but {len(values)} {name}; there must be one each."
            )
    return stored


def _check_words(path: Path, stored: StoredEmbedding) -> None:
    """Refuses ids and names of labels that are none, and labels that have no name."""
    for what, words in (("ids", stored.ids), ("label_names", stored.label_names)):
        if words is not None and not (isinstance(words, list) and all(isinstance(one, str) for one in words)):
            raise InputError(f"The {what} of {path} must be a list of texts.")
    if stored.labels is None:
        return
    if stored.labels.dim() != 1:
        raise InputError(
            f"{path} must have one label per item, got an array of shape {tuple(stored.labels.shape)}."
        )
    names = stored.label_names
    if (
        names is not None
        and len(stored.labels)
        and not 0 <= int(stored.labels.min()) <= int(stored.labels.max()) < len(names)
    ):
        raise InputError(f"{path} has labels that its {len(names)} label_names do not name.")


def holds_vectors(path: str | Path) -> bool:
    """Whether a file is one that `read_embedding` reads: by its name, and of parquet by its columns."""
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in (".parquet", ".pq"):
        return suffix in (".npy", ".npz", ".safetensors")
    return path.is_file() and bool(_vector_columns(path))


def coded(labels: Sequence[Any]) -> tuple[Tensor, list[str] | None]:
    """Labels as whole numbers (n,), and the names that they stand for where they were words.

    >>> coded(["dog", "cat", "dog"]), coded([3, 1])[1]
    ((tensor([1, 0, 1]), ['cat', 'dog']), None)
    """
    values = np.asarray(labels)
    if values.ndim != 1:
        raise InputError(f"There must be one label per item, got an array of shape {values.shape}.")
    if values.dtype.kind in "iub":
        return torch.from_numpy(values.astype(np.int64)), None
    if values.dtype.kind not in "US":
        if values.dtype.kind != "f" or not np.equal(np.mod(values, 1), 0).all():
            raise InputError(f"Labels must be whole numbers or names, got {values.dtype}.")
        return torch.from_numpy(values.astype(np.int64)), None
    names, codes = np.unique(values.astype(str), return_inverse=True)
    return torch.from_numpy(codes.reshape(-1).astype(np.int64)), [str(name) for name in names]


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
    tensors = _renamed(tensors)
    family = metadata.get("family", _family_of(tensors))
    names = json.loads(metadata["label_names"]) if "label_names" in metadata else None
    return StoredEmbedding(
        embedding=_build(path, family, tensors),
        ids=None if ids is None else json.loads(bytes(ids.numpy())),
        labels=None if labels is None else labels.long(),
        uncertainty=uncertainty,
        label_names=names,
    )


def _read_npz(path: Path) -> StoredEmbedding:
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # zipfile, zlib and numpy each raise their own for a damaged file
        raise InputError(f"The file {path} is no readable .npz file: {error}.") from error
    numbers = {
        name: torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
        for name, array in arrays.items()
        if array.dtype.kind == "f"
        or name in ("location", "variance", "concentration", "samples", "uncertainty")
    }
    uncertainty = numbers.pop("uncertainty", None)
    tensors = _renamed(numbers)
    said = next((arrays[name] for name in ("labels", "label", "y") if name in arrays), None)
    labels, names = (None, None) if said is None else coded(said)
    return StoredEmbedding(
        embedding=_build(path, str(arrays["family"]) if "family" in arrays else _family_of(tensors), tensors),
        ids=[str(name) for name in arrays["ids"]] if "ids" in arrays else None,
        labels=labels,
        uncertainty=uncertainty,
        label_names=names,
    )


def _read_npy(path: Path) -> StoredEmbedding:
    try:
        matrix = np.load(path, allow_pickle=False)
    except Exception as error:  # numpy raises many kinds for damaged files
        raise InputError(f"{path} is no readable .npy file: {error}.") from error
    if matrix.ndim != 2 or not len(matrix) or matrix.dtype.kind != "f":
        raise InputError(f"{path} must hold floats (n, D), got {matrix.dtype} {matrix.shape}.")
    return StoredEmbedding(Embedding.point(torch.from_numpy(matrix.astype(np.float32))))


def _read_parquet(path: Path) -> StoredEmbedding:
    columns = _vector_columns(path)
    if not columns:
        raise InputError(
            f"{path} has no column of vectors: one of lists of floats, called {', '.join(VECTOR_NAMES)}."
        )
    _, parquet = arrow_and_parquet()
    table = parquet.read_table(path)
    about = json.loads((table.schema.metadata or {}).get(b"doubtless", b"{}"))
    tensors = {name: _matrix(path, table.column(name)) for name in columns}
    for name, shape in about.get("shapes", {}).items():  # written by `doubtless embed --format parquet`
        values = tensors[name] if name in tensors else torch.tensor(table.column(name).to_pylist())
        axis = FAMILIES[about["family"]].item_axes[name]
        tensors[name] = values.reshape(len(table), *shape).movedim(0, axis).contiguous()
    tensors = _renamed(tensors)
    words = {name: _words(table, choices) for name, choices in (("label", LABELS), ("id", IDS))}
    labels, names = (None, None) if words["label"] is None else coded(words["label"])
    doubt = table.column("uncertainty").to_pylist() if "uncertainty" in table.column_names else None
    return StoredEmbedding(
        embedding=_build(path, about.get("family", _family_of(tensors)), tensors),
        ids=None if words["id"] is None else [str(name) for name in words["id"]],
        labels=labels,
        uncertainty=None if doubt is None or about else torch.tensor(doubt),
        label_names=names,
    )


def _words(table: Any, choices: Sequence[str]) -> list[Any] | None:
    """The column with one of some names; None where there is none, or it has gaps."""
    for name in choices:
        if name in table.column_names:
            values = table.column(name).to_pylist()
            return None if any(value is None for value in values) else values
    return None


def _matrix(path: Path, column: Any) -> Tensor:
    rows = column.to_pylist()
    widths = {None if row is None else len(row) for row in rows}
    if len(widths) != 1 or None in widths:
        raise InputError(f"{path} has vectors of differing lengths, or rows without one.")
    return torch.from_numpy(np.array(rows, dtype=np.float32))


def _vector_columns(path: Path) -> list[str]:
    """Columns of a parquet file that hold lists of floats."""
    with opened_parquet(path) as file:
        schema = file.schema_arrow
    from pyarrow import types

    tests = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    return [
        field.name
        for field in schema
        if any(test(field.type) for test in tests) and types.is_floating(field.type.value_type)
    ]


def _renamed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Vectors by our name for them: what others call so, or the only matrix that there is."""
    if {"location", "samples"} & set(tensors):
        return tensors
    matrices = [name for name, value in tensors.items() if value.dim() == 2 and value.is_floating_point()]
    usual = [name for name in VECTOR_NAMES if name in matrices]
    chosen = usual[0] if usual else matrices[0] if len(matrices) == 1 else None
    if chosen is None:
        return tensors
    return {"location" if name == chosen else name: value for name, value in tensors.items()}


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
