"""`doubtless search`: what an index finds for images, or for vectors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doubtless.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from doubtless.embedding import Embedding
    from doubtless.index.base import Index
    from doubtless.search.hits import Hits


def search(
    index: Annotated[str, typer.Argument(help="Folder, milvus:PATH or milvus:http://host:port.")],
    images: Annotated[list[Path] | None, typer.Argument(help="Images to search with.")] = None,
    embedding: Annotated[
        Path | None, typer.Option(help="Search with vectors instead: .npy, .npz or .safetensors.")
    ] = None,
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="Items a query.")] = 10,
    where: Annotated[
        list[str] | None,
        typer.Option(help="key=value an item must have: label=cat, or metadata; repeated keys: any of them."),
    ] = None,
    score: Annotated[
        str | None, typer.Option(help="direction or expected-distance; default: the index's own.")
    ] = None,
    model: Annotated[Path | None, typer.Option(help="Run whose model embeds, if it was moved.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Search an index with images (embedded by the model it was made with) or with vectors.

    Example: doubtless search gallery shoe.jpg --k 5 --where label=Sneaker

    Example: doubtless search gallery --embedding queries.npy --json
    """
    from doubtless.cli.tables import print_json
    from doubtless.gallery.model import needed_model
    from doubtless.index.base import open_index

    if bool(images) == (embedding is not None):
        raise InputError("Name images to search with, or --embedding FILE, and not both.")
    with open_index(index) as opened:
        features = None
        if embedding is not None:
            queries, names = _vectors(embedding)
        else:
            queries, features = needed_model(opened, model).embed_with_features(images or [])
            names = [str(image) for image in images or []]
        found = _found(opened, queries, names, k, conditions(where or []), score, features)
    if json:
        print_json({"index": str(index), "score": score or opened.settings.score, "queries": found})
        return
    for query in found:
        print_found(query)


def _found(
    opened: Index,
    queries: Embedding,
    names: list[str],
    k: int,
    where: dict[str, Any] | None,
    score: str | None,
    features: Tensor | None,
) -> list[dict[str, Any]]:
    """What is found for every query and, where the index is calibrated, what to think of it."""
    from doubtless.calibration.features import DEPTH
    from doubtless.gallery.answerer import Answerer

    answerer = Answerer(opened)
    calibrated = answerer.parts.calibrator is not None and score in (None, opened.settings.score)
    hits = opened.search(queries, max(k, DEPTH) if calibrated else k, where=where, score=score)  # type: ignore[arg-type]
    found = found_items(opened, hits.first(k), names)
    if not calibrated:
        return found
    answers = answerer.of_hits(hits, queries, k=k, features=features, filtered=bool(where))
    for query, answer in zip(found, answers, strict=True):
        told = answer.to_json()
        for hit, judged in zip(query["hits"], told.pop("hits"), strict=True):
            hit["probability"] = judged["probability"]
        query |= told
    return found


def found_items(opened: Index, hits: Hits, names: list[str]) -> list[dict[str, Any]]:
    """Hits as plain values, one entry a query: what `--json` prints and `print_found` shows."""
    found = []
    for query, name in enumerate(names):
        there = hits.found[query].nonzero()[:, 0].tolist()
        items = opened.items(hits.row[query][there])
        doubt = hits.query_uncertainty
        entries = [
            {
                "rank": rank + 1,
                "id": item.id,
                "label": item.label,
                "score": _number(hits.score[query, rank]),
                "expected_squared_distance": _number(hits.expected_squared_distance[query, rank]),
                "uncertainty": None if hits.uncertainty is None else _number(hits.uncertainty[query, rank]),
                "path": item.path,
                "metadata": item.metadata,
            }
            for rank, item in zip(there, items, strict=True)
        ]
        found.append(
            {"query": name, "uncertainty": None if doubt is None else _number(doubt[query]), "hits": entries}
        )
    return found


def print_found(query: dict[str, Any]) -> None:
    """One query's items as a table."""
    from rich.console import Console
    from rich.table import Table

    doubt = "" if query["uncertainty"] is None else f"   uncertainty {query['uncertainty']:.4g}"
    table = Table(title=f"{query['query']}{doubt}", title_justify="left", title_style="bold")
    columns = ["rank", "id", "label", "score", "expected distance"]
    judged = "decision" in query
    for name in [*columns, "probability"] if judged else columns:
        table.add_column(name, justify="left" if name in ("id", "label") else "right", overflow="fold")
    for hit in query["hits"]:
        distance = hit["expected_squared_distance"]
        row = [str(hit["rank"]), hit["id"], hit["label"] or "", f"{hit['score']:.4f}", f"{distance:.4g}"]
        table.add_row(*row, *([f"{hit['probability']:.3f}"] if judged else []))
    console = Console()
    console.print(table)
    if judged:
        console.print(f"{query['decision']}: {query['reason']}", highlight=False)
        for warning in query["warnings"]:
            console.print(f"warning: {warning}", highlight=False)


def conditions(where: list[str]) -> dict[str, Any] | None:
    """`key=value` words as the index's filter: a value that reads as a number or truth value is also one.

    >>> conditions(["label=cat", "label=dog", "year=2024"])
    {'label': ['cat', 'dog'], 'year': ['2024', 2024]}
    """
    found: dict[str, list[Any]] = {}
    for word in where:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise InputError(f"--where takes key=value, such as label=cat, got {word!r}.")
        found.setdefault(key, []).extend([value] if key == "label" else _readings(value))
    return found or None


def _readings(value: str) -> list[Any]:
    """The text, and what else it may stand for in the metadata."""
    readings: list[Any] = [value]
    if value in ("true", "false"):
        readings.append(value == "true")
    for kind in (int, float):
        try:
            number = kind(value)
        except ValueError:
            continue
        if math.isfinite(number):
            readings.append(number)
            break
    return readings


def _vectors(path: Path) -> tuple[Embedding, list[str]]:
    from doubtless.ingest.vectors import read_vectors

    found = read_vectors(path)
    names = found.ids or [f"{path.name} row {row}" for row in range(len(found.embedding))]
    return found.embedding, names


def _number(value: Any) -> float | None:
    """None where it is infinite: JSON has no word for that."""
    plain = float(value)
    return plain if math.isfinite(plain) else None
