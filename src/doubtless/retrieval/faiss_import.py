"""Vectors out of somebody's FAISS index: those it holds exactly (Flat, IVF-Flat, HNSW-Flat, with or without ids).

Quantised vectors (PQ, scalar quantizers, additive ones) are approximations: they are refused, because distances
and doubt measured on them would be wrong without a word. A refined index (`IndexRefineFlat`) still has the vectors.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from doubtless.embedding import Embedding
from doubtless.errors import InputError
from doubtless.retrieval.importing import Vectors

UNIT = 1e-3
"""How far lengths may be from 1 for vectors to count as unit: half precision on the way."""


class FaissVectors(NamedTuple):
    """What a FAISS index held, and how it is to be searched to find the same neighbours."""

    vectors: Vectors
    score: str
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
    try:
        index = faiss.read_index(str(path))  # owns what the downcast ones below look at
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[-1]
        raise InputError(f"{path} is no FAISS index of float vectors that can be read: {reason}") from error
    metric = index.metric_type
    if metric not in (faiss.METRIC_L2, faiss.METRIC_INNER_PRODUCT):
        raise InputError(f"{path} is searched by FAISS's metric {metric}; accepted are L2 and inner product.")
    values, ids = _contents(path, faiss.downcast_index(index))
    if not len(values):
        raise InputError(f"{path} holds no vectors.")
    return _as_embedding(path, values, ids, is_l2=metric == faiss.METRIC_L2)


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
        own = faiss.vector_to_array(index.id_map).astype(np.int64)
        values, inner = _contents(path, faiss.downcast_index(index.index))
        return values, own if inner is None else own[inner]
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
    found = np.concatenate(ids)
    order = found.argsort(kind="stable")
    is_count = bool(np.array_equal(found[order], np.arange(len(found))))
    return np.concatenate(values)[order], None if is_count else found[order]
