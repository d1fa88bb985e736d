"""`doubtless index`: make an index from images, vectors or a FAISS index; change it; see what is in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doubtless.cli.embed import BatchSize, IdColumn, ImageColumn, LabelColumn, Workers
from doubtless.cli.migrate import migrate
from doubtless.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from doubtless.ingest.create import Filled
    from doubtless.ingest.shards import EmbeddedShard

index = typer.Typer(
    help="Make, fill and look after an index.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

IndexPath = Annotated[
    str,
    typer.Argument(metavar="INDEX", help="Folder of the index, or milvus:PATH, milvus:http://host:port."),
]
Json = Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")]
Embeddings = Annotated[
    Path | None, typer.Option(help="Vectors: .npy, .npz, .safetensors, or a folder of `doubtless embed`.")
]
Labels = Annotated[Path | None, typer.Option(help="CSV with columns id and label; any others are metadata.")]
Variance = Annotated[Path | None, typer.Option(help="Variances beside .npy vectors: (n,), (n, 1) or (n, D).")]
Family = Annotated[
    str | None, typer.Option(help="With --variance: gaussian (default) or projected-gaussian.")
]
Faiss = Annotated[Path | None, typer.Option(help="A FAISS index that holds its vectors: Flat, IVF or HNSW.")]
Images = Annotated[
    list[str] | None, typer.Option(help="Folder, image, tar shard, parquet file or source; repeatable.")
]


@index.command("create")
def create(
    path: IndexPath,
    embeddings: Embeddings = None,
    labels: Labels = None,
    variance: Variance = None,
    family: Family = None,
    faiss: Faiss = None,
    model: Annotated[Path | None, typer.Option(help="Run whose model embeds, or has embedded.")] = None,
    images: Images = None,
    kind: Annotated[str, typer.Option(help="auto (by size), flat, hnsw or ivf.")] = "auto",
    score: Annotated[
        str | None, typer.Option(help="What searches rank by: direction (default) or expected-distance.")
    ] = None,
    batch_size: BatchSize = None,
    workers: Workers = None,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    json: Json = False,
) -> None:
    """Make a new index: of vectors, of a FAISS index, or of images with a model. Never over an existing one.

    Example: doubtless index create gallery --embeddings vectors.npy --labels labels.csv

    Example: doubtless index create gallery --faiss my.index --labels labels.csv

    Example: doubtless index create gallery --model runs/first --images photos
    """
    _one_of(embeddings=embeddings, faiss=faiss, images=images)
    _refuse_strays(embeddings, labels, variance, family, images)
    if images:
        if model is None:
            raise InputError("--images needs --model RUN, which embeds them.")
        from doubtless.gallery.model import load_model
        from doubtless.ingest.create import create_index_of_images
        from doubtless.ingest.progress import BulkProgress

        loaded = load_model(model)
        with BulkProgress() as meter:
            done = create_index_of_images(
                path,
                loaded,
                images,
                kind=kind,  # type: ignore[arg-type]
                score=score or "direction",  # type: ignore[arg-type]
                columns=_columns(image_column, label_column, id_column),
                batch_size=batch_size,
                workers=workers,
                meter=meter,
            )
        _report(done, "created", [], json)
        return
    done, notes = _create_of_vectors(path, embeddings, labels, variance, family, faiss, model, kind, score)
    _report(done, "created", notes, json)


@index.command("add")
def add(
    path: IndexPath,
    embeddings: Embeddings = None,
    labels: Labels = None,
    variance: Variance = None,
    family: Family = None,
    images: Images = None,
    model: Annotated[
        Path | None, typer.Option(help="Run whose model embeds; default: the one the index names.")
    ] = None,
    existing: Annotated[
        str, typer.Option(help="What to do with ids that are there: refuse, skip or update.")
    ] = "refuse",
    batch_size: BatchSize = None,
    workers: Workers = None,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    json: Json = False,
) -> None:
    """Add images or vectors; what is added is durable part by part. A killed one goes on with --existing skip.

    Example: doubtless index add gallery --images more-photos

    Example: doubtless index add gallery --embeddings more.npy --labels more.csv --existing update
    """
    _one_of(embeddings=embeddings, images=images)
    _refuse_strays(embeddings, labels, variance, family, images)
    from doubtless.gallery.model import needed_model
    from doubtless.index.base import open_index
    from doubtless.ingest.bulk import embedded
    from doubtless.ingest.create import fill
    from doubtless.ingest.progress import BulkProgress
    from doubtless.runs.model import model_fingerprint

    with open_index(path, writable=True) as opened, BulkProgress() as meter:
        parts: Iterable[EmbeddedShard]
        fingerprint = None
        if images:
            found = needed_model(opened, model)
            fingerprint = model_fingerprint(found.method)
            columns = _columns(image_column, label_column, id_column)
            parts = embedded(
                found, images, columns=columns, batch_size=batch_size, workers=workers, meter=meter
            )
        else:
            parts, fingerprint = _vectors(embeddings, labels, variance, family, model)
        done = fill(opened, parts, existing=existing, model=fingerprint)
    if done.bad:
        from doubtless.index.base import folder_beside
        from doubtless.ingest.shards import write_bad

        write_bad(folder_beside(path), done.bad)
    _report(done, "added", [], json)


@index.command("remove")
def remove(
    path: IndexPath,
    ids: Annotated[list[str] | None, typer.Argument(metavar="ID...", help="Items to take out.")] = None,
    file: Annotated[Path | None, typer.Option("--from", help="File with one id a line.")] = None,
    json: Json = False,
) -> None:
    """Take items out by their ids, all of them or, where one is not there, none.

    Example: doubtless index remove gallery shoes/0001.jpg shoes/0002.jpg

    Example: doubtless index remove gallery --from sold-out.txt
    """
    from doubtless.cli.tables import print_json
    from doubtless.index.base import open_index

    wanted = [*(ids or [])]
    if file is not None:
        if not file.is_file():
            raise InputError(f"There is no file {file}.")
        wanted += [line for line in file.read_text().splitlines() if line]
    if not wanted:
        raise InputError("Name the ids to remove, or a file that lists them with --from.")
    with open_index(path, writable=True) as opened:
        opened.remove(wanted)
        left = len(opened)
    if json:
        print_json({"index": str(path), "removed": len(wanted), "items": left})
        return
    typer.echo(f"{len(wanted):,} items removed, {left:,} are left: {path}")


@index.command("stats")
def stats(path: IndexPath, json: Json = False) -> None:
    """What an index holds, how it is searched, and what its calibration is worth.

    Example: doubtless index stats gallery --json
    """
    from doubtless.cli.calibrate import print_calibration
    from doubtless.cli.tables import print_json
    from doubtless.gallery.answerer import ABOUT
    from doubtless.index.base import open_index
    from doubtless.ingest.create import recorded_run

    with open_index(path) as opened:
        run, calibrated = recorded_run(opened), opened.attached(ABOUT)
        found = {**opened.stats(), "run": None if run is None else str(run)}
    about = None if calibrated is None else calibrated[1]
    if json:
        print_json({**found, "calibration": about})
        return
    _print_facts(found, str(path))
    if about:
        print_calibration(about, str(path))


@index.command("compact")
def compact(path: IndexPath, json: Json = False) -> None:
    """Give the space of removed and updated items back.

    Example: doubtless index compact gallery
    """
    from doubtless.cli.tables import print_json
    from doubtless.index.base import open_index

    with open_index(path, writable=True) as opened:
        before = opened.stats()["bytes"]
        opened.compact()
    with open_index(path) as opened:
        after, items = opened.stats()["bytes"], len(opened)
    if json:
        print_json({"index": path, "items": items, "bytes_before": before, "bytes": after})
        return
    sizes = "" if after is None else f", {before:,} bytes before, {after:,} now"
    typer.echo(f"{items:,} items{sizes}: {path}")


index.command("migrate")(migrate)


def _create_of_vectors(
    path: str,
    embeddings: Path | None,
    labels: Path | None,
    variance: Path | None,
    family: str | None,
    faiss: Path | None,
    model: Path | None,
    kind: str,
    score: str | None,
) -> tuple[Filled, list[str]]:
    from doubtless.ingest.create import create_index
    from doubtless.ingest.vectors import joined, read_labels

    notes: list[str] = []
    parts: Iterable[EmbeddedShard]
    if faiss is not None:
        from doubtless.ingest.vectors import read_faiss

        found = read_faiss(faiss)
        parts = joined(found.vectors, None if labels is None else read_labels(labels))
        score, notes, fingerprint = score or found.score, found.notes, _fingerprint(model)
    else:
        parts, fingerprint = _vectors(embeddings, labels, variance, family, model)
    done = create_index(
        path,
        parts,
        kind=kind,  # type: ignore[arg-type]
        score=score or "direction",  # type: ignore[arg-type]
        model=fingerprint,
        run=model or _recorded_run(embeddings),
    )
    return done, notes


def _vectors(
    embeddings: Path | None,
    labels: Path | None,
    variance: Path | None,
    family: str | None,
    model: Path | None,
) -> tuple[Iterable[EmbeddedShard], str | None]:
    """Parts of a file or folder, and the fingerprint of the model that made them where it is known."""
    from doubtless.ingest.shards import read_manifest
    from doubtless.ingest.vectors import imported

    assert embeddings is not None
    parts = imported(embeddings, labels=labels, variance=variance, family=family)
    fingerprint = _fingerprint(model)
    if embeddings.is_dir():
        own = str(read_manifest(embeddings)["model"])
        if fingerprint is not None and fingerprint != own:
            raise InputError(f"{embeddings} was embedded by another model than that of {model}.")
        return parts, own
    return parts, fingerprint


def _recorded_run(embeddings: Path | None) -> Path | None:
    from doubtless.ingest.shards import read_manifest

    if embeddings is None or not embeddings.is_dir():
        return None
    run = read_manifest(embeddings).get("run")
    return None if run is None else Path(run)


def _fingerprint(run: Path | None) -> str | None:
    if run is None:
        return None
    import doubtless
    from doubtless.runs.model import model_fingerprint

    return model_fingerprint(doubtless.load(run).method)


def _columns(image: str | None, label: str | None, id_: str | None) -> Any:
    from doubtless.ingest.parquet import Columns

    return Columns(image=image, label=label, id=id_)


def _one_of(**ways: object) -> None:
    if sum(bool(way) for way in ways.values()) != 1:
        names = [f"--{name}" for name in ways]
        raise InputError(f"Name one of {', '.join(names[:-1])} and {names[-1]}: what goes into the index.")


def _refuse_strays(
    embeddings: Path | None,
    labels: Path | None,
    variance: Path | None,
    family: str | None,
    images: list[str] | None,
) -> None:
    if images and labels:
        raise InputError(
            "--labels goes with vectors; images have their labels from folders, shards or columns."
        )
    if embeddings is None and (variance is not None or family is not None):
        raise InputError("--variance and --family go with --embeddings vectors.npy.")


def _report(done: Filled, what: str, notes: list[str], json: bool) -> None:
    from doubtless.cli.tables import print_json
    from doubtless.index.base import folder_beside
    from doubtless.ingest.shards import BAD

    bad = str(folder_beside(done.path) / BAD) if done.bad else None
    if json:
        counts = {"items": done.items, "skipped": done.skipped, "bad": len(done.bad)}
        print_json({"index": str(done.path), **counts, "bad_list": bad, "notes": notes})
        return
    for note in notes:
        typer.echo(f"• {note}")
    skipped = f", {done.skipped:,} were there already" if done.skipped else ""
    typer.echo(f"{done.items:,} items {what}{skipped}: {done.path}")
    if bad:
        typer.echo(f"{len(done.bad):,} bad images skipped: {bad}")


def _print_facts(facts: dict[str, Any], title: str) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold", show_header=False)
    for name, value in facts.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else value
        table.add_row(name, f"{shown:,}" if isinstance(shown, int) else str("" if shown is None else shown))
    Console().print(table)
