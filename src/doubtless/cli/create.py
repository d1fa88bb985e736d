"""`doubtless create` and `add`: images, vectors or a FAISS index into a gallery."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doubtless.cli.embed import BatchSize, IdColumn, ImageColumn, LabelColumn, Workers
from doubtless.cli.place import GalleryPlace, NewPlace
from doubtless.cli.records import AsCsv, print_record, refuse_both
from doubtless.errors import InputError

if TYPE_CHECKING:
    from doubtless.gallery.content import Imported, Reading
    from doubtless.ingest.create import Filled
    from doubtless.ingest.progress import BulkProgress

AsJson = Annotated[bool, typer.Option("--json", help="Print what was done as JSON.")]
Embeddings = Annotated[
    Path | None, typer.Option(help="Vectors: .npy, .npz, .safetensors, or a folder of `doubtless embed`.")
]
Labels = Annotated[
    Path | None,
    typer.Option(
        help="CSV or parquet with columns id (images: or file name) and label; others are metadata."
    ),
]
Variance = Annotated[Path | None, typer.Option(help="Variances beside .npy vectors: (n,), (n, 1) or (n, D).")]
Family = Annotated[
    str | None, typer.Option(help="With --variance: gaussian (default) or projected-gaussian.")
]
Faiss = Annotated[Path | None, typer.Option(help="A FAISS index that holds its vectors: Flat, IVF or HNSW.")]
Pictures = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[IMAGES]...",
        help="Folder, image, CSV list, tar shard, parquet file, hf:NAME or source; several.",
    ),
]
SHOWN = 5
"""Skipped files that are named; all are listed."""
Images = Annotated[list[str] | None, typer.Option("--images", help="The same, as an option; repeatable.")]


def create(
    place: NewPlace,
    pictures: Pictures = None,
    embeddings: Embeddings = None,
    labels: Labels = None,
    variance: Variance = None,
    family: Family = None,
    faiss: Faiss = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="What embeds: timm:NAME, a run, a saved folder, hub:USER/NAME, an .onnx file, a gallery or "
            "module:package.function; default for images: a small pretrained network."
        ),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="Weights of timm:NAME, a safetensors file; default: timm's hub.")
    ] = None,
    head: Annotated[
        str, typer.Option(help="Of a network that is not trained further: auto, raw or half-whitened.")
    ] = "auto",
    dim: Annotated[int | None, typer.Option(min=1, help="Of a half-whitened head.")] = None,
    images: Images = None,
    queries: Annotated[
        str | None,
        typer.Option(help="Other labelled photos, a folder per label, to calibrate on instead of its own."),
    ] = None,
    calibrate: Annotated[bool, typer.Option(help="Calibrate what can be calibrated.")] = True,
    kind: Annotated[str, typer.Option(help="auto (by size), flat, hnsw or ivf.")] = "auto",
    score: Annotated[
        str | None, typer.Option(help="What searches rank by: direction (default) or expected-distance.")
    ] = None,
    batch_size: BatchSize = None,
    workers: Workers = None,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Make a gallery of images, of vectors or of a FAISS index, calibrate it, and say what it can promise.

    Never over an existing one. Labels are the names of folders, or stand in a table (--labels).

    Example: doubtless create shop photos

    Example: doubtless create shop photos --queries photos-of-customers

    Example: doubtless create shop photos --model timm:convnext_atto --weights convnext_atto.safetensors

    Example: doubtless create gallery --embeddings vectors.npy --labels labels.csv

    Example: doubtless create gallery --faiss my.index --labels labels.csv
    """
    refuse_both(json, csv)
    images = [*(pictures or []), *(images or [])] or None
    _one_of(images=images, embeddings=embeddings, faiss=faiss)
    _refuse_strays(embeddings, variance, family)
    for image in images or []:
        if ":" not in image and {"/", "."} & set(image) and not Path(image).exists():
            raise InputError(f"There is no folder or file {image}.")
    if not images and (weights is not None or head != "auto" or dim is not None):
        raise InputError("--weights, --head and --dim go with images; vectors are what they are.")
    if queries is not None and not calibrate:
        raise InputError("--queries are what is calibrated on; leave --no-calibrate out.")
    from doubtless.cli.promise import calibrated, next_commands
    from doubtless.gallery import Gallery
    from doubtless.ingest.progress import BulkProgress

    vectors = None if images else _vectors(embeddings, faiss, labels, variance, family)
    with BulkProgress() as meter:
        reading = _reading(image_column, label_column, id_column, batch_size, workers, meter, labels)
        gallery = Gallery.create(
            place,
            images,
            embedding=vectors,
            model=model,
            weights=weights,
            head=head,  # type: ignore[arg-type]
            dim=dim,
            kind=kind,  # type: ignore[arg-type]
            score=score,  # type: ignore[arg-type]
            reading=reading,
        )
    with gallery:
        assert gallery.filled is not None
        notes = [] if vectors is None else vectors.notes
        if not json and not csv:
            report(gallery.filled, "created", notes)
        record, promise = calibrated(gallery, place, queries=queries) if calibrate else (None, [])
    if json or csv:
        print_record({**_done(gallery.filled, notes), "calibration": record, "promise": promise}, csv=csv)
        return
    for sentence in promise:
        typer.echo(f"• {sentence}")
    typer.echo(f"Next: {'   or   '.join(next_commands(place))}")


