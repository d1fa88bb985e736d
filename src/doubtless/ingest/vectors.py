"""What users have already: vectors in .npy, .npz or .safetensors files, and a CSV that says who they are.

labels.csv has a column `id` and a column `label`; `path` is the image's file, any other column metadata. Its rows
are those of the vectors, in order; where the vectors bring ids of their own, rows are found by id.

Out of somebody's FAISS index come the vectors that it holds exactly (Flat, IVF-Flat, HNSW-Flat, with or
without ids). Quantised vectors (PQ, scalar quantizers, additive ones) are approximations: they are refused,
because distances and doubt measured on them would be wrong without a word. A refined index
(`IndexRefineFlat`) still has the vectors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from doubtless.data.streams.tables import LabelTable, check_ids, read_labels
from doubtless.embedding import FAMILIES, Embedding, read_embedding
from doubtless.errors import InputError, listed
from doubtless.files import reading
from doubtless.index.settings import IndexScore
from doubtless.ingest.shards import EmbeddedShard, read_shards

SHARD_ITEMS = 20_000
"""Items that are handed on together."""


@dataclass(frozen=True)
class Vectors:
    """n vectors from outside, and who they are as far as their own file says."""

    embedding: Embedding
    ids: list[str] | None = None
    labels: list[str | None] | None = None


def imported(
    embeddings: str | Path,
    *,
    labels: str | Path | None = None,
    variance: str | Path | None = None,
    family: str | None = None,
) -> Iterator[EmbeddedShard]:
    """Embeddings of a file or of a folder that `doubtless embed` made, as an index takes them.

    variance: .npy (n,), (n, 1) or (n, D) beside vectors that have none; family: gaussian or projected-gaussian.
    """
    path = Path(embeddings)
    table = None if labels is None else read_labels(labels)
    if path.is_dir():
        if variance is not None or family is not None:
            raise InputError(
                f"{path} says itself what its embeddings are; --variance and --family go with .npy."
            )
        shards = read_shards(path)
        return (shard if table is None else relabelled(shard, table) for shard in shards)
    return joined(read_vectors(path, variance=variance, family=family), table)


def read_vectors(
    path: str | Path, *, variance: str | Path | None = None, family: str | None = None
) -> Vectors:
    """Vectors of a .npy (n, D), .npz, .safetensors or parquet file."""
    path = Path(path)
    if path.suffix.lower() != ".npy":
        if variance is not None or family is not None:
            raise InputError(f"--variance and --family go with .npy vectors; {path.name} holds its own.")
        stored = read_embedding(path)
        if len(stored.embedding) == 0:
            raise InputError(f"{path} holds no vectors.")
        words = stored.label_words()
        return Vectors(stored.embedding, stored.ids, None if words is None else [*words])
    location = read_matrix(path)
    if variance is None:
        if family not in (None, "point"):
            raise InputError(f"A {family} embedding needs --variance, a .npy of (n,), (n, 1) or (n, D).")
        return Vectors(Embedding.point(location))
    if family not in (None, "gaussian", "projected-gaussian"):
        raise InputError(f"Vectors with variances are gaussian or projected-gaussian, got family {family!r}.")
    doubt = read_matrix(Path(variance), flat=True)
    return Vectors(FAMILIES[family or "gaussian"]({"location": location, "variance": doubt}))


def read_matrix(path: Path, *, flat: bool = False) -> Tensor:
    """Floats (n, D) of a .npy file as float32; with `flat`, (n,) is taken as (n, 1)."""
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    with reading(path, ".npy file"):
        matrix = np.load(path, allow_pickle=False, mmap_mode="r")
    if not isinstance(matrix, np.ndarray):  # a .npz, whatever it is called
        raise InputError(f"{path} holds several arrays; a .npy file holds one.")
    if flat and matrix.ndim == 1:
        matrix = matrix[:, None]
    if matrix.ndim != 2 or not len(matrix) or not np.issubdtype(matrix.dtype, np.floating):
        raise InputError(
            f"{path} must hold floats (n, D){' or (n,)' if flat else ''}, got {matrix.dtype} {matrix.shape}."
        )
    return torch.from_numpy(np.array(matrix, dtype=np.float32))


def joined(vectors: Vectors, table: LabelTable | None) -> Iterator[EmbeddedShard]:
    """Vectors and what the table says of them, some at a time: by id where they have ids, else row by row."""
    count = len(vectors.embedding)
    ids = vectors.ids if vectors.ids is not None else [str(row) for row in range(count)]
    check_ids("the file of vectors", ids)
    if table is not None and vectors.ids is None:
        if len(table.ids) != count:
            raise InputError(
                f"{table.path} has {len(table.ids):,} rows for {count:,} vectors; there must be one each, in order."
            )
        ids = table.ids
    nothing: list[None] = [None] * count
    whole = EmbeddedShard(vectors.embedding, ids, vectors.labels or [*nothing], [*nothing], [{} for _ in ids])
    if table is not None:
        whole = relabelled(whole, table)
    return (_slice(whole, slice(start, start + SHARD_ITEMS)) for start in range(0, count, SHARD_ITEMS))


def relabelled(shard: EmbeddedShard, table: LabelTable) -> EmbeddedShard:
    """The same items with the table's labels and metadata, found by id; rows of the table may be left over."""
    if missing := [name for name in shard.ids if name not in table.row_of]:
        raise InputError(
            f"{table.path} has no row for {len(missing):,} of the vectors, by their ids {listed(missing)}."
        )
    rows = [table.row_of[name] for name in shard.ids]
    return EmbeddedShard(
        shard.embedding,
        shard.ids,
        [table.labels[row] for row in rows],
        [table.paths[row] or before for row, before in zip(rows, shard.paths, strict=True)],
        [{**before, **table.metadata[row]} for row, before in zip(rows, shard.metadata, strict=True)],
        shard.bad,
    )


