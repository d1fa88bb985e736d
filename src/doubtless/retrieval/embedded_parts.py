"""Embedded images and who they are; a folder of such parts on disk, which `doubtless embed` writes.

    embed.json                 what is embedded, and by which model
    part-00000.safetensors     distributions and ids, as `doubtless.embedding.read_embedding` reads them
    part-00000.json            labels, paths and metadata, item by item, and the part's bad images
    bad.csv                    all bad images with the reason, when the work is done or stopped

A part is there when its JSON is: it is written last, and each file is written, synced and renamed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from doubtless.embedding import Embedding, read_embedding, save_embedding
from doubtless.errors import InputError
from doubtless.files import read_json, write_json, write_text

MANIFEST = "embed.json"
BAD = "bad.csv"


class BadImage(NamedTuple):
    """An image that was skipped, and why."""

    id: str
    path: str | None
    reason: str


@dataclass(frozen=True)
class EmbeddedPart:
    """Some embedded items, and who they are."""

    embedding: Embedding | None
    """None: there is no item, all images were bad."""
    ids: list[str]
    labels: list[str | None]
    paths: list[str | None]
    metadata: list[dict[str, Any]]
    bad: list[BadImage] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = 0 if self.embedding is None else len(self.embedding)
        for name in ("ids", "labels", "paths", "metadata"):
            if len(getattr(self, name)) != count:
                raise InputError(
                    f"{name} must have one entry an item, got {len(getattr(self, name))} for {count}."
                )

    def __len__(self) -> int:
        return len(self.ids)


def write_part(folder: Path, number: int, part: EmbeddedPart) -> None:
    """Distributions first, then who they are: a part with its JSON is whole."""
    if part.embedding is not None:
        save_embedding(_vectors(folder, number), part.embedding, ids=part.ids)
    about = {
        "items": len(part),
        "labels": part.labels,
        "paths": part.paths,
        "metadata": part.metadata if any(part.metadata) else None,
        "bad": part.bad,
    }
    write_json(_about(folder, number), about)


def has_part(folder: Path, number: int) -> bool:
    about = _about(folder, number)
    return about.is_file() and (read_json(about)["items"] == 0 or _vectors(folder, number).is_file())


def read_part(folder: Path, number: int) -> EmbeddedPart:
    about = read_json(_about(folder, number))
    bad = [BadImage(*entry) for entry in about["bad"]]
    if about["items"] == 0:
        return EmbeddedPart(None, [], [], [], [], bad)
    stored = read_embedding(_vectors(folder, number))
    if stored.ids is None:
        raise InputError(f"{_vectors(folder, number)} has lost its ids; delete it and embed again.")
    metadata = about["metadata"] or [{} for _ in stored.ids]
    return EmbeddedPart(stored.embedding, stored.ids, about["labels"], about["paths"], metadata, bad)


def read_manifest(folder: str | Path) -> dict[str, Any]:
    path = Path(folder) / MANIFEST
    if not path.is_file():
        raise InputError(f"{folder} was not made by `doubtless embed`: it has no {MANIFEST}.")
    return dict(read_json(path))


def write_bad(folder: Path, bad: Sequence[BadImage]) -> None:
    """id, path, reason of every skipped image; only a heading where there is none."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(BadImage._fields)
    lines.writerows(bad)
    write_text(folder / BAD, text.getvalue())


def remove_leftovers(folder: Path) -> None:
    """Temporary files of a killed process, once all parts are there."""
    for file in folder.glob(".part-*"):
        file.unlink(missing_ok=True)


def bad_of_part(folder: Path, number: int) -> list[BadImage]:
    return [BadImage(*entry) for entry in read_json(_about(folder, number))["bad"]]


def _vectors(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.safetensors"


def _about(folder: Path, number: int) -> Path:
    return folder / f"part-{number:05d}.json"