def add(
    place: GalleryPlace,
    pictures: Pictures = None,
    embeddings: Embeddings = None,
    labels: Labels = None,
    variance: Variance = None,
    family: Family = None,
    images: Images = None,
    model: Annotated[str | None, typer.Option(help="What embeds; default: the model of the gallery.")] = None,
    label: Annotated[str | None, typer.Option(help="What all the images that are added show.")] = None,
    existing: Annotated[
        str, typer.Option(help="What to do with ids that are there: refuse, skip or update.")
    ] = "refuse",
    batch_size: BatchSize = None,
    workers: Workers = None,
    image_column: ImageColumn = None,
    label_column: LabelColumn = None,
    id_column: IdColumn = None,
    json: AsJson = False,
    csv: AsCsv = False,
) -> None:
    """Add images or vectors; what is added is durable shard by shard. A killed one goes on with --existing skip.

    Example: doubtless add gallery more-photos

    Example: doubtless add gallery photo.jpg --label garlic

    Example: doubtless add gallery --embeddings more.npy --labels more.csv --existing update
    """
    refuse_both(json, csv)
    images = [*(pictures or []), *(images or [])] or None
    _one_of(images=images, embeddings=embeddings)
    _refuse_strays(embeddings, variance, family)
    from doubtless.gallery import Gallery
    from doubtless.ingest.progress import BulkProgress

    if label is not None and not images:
        raise InputError("--label says what images show; vectors have --labels.")
    vectors = None if images else _vectors(embeddings, None, labels, variance, family)
    with Gallery.open(place, model=model, writable=True) as gallery, BulkProgress() as meter:
        reading = _reading(image_column, label_column, id_column, batch_size, workers, meter, labels, label)
        filled = gallery.add(images, embedding=vectors, existing=existing, reading=reading)
    if json or csv:
        print_record(_done(filled, []), csv=csv)
    else:
        report(filled, "added", [])


def _vectors(
    embeddings: Path | None,
    faiss: Path | None,
    labels: Path | None,
    variance: Path | None,
    family: str | None,
) -> Imported:
    from doubtless.gallery.content import import_faiss, import_file

    if faiss is not None:
        return import_faiss(faiss, labels=labels)
    assert embeddings is not None
    return import_file(embeddings, labels=labels, variance=variance, family=family)


def _reading(
    image: str | None,
    label: str | None,
    id_: str | None,
    batch_size: int | None,
    workers: int | None,
    meter: BulkProgress,
    labels: Path | None,
    label_of_all: str | None = None,
) -> Reading:
    from doubtless.data.streams.records import Columns
    from doubtless.gallery.content import Reading

    columns = Columns(image=image, label=label, id=id_)
    return Reading(columns, batch_size, workers, meter, labels=labels, label=label_of_all)


def _one_of(**ways: object) -> None:
    if sum(bool(way) for way in ways.values()) != 1:
        *others, last = ["images" if name == "images" else f"--{name}" for name in ways]
        raise InputError(f"Name one of {', '.join(others)} and {last}: what goes into the gallery.")


def _refuse_strays(embeddings: Path | None, variance: Path | None, family: str | None) -> None:
    if embeddings is None and (variance is not None or family is not None):
        raise InputError("--variance and --family go with --embeddings vectors.npy.")


def _done(filled: Filled, notes: list[str]) -> dict[str, Any]:
    """What was put into an index, and where the list of bad images lies, as a record."""
    from doubtless.gallery.content import bad_list

    bad = None if (listed := bad_list(filled)) is None else str(listed)
    counts = {"items": filled.items, "skipped": filled.skipped, "bad": len(filled.bad)}
    return {"index": str(filled.path), **counts, "bad_list": bad, "notes": [*notes, *filled.notes]}


def report(filled: Filled, what: str, notes: list[str]) -> None:
    """Says the same in words."""
    done = _done(filled, notes)
    for note in done["notes"]:
        typer.echo(f"• {note}")
    skipped = f", {filled.skipped:,} were there already" if filled.skipped else ""
    typer.echo(f"{filled.items:,} items {what}{skipped}: {filled.path}")
    if done["bad_list"]:
        typer.echo(f"{len(filled.bad):,} files skipped, listed in {done['bad_list']}:")
        for image in filled.bad[:SHOWN]:
            typer.echo(f"  {image.id}: {image.reason}")
