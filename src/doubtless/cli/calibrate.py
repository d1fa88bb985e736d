"""`doubtless calibrate`: gives an index match probabilities, abstention, covering sets and a test of presence."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doubtless.cli.place import GalleryPlace
from doubtless.cli.records import AsCsv, print_record, refuse_both
from doubtless.errors import InputError

if TYPE_CHECKING:
    from doubtless.gallery import Gallery
    from doubtless.gallery.calibration.labelled import LabelledQueries

QueryPlace = Annotated[
    str | None,
    typer.Option(
        help="Labelled queries from outside instead of the index's items: a folder with a folder per label, a CSV "
        "(path, label), a folder of `doubtless embed`, .npz or .safetensors; also tar shards, parquet, a source; "
        "or feedback: what people said of answers."
    ),
]
QueryLabels = Annotated[
    Path | None, typer.Option(help="CSV of the queries' ids and labels, where they do not say them.")
]
QueryItems = Annotated[
    Path | None,
    typer.Option(help="CSV, id,item: the item that each query belongs to, in place of labels."),
]
QueryModelName = Annotated[
    str | None,
    typer.Option(
        help="What embeds queries, or has embedded these vectors, where that is another encoder than the items'; "
        "it is kept, and pictures are then asked by it."
    ),
]
Pairs = Annotated[
    Path | None,
    typer.Option(help="CSV of pairs, query,item,same: ids of the index, and 1 or 0. Match probability only."),
]
Unlabelled = Annotated[
    bool,
    typer.Option(
        "--unlabelled",
        help="Without any label: a mixture of scores says whether a hit is the same thing, and `doubtless review` "
        "asks for the pairs of items from which a promise is made.",
    ),
]
TargetError = Annotated[float, typer.Option(help="Largest share of answers that may be wrong.")]
Confidence = Annotated[float, typer.Option(help="Confidence of that promise.")]
FalseAlarm = Annotated[
    float,
    typer.Option(
        help="Share of queries that are there but may be called not in the gallery; only where answers are made "
        "item by item, as with a single label."
    ),
]
Unknown = Annotated[
    float,
    typer.Option(
        help="Share of queries whose label is not in the gallery, which the promise counts; 0: all are there."
    ),
]
NoveltyName = Annotated[
    str,
    typer.Option(
        help="What an image must be like not to be new: features of the items' images (features), their "
        "embeddings (directions), these and the space they fill (leverage), or features where model and "
        "images can be found (auto)."
    ),
]


def calibrate(
    index: GalleryPlace,
    queries: QueryPlace = None,
    labels: QueryLabels = None,
    items: QueryItems = None,
    query_model: QueryModelName = None,
    pairs: Pairs = None,
    unlabelled: Unlabelled = False,
    target_error: TargetError = 0.05,
    confidence: Confidence = 0.95,
    false_alarm: FalseAlarm = 0.05,
    unknown: Unknown = 0.1,
    model: Annotated[str | None, typer.Option(help="Run whose model embeds, if it was moved.")] = None,
    novelty: NoveltyName = "auto",
    most: Annotated[int, typer.Option(min=20, help="Queries used at most, drawn at random.")] = 20_000,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Of the draws and of the split.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
    csv: AsCsv = False,
) -> None:
    """Calibrate an index on its own labelled items, each searching all others, and keep the result in it.

    With one photo per label there is nothing to search for: give other photos of the same things with --queries.

    Example: doubtless calibrate gallery --target-error 0.02

    Example: doubtless calibrate shop --queries photos-of-customers

    Example: doubtless calibrate pictures --queries captions.npy --items pairs.csv --query-model open_clip-text

    Example: doubtless calibrate gallery --pairs checked.csv

    Example: doubtless calibrate gallery --unlabelled
    """
    from doubtless.gallery import Gallery
    from doubtless.gallery.calibration.fit import Targets
    from doubtless.progress import bar

    refuse_both(json, csv)
    if queries is not None and pairs is not None:
        raise InputError("Calibration takes --queries or --pairs, and not both.")
    if queries is not None and novelty == "features":
        raise InputError(
            "With --queries what is new is told by embeddings: --novelty takes auto, directions or leverage."
        )
    targets = Targets(
        target_error=target_error, confidence=confidence, false_alarm=false_alarm, unknown=unknown
    )
    with Gallery.open(index, model=model, writable=True, query_model=query_model) as gallery:
        record = gallery.calibrate(
            targets,
            queries=queries if items is not None or unlabelled else _read_queries(queries, labels, gallery),
            labels=labels if items is not None or unlabelled else None,
            items=items,
            pairs=None if pairs is None else read_pairs(pairs),
            unlabelled=unlabelled,
            novelty=novelty,  # type: ignore[arg-type]
            most=most,
            seed=seed,
            progress=bar,
        )
        promised = [str(gallery.status()["promise"]["sentence"])] if unlabelled else []
    if json or csv:
        print_record(record, csv=csv)
    else:
        print_calibration(record, str(index), *promised)


def read_pairs(path: Path) -> list[tuple[str, str, bool]]:
    """Ids of both items and whether they are the same, from a CSV with the columns query, item, same."""
    import csv

    try:
        with path.open(newline="") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read as CSV: {error}.") from error
    if not lines or not {"query", "item", "same"} <= set(lines[0]):
        raise InputError(f"{path} must have the columns query, item and same, and at least one pair.")
    answers = {"1": True, "true": True, "0": False, "false": False}
    for number, line in enumerate(lines, start=2):
        if (line["same"] or "").strip().lower() not in answers:
            raise InputError(f"{path}, line {number}: same must be 1 or 0, got {line['same']!r}.")
    return [(line["query"], line["item"], answers[line["same"].strip().lower()]) for line in lines]


def _read_queries(queries: str | None, labels: Path | None, gallery: Gallery) -> LabelledQueries | None:
    from doubtless.gallery.calibration.labelled import labelled_queries
    from doubtless.ingest.progress import BulkProgress

    if queries is None:
        if labels is not None:
            raise InputError("--labels says what queries show; name these with --queries.")
        return None
    with BulkProgress() as meter:
        return labelled_queries(queries, gallery, labels=labels, meter=meter)


def print_calibration(record: dict[str, Any], title: str, *more: str) -> None:
    """What is promised, and how it fared on queries, then on classes, that had no part in it."""
    from rich.table import Table

    from doubtless.terminal import Terminal

    console = Terminal()
    kinds = [kind for kind in ("exchangeable", "class_disjoint") if record.get(kind)]
    if not kinds:
        console.print(f"calibration of {title}", style="bold", highlight=False)
    table = Table(title=f"calibration of {title}", title_justify="left", title_style="bold")
    table.add_column("measure")
    for kind in kinds:
        table.add_column(kind.replace("_", "-"), justify="right")
    for name in dict.fromkeys(name for kind in kinds for name in record[kind]):
        table.add_row(name, *(_figure(record[kind].get(name)) for kind in kinds))
    if kinds:
        console.print(table)
    for sentence in (*sentences(record), *more):
        console.print(f"• {sentence}", highlight=False)


def sentences(record: dict[str, Any]) -> list[str]:
    """What a calibration promises, and on what that rests, in words."""
    if "assumes" in record:
        return [
            f"{record['assumes']} Of {record['queries']:,} items {record['expected_same']:.1%} are expected to "
            "have such a first hit."
        ]
    if "abstention" not in record:
        return [f"Match probability from {record['pairs']} pairs; abstention needs labelled queries."]
    if "top1" in record:
        return _of_labels(record)
    presence = record["presence"]
    found = [
        record["abstention"]["sentence"],
        f"The first hits contain a match with probability up to {record['covering_reach']:.1%}: covering sets can "
        "promise so much.",
    ]
    if "detected" in presence:
        found.append(
            f"With {presence['false_alarm']:.1%} false alarms, {presence['detected']:.1%} of queries whose class "
            "was taken out are called not in the gallery."
        )
    found += [*_of_novelty(record), *_of_queries(record)]
    return [
        *found,
        "Exchangeable: for queries like these. Class-disjoint: for classes that had no part in it.",
    ]


def _of_labels(record: dict[str, Any]) -> list[str]:
    """The same where labels were calibrated: all figures are of labels that had no part in them."""
    found = [
        record["abstention"]["sentence"],
        f"The most probable label is right for {record['top1']:.1%} of the queries, the first hit's for "
        f"{record['first_hit_right']:.1%}; queries whose label was taken out are told apart with an AUROC of "
        f"{record['none_auroc']:.2f}.",
        *_of_novelty(record),
        *_of_queries(record),
    ]
    return [*found, "Figures are of labels that had no part in what was fitted."]


def _of_queries(record: dict[str, Any]) -> list[str]:
    """What became of queries that were given, or how many items have no other of their label."""
    if "given" in record:
        from doubtless.gallery.calibration.labelled import sentences as told

        return told(record["given"])
    if not record["without_positive"]:
        return []
    return [f"{record['without_positive']} queries have no true match in the index and were left out."]


def _of_novelty(record: dict[str, Any]) -> list[str]:
    if "novelty_of" not in record or "given" in record:
        return []
    if record["novelty_of"] == "features":
        return ["What is new is told by features of the items' images."]
    return ["What is new is told by the embeddings; features of the items' images would tell it better."]


def _figure(value: float | None) -> str:
    return "" if value is None else str(value) if isinstance(value, int) else f"{value:.4f}"
