"""Images from wherever they are, by one string: folders, files, shards, lists, data sets, sources by name.

folder        label = the first folder below it, id = path below it
x.csv         a list of image files (`doubtless.data.streams.manifest`), also as parquet
x.tar         webdataset's manner (`doubtless.data.streams.tar`)
x.parquet     a column of image bytes (`doubtless.data.streams.parquet`)
hf:NAME       Hugging Face's datasets (`doubtless.data.streams.huggingface`)
digits …      what `doubtless sources` lists
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from doubtless.data.images import SUFFIXES, is_image, kinds_of
from doubtless.data.source import Source
from doubtless.data.sources import open_source
from doubtless.data.streams.folder import FolderStream, files_below
from doubtless.data.streams.records import (
    PARQUET_SUFFIXES,
    TAR_SUFFIXES,
    Columns,
    ImageRecord,
    ImageStream,
)
from doubtless.data.streams.tables import TABLE_SUFFIXES
from doubtless.errors import InputError

FILE_SOURCES = {"folder", "csv", "tar", "parquet"}
"""Kinds of sources that are named by a path: what is behind the colon is opened as it is."""


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
    sources: Sequence[str | Path | Source | ImageStream], *, columns: Columns | None = None
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


def _open(source: str | Path | Source | ImageStream, columns: Columns) -> Sequence[ImageStream]:
    if isinstance(source, Source):
        return [SourceStream(source, 0, len(source))]
    if not isinstance(source, str | Path):
        return [source]
    if str(source).startswith("hf:"):
        from doubtless.data.streams.huggingface import open_dataset

        return open_dataset(str(source), columns)
    word, _, rest = str(source).partition(":")
    path = Path(rest if word in FILE_SOURCES and rest else source)
    if path.is_dir():
        return _open_folder(path, columns)
    if path.is_file():
        return [_open_file(path, columns)]
    if path.suffix or os.sep in str(path):
        raise InputError(f"There is no file or folder {path}.")
    named = open_source(str(source))
    return [SourceStream(named, 0, len(named))]


def _open_file(path: Path, columns: Columns) -> ImageStream:
    name = path.name.lower()
    if name.endswith(TAR_SUFFIXES):
        from doubtless.data.streams.tar import TarStream

        return TarStream.open(path)
    if name.endswith(PARQUET_SUFFIXES):
        from doubtless.data.streams.parquet import ParquetStream, lists_files

        if not lists_files(path):
            return ParquetStream.open(path, columns)
    if name.endswith(TABLE_SUFFIXES):
        from doubtless.data.streams.manifest import ManifestStream

        return ManifestStream.open(path, columns)
    if is_image(name):
        return FolderStream(path.absolute().parent, (path.name,))
    raise InputError(
        f"{path} is neither an image ({', '.join(sorted(SUFFIXES))}), nor a tar shard "
        f"({', '.join(TAR_SUFFIXES)}), nor a parquet file, nor a CSV that lists images."
    )


def _open_folder(path: Path, columns: Columns) -> list[ImageStream]:
    """Its images, or, where it holds shards instead, those."""
    images = FolderStream.open(path)
    shards = sorted(files_below(path, lambda name: name.lower().endswith((*TAR_SUFFIXES, *PARQUET_SUFFIXES))))
    if images.images and shards:
        raise InputError(
            f"{path} holds images and shards ({shards[0]}); name the one or the other, file by file or folder "
            "by folder."
        )
    if shards:
        return [_open_file(path / shard, columns) for shard in shards]
    if not images.images:
        others = f"; it holds files that are not read: {kinds_of(images.files)}" if len(images) else ""
        raise InputError(
            f"{path} holds no images ({', '.join(sorted(SUFFIXES))}), no tar shards and no parquet files{others}."
        )
    return [images]


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
