"""Sources for training out of streams: lists of images, tar shards, parquet files and Hugging Face's datasets.

Images that lie in files of their own stay there; those inside shards are held as they are, undecoded, in memory.
What cannot be read is left out, named and counted, as everywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from doubtless.data.prepare import readable
from doubtless.data.source import TEST, TRAIN, ImageList, Source
from doubtless.data.sources import Progress, SourceRequest, source_kind
from doubtless.data.streams.opening import open_streams
from doubtless.data.streams.records import ImageRecord, ImageStream
from doubtless.errors import InputError

MOST_BYTES = 16 << 30
"""Undecoded images of shards that are held in memory; more are to be unpacked into files."""
PARTS = {"train": TRAIN, "training": TRAIN, "validation": TRAIN, "valid": TRAIN, "val": TRAIN, "test": TEST}
"""Parts of a data set that say which of its images test; validation is cut from all others."""


@source_kind("csv:PATH", "a CSV or parquet file that lists image files: path, label, any metadata")
def _csv(request: SourceRequest) -> Source:
    return _of_files(request)


@source_kind("tar:PATH", "tar shards in webdataset's manner, one or a folder of them: key.jpg with key.cls")
def _tar(request: SourceRequest) -> Source:
    return _of_files(request)


@source_kind("parquet:PATH", "parquet files with a column of images, one or a folder of them")
def _parquet(request: SourceRequest) -> Source:
    return _of_files(request)


@source_kind(
    "hf:NAME", "a data set of Hugging Face's datasets, by its name or its folder on this disk; #PART"
)
def _hugging_face(request: SourceRequest) -> Source:
    place, hash_, part = request.rest.partition("#")
    local = SourceRequest(request.name, place, request.root).path
    name = f"hf:{local if local.exists() else place}{hash_}{part}"
    return source_of(request.name, open_streams([name]), progress=request.progress)


def _of_files(request: SourceRequest) -> Source:
    if not request.path.exists():
        raise InputError(f"There is no file or folder {request.path}.")
    return source_of(request.name, open_streams([request.path]), progress=request.progress)


def source_of(name: str, streams: Sequence[ImageStream], *, progress: Progress | None = None) -> Source:
    """A source of all images of some streams that have a label and can be read."""
    records = [record for stream in streams for record in stream.records()]
    _must_fit(name, records)
    problems = _problems(name, records, progress)
    good = [record for record, problem in zip(records, problems, strict=True) if problem is None]
    skipped = [
        f"{record.path or record.id}: {problem}"
        for record, problem in zip(records, problems, strict=True)
        if problem is not None
    ]
    if not good:
        raise InputError(f"None of the {len(records)} images of {name} can be used; the first: {skipped[0]}.")
    label_names = sorted({str(record.label) for record in good})
    code = {label: number for number, label in enumerate(label_names)}
    common: dict[str, Any] = {
        "name": name,
        "labels": torch.tensor([code[str(record.label)] for record in good]),
        "label_names": label_names,
        "skipped": skipped,
        "given_split": _given_split(streams, records, problems),
    }
    if all(isinstance(record.data, Path) for record in good):
        return Source(paths=[Path(str(record.data)) for record in good], **common)
    digest = hashlib.sha256("".join(stream.fingerprint() for stream in streams).encode()).hexdigest()
    return Source(images=ImageList([record.data for record in good], 3, digest), **common)


def _must_fit(name: str, records: Sequence[ImageRecord]) -> None:
    held = sum(len(record.data) for record in records if isinstance(record.data, bytes))
    if held > MOST_BYTES:
        raise InputError(
            f"{name} holds {held:,} bytes of images, more than the {MOST_BYTES:,} that training holds in memory; "
            "unpack them into files, a folder per class."
        )


def _problems(name: str, records: Sequence[ImageRecord], progress: Progress | None) -> list[str | None]:
    """Why each image cannot be trained on, None where it can."""
    with ThreadPoolExecutor() as pool:  # Pillow decodes outside the interpreter lock
        checks: Iterable[str | None] = pool.map(_problem, records)
        if progress is not None:
            checks = progress(checks, f"checking {name}", len(records))
        return list(checks)


def _problem(record: ImageRecord) -> str | None:
    if record.problem is not None:
        return record.problem
    if record.label is None:
        return "nobody says what it shows"
    return readable(record.data) if isinstance(record.data, bytes | Path) else None


def _given_split(
    streams: Sequence[ImageStream], records: Sequence[ImageRecord], problems: Sequence[str | None]
) -> torch.Tensor | None:
    """Which images train and test, where every part of a data set says so."""
    parts = [PARTS.get(getattr(stream, "part", "")) for stream in streams for _ in range(len(stream))]
    if TRAIN not in parts or TEST not in parts or None in parts:
        return None
    kept = [part for part, problem in zip(parts, problems, strict=True) if problem is None]
    return torch.tensor(kept)
