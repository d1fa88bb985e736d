"""`doubtless embed`: images by the hundred thousand into a folder of embeddings, resumably."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doubtless.cli.records import AsCsv, print_record, refuse_both

if TYPE_CHECKING:
    from doubtless.ingest.bulk import Embedded
    from doubtless.ingest.shards import ShardFormat

ImageColumn = Annotated[
    str | None, typer.Option("--image-column", help="Parquet: column of images; found by itself if usual.")
]
LabelColumn = Annotated[str | None, typer.Option("--label-column", help="Parquet: column of labels.")]
IdColumn = Annotated[str | None, typer.Option("--id-column", help="Parquet: column of ids.")]
Workers = Annotated[int | None, typer.Option(min=1, help="Threads that decode; default by cores.")]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Images per batch; default 32 on a CPU, 256 on a GPU.")
]
RayAddress = Annotated[
    str | None, typer.Option(help="Embed on a Ray cluster: local (this machine alone), auto, or host:port.")
]
RayCpus = Annotated[
    int | None, typer.Option(min=1, help="Ray: cores per worker; default: torch's threads here.")
]


def embed(
    run: Annotated[Path, typer.Argument(help="Finished run whose model embeds.")],
    sources: Annotated[
        list[str], typer.Argument(help="Folders, images, tar shards, parquet files, or a source's name.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the embeddings; continued if begun.")],
    shard_size: Annotated[
        int, typer.Option(min=1, help="Images per shard: what a killed run loses at most.")
    ] = 4096,
    batch_size: BatchSize = None,
    workers: Workers = None,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    shard_format: Annotated[
        str,
        typer.Option(
            "--format", help="What shards are: safetensors, or parquet, which other programs read too."
        ),
    ] = "safetensors",
    ray: RayAddress = None,
    ray_workers: Annotated[int | None, typer.Option(min=1, help="Ray: at most so many workers.")] = None,
    ray_cpus: RayCpus = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")] = False,
    csv: AsCsv = False,
) -> None:
    """Embed all images of some sources. Killed, the same command continues; bad images are listed in bad.csv.

    In folders, an image's label is the first folder below the one named. Tar shards hold key.jpg with key.cls,
    key.json or key.txt. Parquet files hold a column of image bytes.

    Example: doubtless embed runs/first photos --out photos-embedded

    Example: doubtless embed runs/first shards/*.tar --out shards-embedded --json

    Example: doubtless embed runs/first shards/*.tar --out shards-embedded --ray auto --format parquet
    """
    import sys
    from contextlib import redirect_stdout
    from typing import cast

    from doubtless.data.streams.records import Columns
    from doubtless.ingest.bulk import embed_files
    from doubtless.ingest.progress import BulkProgress
    from doubtless.runs.names import open_model

    refuse_both(json, csv)
    options: dict[str, Any] = {
        "columns": Columns(image=image_column, label=label_column, id=id_column),
        "shard_size": shard_size,
        "batch_size": batch_size,
    }
    model = open_model(run)
    kind = cast("ShardFormat", shard_format)
    with BulkProgress() as meter:
        if ray is None:
            done = embed_files(model, sources, out, format=kind, workers=workers, meter=meter, **options)
        else:
            from doubtless.ingest.ray import RayOptions, embed_with_ray

            there = RayOptions(ray, workers=ray_workers, cpus=ray_cpus, decoders=workers)
            with redirect_stdout(sys.stderr):  # where Ray says that a host was lost
                done = embed_with_ray(model, sources, out, options=there, format=kind, meter=meter, **options)
    _report(done, json=json, csv=csv)


def _report(done: Embedded, *, json: bool, csv: bool) -> None:
    from dataclasses import asdict

    from doubtless.ingest.shards import BAD

    if json or csv:
        print_record(asdict(done) | {"folder": str(done.folder)}, csv=csv)
        return
    typer.echo(
        f"{done.items:,} images embedded in {done.shards:,} shards{_already(done.found_shards)}: {done.folder}"
    )
    if done.bad:
        typer.echo(f"{done.bad:,} bad images skipped: {done.folder / BAD}")


def _already(shards: int) -> str:
    return f" ({shards:,} were there already)" if shards else ""
