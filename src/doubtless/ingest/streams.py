"""Images from wherever they are: folders, single files, tar shards, parquet files, sources by name.

folder     label = the first folder below it, id = path below it
x.tar      webdataset's manner (`doubtless.ingest.tar`)
x.parquet  a column of image bytes (`doubtless.ingest.parquet`)
digits …   what `doubtless sources` lists
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from doubtless.data import Source, open_source
from doubtless.data.prepare import SUFFIXES
from doubtless.errors import InputError
from doubtless.ingest.records import (
    PARQUET_SUFFIXES,
    TAR_SUFFIXES,
    Columns,
    ImageRecord,
    ImageStream,
    is_text,
)


@dataclass(frozen=True)
class FolderStream:
    """Image files below a folder, sorted by path."""

    root: Path
    files: tuple[str, ...]
    """Paths below the root, with / between folders."""

    @classmethod
    def open(cls, root: Path) -> FolderStream:
        """Lists the images below a folder."""
        return cls(root.absolute(), tuple(sorted(_below(root, tuple(SUFFIXES)))))

    @property
    def name(self) -> str:
        """Where they come from."""
        return str(self.root)

    def __len__(self) -> int:
        return len(self.files)

    def ids(self) -> Iterator[str]:
        """All ids, in order, without reading an image."""
        return iter(self.files)

    def fingerprint(self) -> str:
        """Changes when the images do."""
        digest = hashlib.sha256()
        for file in self.files:
            stat = (self.root / file).stat()
            digest.update(os.fsencode(f"{file}:{stat.st_size}:{stat.st_mtime_ns}\n"))
        return digest.hexdigest()[:16]

    def slice(self, start: int, stop: int) -> FolderStream:
        """Images start … stop − 1 alone."""
        return replace(self, files=self.files[start:stop])

    def records(self) -> Iterator[ImageRecord]:
        """One by one, not yet decoded."""
        for file in self.files:
            path = self.root / file
            if not is_text(str(path)):
                readable = os.fsencode(file).decode("ascii", "backslashreplace")
                yield ImageRecord(readable, None, problem="its name is not UTF-8")
                continue
            label = file.split("/")[0] if "/" in file else None
            yield ImageRecord(file, path, label=label, path=str(path))


@dataclass(frozen=True)
class SourceStream:
    """A source by its name: arrays in memory."""

    source: Source
    first: int
    stop: int

    @property
    def name(self) -> str:
        """Where they come from."""
        return self.source.name

    def __len__(self) -> int:
        return self.stop - self.first

    def ids(self) -> Iterator[str]:
        """All ids, in order, without reading an image."""
        names = self.source.ids
        return (self._id(names, number) for number in range(self.first, self.stop))

    def fingerprint(self) -> str:
        """Changes when the images do."""
        return self.source.fingerprint()

    def slice(self, start: int, stop: int) -> SourceStream:
        """Images start … stop − 1 alone."""
        return replace(self, first=self.first + start, stop=self.first + stop)

    def records(self) -> Iterator[ImageRecord]:
        """One by one, not yet decoded."""
        source, names = self.source, self.source.ids
        for number in range(self.first, self.stop):
            file = None if source.paths is None else source.paths[number]
            yield ImageRecord(
                self._id(names, number),
                file if file is not None else source.image(number),
                label=source.label_names[int(source.labels[number])],
                path=None if file is None else str(file),
            )

    def _id(self, names: list[str], number: int) -> str:
        """Numbers alone would be those of every other source as well."""
        return names[number] if self.source.paths is not None else f"{self.source.name}/{names[number]}"


def open_streams(
    sources: Sequence[str | Path | Source], *, columns: Columns | None = None
) -> list[ImageStream]:
    """The streams of some sources, in their order; ids must differ among all of them.

    >>> [len(stream) for stream in open_streams(["digits"])]
    [1797]
    """
    if not sources:
        raise InputError("There is no source to embed; name folders, tar shards, parquet files or a source.")
    columns = columns or Columns()
    streams = [stream for source in sources for stream in _open(source, columns)]
    _must_differ(streams)
    return streams


def _open(source: str | Path | Source, columns: Columns) -> list[ImageStream]:
    if isinstance(source, Source):
        return [SourceStream(source, 0, len(source))]
    path = Path(str(source).removeprefix("folder:"))
    if path.is_dir():
        return _open_folder(path, columns)
    if path.is_file():
        return [_open_file(path, columns)]
    if Path(source).suffix or os.sep in str(source):
        raise InputError(f"There is no file or folder {source}.")
    named = open_source(str(source))
    return [SourceStream(named, 0, len(named))]


def _open_file(path: Path, columns: Columns) -> ImageStream:
    name = path.name.lower()
    if name.endswith(TAR_SUFFIXES):
        from doubtless.ingest.tar import TarStream

        return TarStream.open(path)
    if name.endswith(PARQUET_SUFFIXES):
        from doubtless.ingest.parquet import ParquetStream

        return ParquetStream.open(path, columns)
    if path.suffix.lower() in SUFFIXES:
        return FolderStream(path.absolute().parent, (path.name,))
    raise InputError(
        f"{path} is neither an image ({', '.join(sorted(SUFFIXES))}), nor a tar shard "
        f"({', '.join(TAR_SUFFIXES)}), nor a parquet file."
    )


def _open_folder(path: Path, columns: Columns) -> list[ImageStream]:
    """Its images, or, where it holds shards instead, those."""
    images = FolderStream.open(path)
    shards = sorted(_below(path, (*TAR_SUFFIXES, *PARQUET_SUFFIXES)))
    if len(images) and shards:
        raise InputError(
            f"{path} holds images and shards ({shards[0]}); name the one or the other, file by file or folder "
            "by folder."
        )
    if shards:
        return [_open_file(path / shard, columns) for shard in shards]
    if not len(images):
        raise InputError(
            f"{path} holds no images ({', '.join(sorted(SUFFIXES))}), no tar shards and no parquet files."
        )
    return [images]


def _below(root: Path, suffixes: tuple[str, ...]) -> Iterator[str]:
    """Files below a folder by how their names end; hidden ones and links to folders are left out."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for file in files:
            if file.lower().endswith(suffixes) and not file.startswith("."):
                yield (Path(folder) / file).relative_to(root).as_posix()


def _must_differ(streams: Sequence[ImageStream]) -> None:
    owner: dict[str, str] = {}
    for stream in streams:
        for name in stream.ids():
            if name in owner:
                raise InputError(
                    f"The id {name!r} comes twice, from {owner[name]} and from {stream.name}; ids must differ. "
                    "For folders, name the folder above them; for shards, give each another name; for parquet, "
                    "name a column of ids that differ."
                )
            owner[name] = stream.name
