"""Pictures for tests: folders, tar shards and parquet files of the tiny data set, good ones and bad ones."""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from pathlib import Path

import numpy as np
from PIL import Image


def tiny_images(npz: Path, count: int) -> tuple[np.ndarray, list[str]]:
    """`count` test images (count, 12, 12), classes in turn, and the names of their classes."""
    with np.load(npz) as file:
        x, y = file["x_test"], file["y_test"]
    order = np.argsort(np.arange(len(y)) % 20, kind="stable")[:count]  # one of each class, again and again
    return x[order], [f"class-{label}" for label in y[order]]


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_folder(root: Path, images: np.ndarray, labels: list[str]) -> list[str]:
    """One folder a class; the ids, in the order in which they are read."""
    ids = []
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        file = root / label / f"{number:04d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(png(pixels))
        ids.append(f"{label}/{number:04d}.png")
    return sorted(ids)


def write_tar(path: Path, files: dict[str, bytes], *, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def bomb(width: int = 40_000, height: int = 40_000) -> bytes:
    """A PNG of few bytes that says it is enormous."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )
