"""`doubtless compare`: are two images the same? With a probability."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from doubtless.errors import InputError

if TYPE_CHECKING:
    from doubtless.calibration.pairs import PairCalibrator
    from doubtless.embedding import Embedding


def compare(
    first: Annotated[Path, typer.Argument(help="An image.")],
    second: Annotated[Path, typer.Argument(help="Another image.")],
    model: Annotated[
        Path | None, typer.Option(help="Run whose model embeds; calibrated on its validation part.")
    ] = None,
    index: Annotated[
        str | None, typer.Option(help="Index whose model embeds and whose calibration counts.")
    ] = None,
    prior: Annotated[float, typer.Option(help="How likely two such images are the same beforehand.")] = 0.5,
    json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Say whether two images show the same, with the probability of it.

    Example: doubtless compare left.jpg right.jpg --index gallery

    Example: doubtless compare left.jpg right.jpg --model runs/first --prior 0.01
    """
    from dataclasses import asdict

    from doubtless.calibration.pairs import compare as compare_items
    from doubtless.cli.tables import print_json

    if model is None and index is None:
        raise InputError("compare needs --index INDEX or --model RUN: something must embed the images.")
    embedding, calibrated = (
        _from_index(index, model, [first, second]) if index else _from_run(model, [first, second])
    )
    found = compare_items(embedding[:1], embedding[1:], calibrated, prior=prior)
    if json:
        print_json({"first": str(first), "second": str(second), **asdict(found)})
        return
    word = "same" if found.same else "not the same"
    typer.echo(
        f"{word}: probability {found.probability:.3f} of being the same (prior {prior:g}), cosine "
        f"{found.cosine:.4f}"
    )


def _from_index(index: str, run: Path | None, images: list[Path]) -> tuple[Embedding, PairCalibrator]:
    from doubtless.calibration.pairs import ATTACHMENT, PairCalibrator
    from doubtless.gallery.model import needed_model
    from doubtless.index.base import open_index

    with open_index(index) as opened:
        part = opened.attached(ATTACHMENT)
        if part is None:
            raise InputError(
                f"{index} has no calibration of pairs; run `doubtless calibrate {index}` (its items need labels)."
            )
        embedder = needed_model(opened, run)
    return embedder.embed(images).to("cpu"), PairCalibrator.from_state(*part)


def _from_run(run: Path | None, images: list[Path]) -> tuple[Embedding, PairCalibrator]:
    """The run's model, and pairs of its validation part."""
    from doubtless.calibration.pairs import PairCalibrator
    from doubtless.progress import bar
    from doubtless.runs import Run
    from doubtless.runs.data import embed_images, open_run_data
    from doubtless.runs.model import Model

    assert run is not None
    opened = Run.open(run)
    method = opened.load_method()
    embedding = Model(method).embed(images)
    part = open_run_data(opened.config, split=opened.split, progress=bar).validation
    if not len(part):
        raise InputError(
            f"{run} has no validation part to calibrate pairs on; use --index with a calibrated index."
        )
    known = embed_images(method, part, progress=bar)
    return embedding, PairCalibrator.fit(known, part.labels)
