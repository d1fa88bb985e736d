"""What a gallery that was just made can promise, in words, or why nothing yet and what would help."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from doubtless.errors import InputError

if TYPE_CHECKING:
    from doubtless.gallery import Gallery

FEW = 5
"""Photos per label below which more of them are the first thing that would help."""


def calibrated(
    gallery: Gallery, place: str, *, queries: str | None = None
) -> tuple[dict[str, Any] | None, list[str]]:
    """Calibrates a gallery on labelled queries or its own items, as far as it can; the record, and sentences."""
    from doubtless.gallery.calibration.labelled import labelled_queries
    from doubtless.ingest.progress import BulkProgress
    from doubtless.progress import bar

    counts = gallery.label_counts()
    labelled, labels = sum(counts.values()), len(counts)
    if not labels:
        return None, [
            "Nothing can be promised yet: no item has a label. Put photos into a folder per label, or name a table "
            "of ids and labels with --labels; or say of some pairs whether they show the same thing: doubtless "
            f"calibrate {_quoted(place)} --unlabelled."
        ]
    if queries is None and labelled == labels:
        return None, [
            f"Nothing can be promised yet: with one photo for each of {labels:,} labels there is nothing to search "
            f"for. Give other photos of the same things, a folder per label: doubtless calibrate {_quoted(place)} "
            "--queries FOLDER."
        ]
    try:
        given = None
        if queries is not None:
            with BulkProgress() as meter:
                given = labelled_queries(queries, gallery, meter=meter)
        record = gallery.calibrate(queries=given, novelty="directions", progress=bar)
    except InputError as error:
        if queries is not None:
            raise
        return None, [f"Nothing can be promised yet. {error}"]
    return record, _promised(record, labelled, labels, own=queries is None)


def _promised(record: dict[str, Any], labelled: int, labels: int, *, own: bool) -> list[str]:
    told = [record["abstention"]["sentence"]]
    if "top1" in record:
        told.append(f"Its most probable label is right for {record['top1']:.1%} of the known queries.")
    if own and record["without_positive"]:
        told.append(
            f"{record['without_positive']:,} items are the only photo of their label and had no part in this; "
            "other photos of them help: calibrate --queries FOLDER."
        )
    if own and labelled < FEW * labels:
        told.append(f"There are {labelled / labels:.1f} photos per label; more of each is what helps most.")
    return told


def next_commands(place: str) -> list[str]:
    """What one does with a new gallery."""
    return [f"doubtless ask {_quoted(place)} photo.jpg", f"doubtless serve {_quoted(place)}"]


def _quoted(place: str) -> str:
    return shlex.quote(str(place))
