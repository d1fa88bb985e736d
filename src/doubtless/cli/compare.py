"""`doubtless compare`: are two images the same, or can that not be told?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from doubtless.cli.records import AsCsv, print_record, refuse_both
from doubtless.errors import InputError
from doubtless.gallery.place import must_be_there


def compare(
    first: Annotated[Path, typer.Argument(help="An image.")],
    second: Annotated[Path, typer.Argument(help="Another image.")],
    model: Annotated[
        Path | None, typer.Option(help="Run whose model embeds; calibrated on its validation part.")
    ] = None,
    index: Annotated[
        str | None,
        typer.Option(
            help="Gallery whose model embeds and whose calibration counts.",
            callback=lambda place: place and must_be_there(place),
        ),
    ] = None,
    prior: Annotated[float, typer.Option(help="How likely two such images are the same beforehand.")] = 0.5,
    target_error: Annotated[
        float | None,
        typer.Option(help="Share of the pairs decided alike that may be wrong; as calibrated by default."),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    csv: AsCsv = False,
) -> None:
    """Say whether two images show the same, or that it cannot be told, with the probability of it.

    Example: doubtless compare left.jpg right.jpg --index gallery

    Example: doubtless compare left.jpg right.jpg --model runs/first --prior 0.01

    Example: doubtless compare left.jpg right.jpg --index gallery --target-error 0.1
    """
    from dataclasses import asdict

    from doubtless.gallery import Gallery
    from doubtless.gallery.calibration.fit import compare_by_run
    from doubtless.progress import bar

    refuse_both(json, csv)
    if model is None and index is None:
        raise InputError("Comparing needs --index INDEX or --model RUN: something must embed the images.")
    if index is None:
        assert model is not None
        result = compare_by_run(model, first, second, prior=prior, target_error=target_error, progress=bar)
    else:
        with Gallery.open(index, model=model) as gallery:
            if not gallery.status()["pairs_calibrated"]:
                raise InputError(
                    f"{index} has no calibration of pairs; run `doubtless calibrate {index}` (its items need "
                    "labels)."
                )
            result = gallery.compare(first, second, prior=prior, target_error=target_error)
    if json or csv:
        print_record({"first": str(first), "second": str(second), **asdict(result)}, csv=csv)
        return
    typer.echo(
        f"{result.decision}: probability {result.probability:.3f} of being the same (prior {prior:g}), cosine "
        f"{result.cosine:.4f}"
    )
    typer.echo(result.reason)
