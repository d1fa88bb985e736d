"""The gallery that `doubtless demo --serve` shows: the run's test images, indexed, calibrated, with a fitted doubt.

The model has seen none of them, so a calibration on the gallery's own items holds for pictures like them. A few are
kept out to be asked about, and handwritten digits with them, which are nothing the gallery knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from doubtless.data import Source
    from doubtless.training import Run

STRANGERS = 4
TARGET_ERROR = 0.1
"""The demo trains for two minutes on 3,000 images; 5 % could be promised for few of its answers."""
IMAGES, INDEX = "gallery-images", "gallery"


@dataclass(frozen=True)
class DemoGallery:
    """An index ready to be served, and pictures to ask it about."""

    index: Path
    examples: list[tuple[str, str]]
    """Names and ``data:`` addresses."""
    promise: str
    """What the calibration promises, a sentence."""


def make_gallery(run: Run, *, stranger: str = "digits") -> DemoGallery:
    """Writes the test images beside the run, indexes them with its model and calibrates the index.

    What an earlier call has made is taken as it is.
    """
    import doubtless
    from doubtless.data import open_source
    from doubtless.retrieval.creating import create_index_of_images
    from doubtless.training import open_run_data

    data = open_run_data(run.config, split=run.split)
    test = [int(position) for position in data.test.index]
    asked = one_of_each(data.source, test)
    if not (run.path / INDEX).is_dir():
        _write_images(run.path / IMAGES, data.source, [row for row in test if row not in set(asked)])
        create_index_of_images(run.path / INDEX, doubtless.load(run.path), run.path / IMAGES)
    others = open_source(stranger)
    examples = [_example(data.source, row) for row in asked]
    examples += [_example(others, row) for row in range(min(STRANGERS, len(others)))]
    return DemoGallery(run.path / INDEX, examples, _calibrated(run.path / INDEX))


def _calibrated(path: Path) -> str:
    """Calibrates an index that is not; the sentence of its promise."""
    from doubtless.retrieval.answering import Answering
    from doubtless.retrieval.calibrating import Targets
    from doubtless.retrieval.index import Index
    from doubtless.retrieval.index_calibration import calibrate_index

    with Index.open(path, writable=True) as index:
        if Answering.load(index).risk is None:
            calibrate_index(index, Targets(target_error=TARGET_ERROR))
        control = Answering.load(index).risk
        assert control is not None
        return control.sentence()


def one_of_each(source: Source, rows: Sequence[int]) -> list[int]:
    """The first of the rows of every class."""
    found: dict[int, int] = {}
    for row in rows:
        found.setdefault(int(source.labels[row]), row)
    return [found[label] for label in sorted(found)]


def _write_images(folder: Path, source: Source, rows: Sequence[int]) -> None:
    """One folder a class, as anyone's photographs would lie there."""
    from PIL import Image

    for row in rows:
        file = folder / source.label_names[int(source.labels[row])] / f"{row:05d}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        pixels = source.image(row).permute(1, 2, 0).numpy()
        Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(file)


def _example(source: Source, row: int) -> tuple[str, str]:
    from doubtless.server.page.thumbnails import picture_address

    return source.label_names[int(source.labels[row])], picture_address(source.image(row))