def _slice(shard: EmbeddedShard, rows: slice) -> EmbeddedShard:
    assert shard.embedding is not None
    return EmbeddedShard(
        shard.embedding[rows], shard.ids[rows], shard.labels[rows], shard.paths[rows], shard.metadata[rows]
    )


UNIT = 1e-3
"""How far lengths may be from 1 for vectors to count as unit: half precision on the way."""


class FaissVectors(NamedTuple):
    """What a FAISS index held, and how it is to be searched to find the same neighbours."""

    vectors: Vectors
    score: IndexScore
    notes: list[str]


def read_faiss(path: str | Path) -> FaissVectors:
    """Vectors and ids of a FAISS index file.

    Unit vectors, and those of an inner-product index, become points searched by direction. An L2 index over
    vectors of differing length becomes Gaussians of variance 0 searched by expected distance, which is then the
    squared L2 distance.
    """
    import faiss

    path = Path(path)
    if not path.is_file():
        raise InputError(f"There is no file {path}.")
    with reading(path, "FAISS index of float vectors"):
        with _no_more_than(path.stat().st_size):
            index = faiss.read_index(str(path))  # owns what the downcast ones below look at
        metric = index.metric_type
        if metric not in (faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT):
            raise InputError(
                f"{path} is searched by FAISS's metric {metric}; accepted are L2 and inner product."
            )
        values, ids = _contents(path, faiss.downcast_index(index))
    if not len(values):
        raise InputError(f"{path} holds no vectors.")
    return _as_embedding(path, values, ids, is_l2=metric == faiss.METRIC_L2)


@contextlib.contextmanager
def _no_more_than(size: int) -> Iterator[None]:
    """Lets FAISS, where it is new enough, take no more memory for a vector of a file than the file has bytes."""
    import faiss

    if not hasattr(faiss, "set_deserialization_vector_byte_limit"):
        yield
        return
    before = faiss.get_deserialization_vector_byte_limit()
    faiss.set_deserialization_vector_byte_limit(size)
    try:
        yield
    finally:
        faiss.set_deserialization_vector_byte_limit(before)


def _as_embedding(
    path: Path, values: NDArray[np.float32], ids: NDArray[np.int64] | None, *, is_l2: bool
) -> FaissVectors:
    names = None if ids is None else [str(number) for number in ids.tolist()]
    location = torch.from_numpy(values)
    is_unit = bool(((location.norm(dim=1) - 1).abs() < UNIT).all())
    if is_l2 and not is_unit:
        still = Embedding.gaussian(location, torch.zeros(len(location), 1))
        note = (
            f"{path.name} ranks by L2 distance of vectors of differing length; they are kept as Gaussians of "
            "variance 0 and searched by expected distance, which is the same."
        )
        return FaissVectors(Vectors(still, names), "expected-distance", [note])
    notes = (
        []
        if is_unit
        else [
            f"{path.name} ranks by inner products of vectors of differing length; here they are ranked by cosine."
        ]
    )
    return FaissVectors(Vectors(Embedding.point(location), names), "direction", notes)


def _contents(path: Path, index: Any) -> tuple[NDArray[np.float32], NDArray[np.int64] | None]:
    """Vectors (n, D), and ids (n,) where they are not just 0 … n − 1."""
    import faiss

    if isinstance(index, faiss.IndexIDMap | faiss.IndexIDMap2):
        ids = faiss.vector_to_array(index.id_map).astype(np.int64)
        values, inner = _contents(path, faiss.downcast_index(index.index))
        return values, ids if inner is None else ids[inner]
    if isinstance(index, faiss.IndexRefineFlat):
        return _contents(path, faiss.downcast_index(index.refine_index))
    if isinstance(index, faiss.IndexFlat | faiss.IndexHNSWFlat):
        values = np.empty((index.ntotal, index.d), np.float32)
        if len(values):
            index.reconstruct_n(0, len(values), values)
        return values, None
    if isinstance(index, faiss.IndexIVFFlat) and type(index) is faiss.IndexIVFFlat:
        return _inverted(index)
    raise InputError(
        f"{path} is a FAISS {type(index).__name__}, which does not hold the vectors as they were; accepted are "
        "Flat, IVF-Flat, HNSW-Flat and Refine-Flat, with or without an IDMap. Import the vectors themselves "
        "with --embeddings."
    )


def _inverted(index: Any) -> tuple[NDArray[np.float32], NDArray[np.int64] | None]:
    """An IVF index list by list, whatever ids were given; in the order of the ids."""
    import faiss

    lists, width = index.invlists, index.d
    ids, values = [np.zeros(0, np.int64)], [np.zeros((0, width), np.float32)]
    for number in range(index.nlist):
        size = lists.list_size(number)
        if size:
            ids.append(faiss.rev_swig_ptr(lists.get_ids(number), size).astype(np.int64))
            codes = faiss.rev_swig_ptr(lists.get_codes(number), size * lists.code_size)
            values.append(codes.view(np.float32).reshape(size, width).copy())
    all_ids = np.concatenate(ids)
    order = all_ids.argsort(kind="stable")
    is_count = bool(np.array_equal(all_ids[order], np.arange(len(all_ids))))
    return np.concatenate(values)[order], None if is_count else all_ids[order]
