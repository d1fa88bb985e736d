"""`doubtless embed`: images by the hundred thousand into a folder of embeddings, resumably."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from doubtless.api import Model

ImageColumn = Annotated[
    str | None, typer.Option("--image-column", help="Parquet: column of images; found by itself if usual.")
]
LabelColumn = Annotated[str | None, typer.Option("--label-column", help="Parquet: column of labels.")]
IdColumn = Annotated[str | None, typer.Option("--id-column", help="Parquet: column of ids.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Threads that decode; default by cores.")]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Images a batch; default 32 on a CPU, 256 on a GPU.")
]


def embed(
    run: Annotated[Path, typer.Argument(help="Finished run whose model embeds.")],
    sources: Annotated[
        list[str], typer.Argument(help="Folders, images, tar shards, parquet files, or a source's name.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the embeddings; continued if begun.")],
    part_size: Annotated[
        int, typer.Option(min=1, help="Images a part: what a killed run loses at most.")
    ] = 4096,
    batch_size: BatchSize = None,
    workers: Workers = None,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
) -> None:
    """Embed all images of some sources. Killed, the same command continues; bad images are listed in bad.csv.

    In folders, an image's label is the first folder below the one named. Tar shards hold key.jpg with key.cls,
    key.json or key.txt. Parquet files hold a column of image bytes.

    Example: doubtless embed runs/first photos --out photos-embedded

    Example: doubtless embed runs/first shards/*.tar --out shards-embedded --json
    """
    from dataclasses import asdict

    from doubtless.cli.tables import print_json
    from doubtless.retrieval.bulk import embed_files
    from doubtless.retrieval.bulk_progress import BulkProgress
    from doubtless.retrieval.embedded_parts import BAD
    from doubtless.retrieval.parquet_stream import Columns

    model = load_model(run)
    with BulkProgress() as meter:
        done = embed_files(
            model,
            sources,
            out,
            columns=Columns(image=image_column, label=label_column, id=id_column),
            part_size=part_size,
            batch_size=batch_size,
            workers=workers,
            meter=meter,
        )
    if json:
        print_json(asdict(done) | {"folder": str(done.folder)})
        return
    typer.echo(
        f"{done.items:,} images embedded in {done.parts:,} parts{_found(done.found_parts)}: {done.folder}"
    )
    if done.bad:
        typer.echo(f"{done.bad:,} bad images skipped: {done.folder / BAD}")


def load_model(run: Path) -> Model:
    """A run's model, on the device its configuration allows."""
    import doubtless
    from doubtless.training.run_evaluation import _best_device

    model = doubtless.load(run)
    return model.to(_best_device(model.method.config.training.accelerator))


def _found(parts: int) -> str:
    return f" ({parts:,} were there already)" if parts else ""
