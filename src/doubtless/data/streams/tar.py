"""Tar shards in webdataset's manner: files with one key are one sample, and follow each other.

    0001.jpg 0001.cls      label: cls; or json, its "label", the rest of it metadata; or txt
    0002.png 0002.json

A shard is read from front to back; nothing is unpacked, links and devices are passed over, and a name that
leads out of the shard makes its sample a bad one.
"""

from __future__ import annotations

import contextlib
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import Any

from doubtless.data.images import SUFFIXES, too_large
from doubtless.data.streams.records import (
    TAR_SUFFIXES,
    ImageRecord,
    file_fingerprint,
    is_text,
    plain_metadata,
)
from doubtless.errors import InputError

LABEL_KEYS = ("label", "cls", "class")
SIDE_BYTES = 1 << 20  # of a label or a JSON


@dataclass(frozen=True)
class TarStream:
    """Samples of a shard, from number `first` on, by their keys.

    A compressed shard has to be read from its beginning for each part of it.
    """

    path: Path
    first: int
    keys: tuple[str, ...]

    @classmethod
    def open(cls, path: Path) -> TarStream:
        """Lists the samples of a shard."""
        path = path.absolute()
        keys = tuple(key for key, _ in _samples(path, 0, 0))
        if not keys:
            raise InputError(f"{path} holds no samples.")
        return cls(path, 0, keys)

    @property
    def name(self) -> str:
        """Where they come from."""
        return str(self.path)

    def __len__(self) -> int:
        return len(self.keys)

    def ids(self) -> Iterator[str]:
        """All ids, in order, without reading an image."""
        return (self._id(key) for key in self.keys)

    def fingerprint(self) -> str:
        """Changes when the images do."""
        return file_fingerprint(self.path)

    def slice(self, start: int, stop: int) -> TarStream:
        """Samples start … stop − 1 alone."""
        return replace(self, first=self.first + start, keys=self.keys[start:stop])

    def records(self) -> Iterator[ImageRecord]:
        """One by one, not yet decoded."""
        samples = _samples(self.path, self.first, self.first + len(self.keys))
        for wanted, (key, files) in zip(self.keys, islice(samples, self.first, None), strict=False):
            if key != wanted:
                raise InputError(f"{self.path} has changed: it holds {key!r} where {wanted!r} was.")
            yield self._record(key, files)

    def _id(self, key: str) -> str:
        """With the shard's name: keys often count from 0 in every shard."""
        name = self.path.name
        for suffix in sorted(TAR_SUFFIXES, key=len, reverse=True):
            name = name[: -len(suffix)] if name.lower().endswith(suffix) else name
        readable = (
            key
            if is_text(key)
            else key.encode("utf-8", "surrogateescape").decode("ascii", "backslashreplace")
        )
        return f"{name}/{readable}"

    def _record(self, key: str, files: dict[str, bytes | str]) -> ImageRecord:
        images = [ending for ending in files if PurePosixPath(f"x.{ending}").suffix.lower() in SUFFIXES]
        images.sort(key=lambda ending: ending.count("."))  # 0001.jpg before 0001.mask.png
        name, data = self._id(key), files[images[0]] if images else "it has no image"
        problem = data if isinstance(data, str) else _misleading(key)
        if problem is not None:
            return ImageRecord(name, None, path=f"{self.path}#{name}", problem=problem)
        assert isinstance(data, bytes)
        try:
            label, metadata = _label(files)
        except ValueError as error:
            return ImageRecord(
                name, None, path=f"{self.path}#{name}", problem=f"its label cannot be read: {error}"
            )
        return ImageRecord(name, data, label=label, path=f"{self.path}#{key}.{images[0]}", metadata=metadata)


def _samples(path: Path, first: int, stop: int) -> Iterator[tuple[str, dict[str, bytes | str]]]:
    """Key and files by ending of every sample; what is in them is read for samples first … stop − 1 only.

    A file that is too large is there as the reason why it was not read.
    """
    number, current, files = -1, "", dict[str, bytes | str]()
    with _opened(path) as archive:
        while (member := _next(archive, path)) is not None:
            archive.members = []  # type: ignore[attr-defined]  # tarfile would keep every one of them
            key, ending = _split(member.name)
            if not member.isfile() or not ending or PurePosixPath(member.name).name.startswith("."):
                continue
            if number < 0 or key != current:
                if number >= 0:
                    yield current, files
                number, current, files = number + 1, key, {}
            files[ending] = _read(archive, member, path) if first <= number < stop else b""
    if number >= 0:
        yield current, files


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    """A plain shard can be skipped through; a compressed one is a stream, read once from the front."""
    try:
        plain = _is_plain(path)
        archive = tarfile.open(path, "r:" if plain else "r|*")  # noqa: SIM115 (closed below)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"{path} is no readable tar file: {error}.") from error
    with archive:
        yield archive


def _is_plain(path: Path) -> bool:
    try:
        with tarfile.open(path, "r:"):
            return True
    except tarfile.ReadError:
        return False


def _next(archive: tarfile.TarFile, path: Path) -> tarfile.TarInfo | None:
    try:
        return archive.next()
    except Exception as error:  # tarfile, gzip, bz2 and lzma each raise their own for a damaged file
        raise InputError(f"{path} is damaged or cut short: {error}.") from error


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes | str:
    image = PurePosixPath(member.name).suffix.lower() in SUFFIXES
    if not image and member.size > SIDE_BYTES:
        return b""
    if (problem := too_large(member.size)) is not None:
        return problem
    try:
        file = archive.extractfile(member)  # a regular file: no link is followed, nothing is written
        data = b"" if file is None else file.read()
    except Exception as error:  # as above
        raise InputError(f"{path} is damaged or cut short: {error}.") from error
    if len(data) != member.size:
        raise InputError(
            f"{path} is damaged or cut short: {member.name} lacks {member.size - len(data)} bytes."
        )
    return data


def _split(name: str) -> tuple[str, str]:
    """`train/0001.mask.png` is key `train/0001`, ending `mask.png`: a key ends at the first dot of the name."""
    folder, slash, file = name.rpartition("/")
    stem, _, ending = file.partition(".")
    return f"{folder}{slash}{stem}", ending


def _misleading(key: str) -> str | None:
    if not is_text(key):
        return "its name is not UTF-8"
    if key.startswith("/") or ".." in key.split("/"):
        return "its name leads out of the shard"
    return None


def _label(files: dict[str, bytes | str]) -> tuple[str | None, dict[str, Any]]:
    """The label by cls, json or txt, in this order; what else the JSON says, as far as it is plain."""
    about = _json(files.get("json"))
    metadata = plain_metadata({key: value for key, value in about.items() if key not in LABEL_KEYS})
    for ending in ("cls", "txt"):
        if ending == "txt" and (known := [about[key] for key in LABEL_KEYS if about.get(key) is not None]):
            return str(known[0]), metadata
        if files.get(ending):
            return _text(files[ending]).strip(), metadata
    return None, metadata


def _json(data: bytes | str | None) -> dict[str, Any]:
    if not data:
        return {}
    values = json.loads(_text(data))
    return values if isinstance(values, dict) else {}


def _text(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode()
