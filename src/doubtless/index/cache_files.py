"""The cache of an index on disk: plain arrays that only grow, and a stamp that says how far they can be trusted.

    INDEX/cache/stamp.json          which folder, how many rows, of which state of the database, checksums
    INDEX/cache/<name>/items        row, spread, uncertainty, label of every item
    INDEX/cache/<name>/direction    (rows, D) float32, little-endian, row by row
    INDEX/cache/<name>/expected-distance
    INDEX/cache/<name>/moments-…    Σ x xᵀ over the first rows, where somebody has asked for it
    INDEX/cache/<name>/approximate-…   a FAISS index over the first rows, where there are many

Rows below the stamp's count never change, so readers map the files while the writer appends. Data reach the disk
before the stamp that counts them. Whatever does not agree with its stamp is thrown away: the database knows all.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import warnings
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from doubtless.errors import FileError
from doubtless.files import write_json
from doubtless.index.forms import ITEM, Floats, Searchable, matrix_widths
from doubtless.index.moments import Moments
from doubtless.index.proposals import Approximate, Recipe
from doubtless.index.settings import Settings

STAMP_SCHEMA = 1
PLAIN = re.compile(r"[\w-]+")


@dataclass(frozen=True)
class Stamp:
    """What the files of a cache hold."""

    identity: str
    generation: int
    version: int
    """Of the database that the files were made from; a cache from its future is not its cache."""
    folder: str
    count: int = 0
    checksums: Mapping[str, int] = field(default_factory=dict)
    """Of the first `count` rows of each file."""
    approximate: Mapping[str, Any] | None = None
    moments: Mapping[str, Any] | None = None
    schema: int = STAMP_SCHEMA


class DamageError(Exception):
    """Files that are not what their stamp says."""


class CacheFiles:
    """The files of one cache; only the index's writer writes them."""

    def __init__(self, index: Path, stamp: Stamp, settings: Settings) -> None:
        self._root = index / "cache"
        self.stamp, self.is_read = stamp, True
        """Whether a stamp on the disk names this cache."""
        self._kinds: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {"items": (ITEM, ())}
        for name, width in matrix_widths(settings).items():
            self._kinds[name] = (np.dtype("<f4"), (width,))

    @classmethod
    def new(cls, index: Path, settings: Settings, *, generation: int, version: int) -> CacheFiles:
        """An empty folder for a new cache; the stamp still names the old one."""
        name = f"{generation}-{secrets.token_hex(4)}"
        files = cls(index, Stamp(settings.identity, generation, version, name), settings)
        files.folder.mkdir(parents=True)
        files.is_read = False
        return files

    @classmethod
    def current(cls, index: Path, settings: Settings) -> CacheFiles | None:
        """The cache that the stamp names; None, with a warning, where the stamp cannot be read."""
        path = index / "cache" / "stamp.json"
        try:
            record = json.loads(path.read_text())
            if record["schema"] != STAMP_SCHEMA:
                return None
            seal = record.pop("seal", None)  # stamps of earlier versions have none
            if seal is not None and seal != _seal(record):
                raise ValueError("its stamp is not what was written")
            return cls(index, _plain(Stamp(**record)), settings)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError) as error:
            warn_of_damage(index, error)
            return None

    @property
    def folder(self) -> Path:
        """Of the files that the stamp names."""
        return self._root / self.stamp.folder

    def read(self) -> tuple[NDArray[np.void], dict[str, Floats]]:
        """Items and matrices; the matrices are mapped, and may be written to in memory without being so on disk."""
        try:
            arrays = {name: self._mapped(name) for name in self._kinds}
        except (OSError, ValueError, KeyError) as error:
            raise DamageError(str(error)) from error
        return np.array(arrays.pop("items")), arrays

    def append(self, new: Searchable, *, version: int) -> None:
        """Adds rows behind those that count, and counts them."""
        checksums, count = dict(self.stamp.checksums), self.stamp.count + len(new)
        try:
            for name, array in {"items": new.items, **new.matrices}.items():
                checksums[name] = self._write(name, array, checksums.get(name, 0))
            self.publish(replace(self.stamp, version=version, count=count, checksums=checksums))
        except (OSError, FileError):
            self._give_back()
            raise

    def read_approximate(self, settings: Settings, *, mapped: bool = True) -> Approximate | None:
        """The approximate index that the stamp names; None where there is none."""
        if self.stamp.approximate is None or "items" not in self.stamp.approximate:
            return None  # of an earlier version, in which removed items were zeros
        record = dict(self.stamp.approximate)
        try:
            path, checksum = self.folder / record.pop("file"), record.pop("checksum")
            if _checksum(path) != checksum:
                raise DamageError(f"{path} has another checksum than its stamp says")
            return Approximate.read(path, Recipe(**record), settings, mapped=mapped)
        except (OSError, RuntimeError, KeyError, TypeError) as error:
            raise DamageError(str(error)) from error

    def write_approximate(self, approximate: Approximate | None) -> None:
        """Puts an approximate index, or none, in place of the one that is there."""
        with self._replacing("approximate") as file:
            record = None
            if approximate is not None:
                try:
                    approximate.write(file)
                except RuntimeError as error:  # FAISS says so where a disk is full
                    raise OSError(str(error)) from error
                with open(file, "rb") as written:
                    os.fsync(written.fileno())
                record = {"file": file.name, "checksum": _checksum(file), **approximate.recipe.record()}
            self.publish(replace(self.stamp, approximate=record))

    @property
    def summed(self) -> int:
        """How many of the first rows the saved moments have been looked for in."""
        return 0 if self.stamp.moments is None else int(self.stamp.moments["reach"])

    def read_moments(self, settings: Settings) -> Moments | None:
        """Moments of the first rows, as the stamp names them; None where there are none."""
        if self.stamp.moments is None:
            return None
        empty = Moments.none(settings.dim)
        try:
            path = self.folder / self.stamp.moments["file"]
            if _checksum(path) != self.stamp.moments["checksum"]:
                raise DamageError(f"{path} has another checksum than its stamp says")
            total = np.fromfile(path, dtype="<f8").reshape(empty.total.shape)
        except FileNotFoundError:
            return None  # a writer has put others in place meanwhile
        except (OSError, ValueError, KeyError) as error:
            raise DamageError(str(error)) from error
        return replace(empty, total=torch.from_numpy(total), count=int(self.stamp.moments["count"]))

    def write_moments(self, moments: Moments) -> None:
        """Puts moments of all rows that are numbers in place of those that are there."""
        with self._replacing("moments") as file:
            with open(file, "wb") as written:
                written.write(_bytes(np.ascontiguousarray(moments.total.numpy(), dtype="<f8")))
                written.flush()
                os.fsync(written.fileno())
            sizes = {"count": moments.count, "reach": self.stamp.count}
            record = {"file": file.name, "checksum": _checksum(file), **sizes}
            self.publish(replace(self.stamp, moments=record))

    def publish(self, stamp: Stamp) -> None:
        """Makes this cache, as the stamp says it is, the one that is read, and throws others away."""
        record = asdict(stamp)
        write_json(self._root / "stamp.json", {**record, "seal": _seal(record)})
        self.stamp, self.is_read = stamp, True
        with contextlib.suppress(OSError):
            for other in self._root.iterdir():
                if other.is_dir() and other.name != stamp.folder:
                    shutil.rmtree(other, ignore_errors=True)

    def discard(self) -> None:
        """Leaves no stamp that could come to fit the database by chance."""
        (self._root / "stamp.json").unlink(missing_ok=True)

    @contextlib.contextmanager
    def _replacing(self, kind: str) -> Iterator[Path]:
        """Where to write what takes the place of others of its kind; one that cannot be written does not stay."""
        file = self.folder / f"{kind}-{secrets.token_hex(4)}"
        try:
            yield file
        except (OSError, FileError):
            file.unlink(missing_ok=True)
            raise
        for other in self.folder.glob(f"{kind}-*"):
            if other != file:
                other.unlink(missing_ok=True)

    def _give_back(self) -> None:
        """Takes from the disk what no stamp counts: after a write that failed, where room is short."""
        if not self.is_read:
            shutil.rmtree(self.folder, ignore_errors=True)
            return
        for name, (kind, shape) in self._kinds.items():
            with contextlib.suppress(OSError):
                os.truncate(self.folder / name, self.stamp.count * kind.itemsize * int(np.prod(shape)))

    def _mapped(self, name: str) -> NDArray[Any]:
        kind, shape = self._kinds[name]
        count = self.stamp.count
        if not count:
            return np.zeros((0, *shape), dtype=kind)
        array = np.memmap(self.folder / name, dtype=kind, mode="c", shape=(count, *shape))
        if zlib.crc32(_bytes(array)) != self.stamp.checksums[name]:
            raise DamageError(f"{self.folder / name} has another checksum than its stamp says")
        return array

    def _write(self, name: str, array: NDArray[Any], checksum: int) -> int:
        kind, shape = self._kinds[name]
        data = _bytes(np.ascontiguousarray(array, dtype=kind))
        handle = os.open(self.folder / name, os.O_RDWR | os.O_CREAT, 0o666)
        with os.fdopen(handle, "r+b") as file:
            file.seek(self.stamp.count * kind.itemsize * int(np.prod(shape)))
            file.write(data)
            file.truncate()  # what a killed writer left behind the rows that count
            file.flush()
            os.fsync(file.fileno())
        return zlib.crc32(data, checksum)


def _bytes(array: NDArray[Any]) -> memoryview:
    """The array's own memory; nothing is copied."""
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type]


def _seal(record: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


def _plain(stamp: Stamp) -> Stamp:
    """A stamp whose names lead nowhere else: what it names is written and deleted."""
    names = [stamp.folder, *(part["file"] for part in (stamp.approximate, stamp.moments) if part is not None)]
    if not all(isinstance(name, str) and PLAIN.fullmatch(name) for name in names):
        raise ValueError("its stamp names files elsewhere")
    return stamp


def _checksum(path: Path) -> int:
    return zlib.crc32(_bytes(np.memmap(path, dtype=np.uint8, mode="r")))


def warn_of_damage(index: Path, what: object) -> None:
    """Says that the cache is thrown away and made again."""
    warnings.warn(
        f"The cache of the index {index} is damaged ({what}); it is made again from the database, which is whole.",
        RuntimeWarning,
        stacklevel=2,
    )


def warn_of_failed_write(index: Path, error: OSError | FileError) -> None:
    """Says that the cache could not be kept."""
    warnings.warn(
        f"The cache of the index {index} could not be written ({error}); nothing is lost, but opening takes "
        "longer until it can be.",
        RuntimeWarning,
        stacklevel=2,
    )
