"""Every reader of outside files, given files that were changed at random: what is wrong is a sentence, or read."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from doubtless.data import decode_image
from doubtless.data.streams.tables import read_labels
from doubtless.embedding import Embedding
from doubtless.errors import DoubtlessError
from doubtless.gallery.content import import_file
from doubtless.methods.configuration import load_config

VECTORS = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


def picture(kind: str) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(file, kind)
    return file.getvalue()


def npy() -> bytes:
    file = io.BytesIO()
    np.save(file, VECTORS)
    return file.getvalue()


def npz() -> bytes:
    file = io.BytesIO()
    np.savez(file, embeddings=VECTORS, labels=np.arange(5) % 2)
    return file.getvalue()


def safetensors(path: Path) -> bytes:
    import torch

    Embedding.point(torch.from_numpy(VECTORS)).save(path / "made.safetensors")
    return (path / "made.safetensors").read_bytes()


def parquet(path: Path) -> bytes:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet as files

    files.write_table(pyarrow.table({"id": ["a", "b"], "label": ["x", "y"]}), path / "made.parquet")
    return (path / "made.parquet").read_bytes()


READERS: dict[str, tuple[Callable[[Path], bytes], str, Callable[[Path], Any]]] = {
    "npy": (lambda _: npy(), ".npy", lambda file: list(import_file(file).shards)),
    "npz": (lambda _: npz(), ".npz", lambda file: list(import_file(file).shards)),
    "safetensors": (safetensors, ".safetensors", lambda file: list(import_file(file).shards)),
    "csv": (lambda _: b"id,label,year\na,b,1\nc,d,2\n", ".csv", read_labels),
    "parquet": (parquet, ".parquet", read_labels),
    "yaml": (
        lambda _: (
            b"method: deterministic\nseed: 3\ndata: {source: fashion-sample}\ntraining: {epochs: 2, lr: 1.0e-3}\n"
        ),
        ".yaml",
        load_config,
    ),
    "jpeg": (lambda _: picture("JPEG"), ".jpg", decode_image),
    "png": (lambda _: picture("PNG"), ".png", decode_image),
    "webp": (lambda _: picture("WEBP"), ".webp", decode_image),
    "gif": (lambda _: picture("GIF"), ".gif", decode_image),
}

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["set", "cut", "insert", "repeat"]),
        st.floats(0, 1),
        st.binary(min_size=1, max_size=12),
    ),
    min_size=1,
    max_size=4,
)


def changed(data: bytes, changes: list[tuple[str, float, bytes]]) -> bytes:
    for kind, where, some in changes:
        place = int(where * len(data))
        if kind == "set":
            data = data[:place] + some + data[place + len(some) :]
        elif kind == "cut":
            data = data[:place]
        elif kind == "insert":
            data = data[:place] + some + data[place:]
        else:
            data = data[:place] + data[place : place + 40] * 3 + data[place + 40 :]
    return data


@pytest.mark.slow
@pytest.mark.parametrize("name", list(READERS))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=CHANGES)
def test_what_cannot_be_read_is_a_sentence(
    name: str, changes: list[tuple[str, float, bytes]], tmp_path: Path
) -> None:
    make, suffix, read = READERS[name]
    file = tmp_path / f"changed{suffix}"
    file.write_bytes(changed(make(tmp_path), changes))
    with warnings.catch_warnings(), contextlib.suppress(DoubtlessError):
        warnings.simplefilter("ignore")
        read(file)
