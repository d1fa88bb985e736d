"""`doubtless recalibrate`: brings a calibration to the gallery as it is now, at the cost of what changed."""

from __future__ import annotations

from typing import Annotated

import typer

from doubtless.cli.place import GalleryPlace
from doubtless.cli.records import AsCsv, print_record, refuse_both


def recalibrate(
    index: GalleryPlace,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the draws.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    csv: AsCsv = False,
) -> None:
    """Calibrate an index again after items came and went: only what changed is searched.

    A server that only reads takes the new calibration over within a second; of one that writes ask it itself:
    POST /v1/recalibrate.

    Example: doubtless recalibrate gallery
    """
    from doubtless.cli.calibrate import print_calibration
    from doubtless.gallery import Gallery

    refuse_both(json, csv)
    with Gallery.open(index, writable=True) as gallery:
        record = gallery.recalibrate(seed=seed)
    if json or csv:
        print_record(record, csv=csv)
        return
    done = record["recalibrated"]
    typer.echo(
        f"{done['new']:,} items are new and {done['gone']:,} went; {done['queries_searched']:,} of "
        f"{record['queries']:,} queries were searched anew."
    )
    print_calibration(record, str(index))
