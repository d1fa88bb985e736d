"""Hugging Face's `datasets` as images: by a name on the Hub, or a folder on this disk.

hf:PATH        what `save_to_disk` wrote, or a folder of parquet, arrow or image files as `load_dataset` takes it
hf:USER/NAME   from the Hub, or from its cache where there is no network
hf:…#train     one part of it alone
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from doubtless.data.streams.parquet import class_names_of, detect_columns, is_plain, record_of_row
from doubtless.data.streams.records import Columns, ImageRecord
from doubtless.errors import InputError, nearest
from doubtless.files import reading
from doubtless.hub import cached_datasets

SCHEME = "hf:"


@dataclass(frozen=True)
class DatasetStream:
    """Rows first … stop − 1 of one part of a data set; an id is the part's name and the row, or a column's."""

    dataset: Any
    place: str
    part: str
    columns: Columns
    first: int
    stop: int

    @property
    def name(self) -> str:
        """Where they come from."""
        return f"{SCHEME}{self.place}#{self.part}"

    def __len__(self) -> int:
        return self.stop - self.first

    def ids(self) -> Iterator[str]:
        """All ids, in order, without reading an image."""
        if self.columns.id is None:
            return (f"{self.part}/{row}" for row in range(self.first, self.stop))
        return iter(str(value) for value in self.dataset[self.columns.id][self.first : self.stop])

    def fingerprint(self) -> str:
        """Changes when the images do; `datasets` keeps one that does."""
        about = f"{self.dataset._fingerprint}-{self.columns}-{self.first}-{self.stop}"
        return hashlib.sha256(about.encode()).hexdigest()[:16]

    def slice(self, start: int, stop: int) -> DatasetStream:
        """Images start … stop − 1 alone."""
        return replace(self, first=self.first + start, stop=self.first + stop)

    def records(self) -> Iterator[ImageRecord]:
        """One by one, not yet decoded."""
        schema = self.dataset.features.arrow_schema
        used = {self.columns.image, self.columns.label, self.columns.id}
        others = [field.name for field in schema if is_plain(field.type) and field.name not in used]
        names = class_names_of(self.dataset.features.get(self.columns.label))
        ids = self.ids()
        for row in range(self.first, self.stop):
            with reading(self.name, "data set"):
                values = self.dataset[row]
            yield record_of_row(
                next(ids), f"{self.name}/{row}", values, self.columns, others=others, names=names
            )


def open_dataset(source: str, columns: Columns) -> list[DatasetStream]:
    """The parts of a data set, `hf:NAME or PATH`, one after another; `#PART` for one of them."""
    place, _, wanted = source.removeprefix(SCHEME).partition("#")
    parts = _parts(place)
    if wanted and wanted not in parts:
        raise InputError(f"{SCHEME}{place} has no part {wanted!r}{nearest(wanted, parts)}")
    chosen = {wanted: parts[wanted]} if wanted else parts
    return [_stream(dataset, place, part, columns) for part, dataset in chosen.items()]


def _stream(dataset: Any, place: str, part: str, columns: Columns) -> DatasetStream:
    from datasets import Image

    with reading(f"{SCHEME}{place}", "data set"):  # what lies where it should not would end the process
        dataset.data.validate(full=True)
    schema = dataset.features.arrow_schema
    detected = detect_columns(Path(f"{SCHEME}{place}"), schema, columns)
    if isinstance(dataset.features[detected.image], Image):
        dataset = dataset.cast_column(detected.image, Image(decode=False))
    return DatasetStream(dataset, place, part, detected, 0, len(dataset))


def _parts(place: str) -> Mapping[str, Any]:
    """Name → part of a data set, wherever it is."""
    try:
        import datasets
    except ImportError:
        raise InputError(
            f"{SCHEME}{place} is read by Hugging Face's datasets: pip install 'doubtless[hf]'."
        ) from None
    if not place:
        raise InputError(f"A data set is written {SCHEME}NAME or {SCHEME}PATH, got nothing behind the colon.")
    path = Path(place).expanduser()
    try:
        if path.exists():
            loaded = _from_disk(datasets, path)
        else:
            with cached_datasets():
                loaded = datasets.load_dataset(place)
    except Exception as error:  # datasets, huggingface_hub, pyarrow and requests each raise their own
        reason = " ".join(str(error).split())[:200].rstrip(".")
        here = "" if path.exists() else f"There is no folder {place}, and as a name on the Hub it failed: "
        raise InputError(
            f"{SCHEME}{place} cannot be opened. {here}{reason or type(error).__name__}."
        ) from error
    return loaded if isinstance(loaded, dict) else {str(loaded.split or "train"): loaded}


def _from_disk(datasets: Any, path: Path) -> Any:
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        return datasets.load_from_disk(str(path))
    if path.is_dir() and (files := sorted(path.glob("*.arrow"))):
        return datasets.concatenate_datasets([datasets.Dataset.from_file(str(file)) for file in files])
    if path.is_file():
        return datasets.Dataset.from_parquet(str(path))
    return datasets.load_dataset(str(path))
