"""`doubtless ask`: what a gallery finds for images or for vectors, and what to think of it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doubtless.errors import InputError

if TYPE_CHECKING:
    from doubtless.embedding import Embedding
    from doubtless.gallery import Answer


def ask(
    index: Annotated[str, typer.Argument(help="Folder, milvus:PATH or milvus:http://host:port.")],
    images: Annotated[list[Path] | None, typer.Argument(help="Images to ask about.")] = None,
    embedding: Annotated[
        Path | None, typer.Option(help="Ask about vectors instead: .npy, .npz or .safetensors.")
    ] = None,
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="Items per query.")] = 10,
    where: Annotated[
        list[str] | None,
        typer.Option(help="key=value an item must have: label=cat, or metadata; repeated keys: any of them."),
    ] = None,
    score: Annotated[
        str | None, typer.Option(help="direction or expected-distance; default: the index's own.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Run whose model embeds, if it was moved.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Ask a gallery about images (embedded by the model it was made with) or about vectors.

    Example: doubtless ask gallery shoe.jpg --k 5 --where label=Sneaker

    Example: doubtless ask gallery --embedding queries.npy --json
    """
    from doubtless.cli.tables import print_json
    from doubtless.gallery import Gallery

    if bool(images) == (embedding is not None):
        raise InputError("Name images to ask about, or --embedding FILE, and not both.")
    with Gallery.open(index, model=model) as gallery:
        if embedding is not None:
            queries, names = _vectors(embedding)
            answers = gallery.ask(queries, k, where=conditions(where or []), score=score)  # type: ignore[arg-type]
        else:
            names = [str(image) for image in images or []]
            answers = gallery.ask(images or [], k, where=conditions(where or []), score=score)  # type: ignore[arg-type]
        told = list(answers)
        ranked_by = score or gallery.index.settings.score
    if json:
        queries_told = [{"query": name, **answer.to_json()} for name, answer in zip(names, told, strict=True)]
        print_json({"index": str(index), "score": ranked_by, "queries": queries_told})
        return
    for name, answer in zip(names, told, strict=True):
        print_answer(name, answer)


def print_answer(name: str, answer: Answer) -> None:
    """One query's items as a table, then the decision and why."""
    from rich.console import Console
    from rich.table import Table

    spread = "" if answer.uncertainty is None else f"   uncertainty {answer.uncertainty:.4g}"
    table = Table(title=f"{name}{spread}", title_justify="left", title_style="bold")
    judged = answer.probability is not None
    columns = ["rank", "id", "label", "score", "expected distance", *(["probability"] if judged else [])]
    for column in columns:
        table.add_column(column, justify="left" if column in ("id", "label") else "right", overflow="fold")
    for rank, hit in enumerate(answer.hits, start=1):
        row = [str(rank), hit.id, hit.label or "", f"{hit.score:.4f}", f"{hit.expected_squared_distance:.4g}"]
        chance = "" if hit.probability is None else f"{hit.probability:.3f}"
        table.add_row(*row, *([chance] if judged else []))
    console = Console()
    console.print(table)
    console.print(f"{answer.decision}: {answer.reason}", highlight=False)
    for warning in answer.warnings:
        console.print(f"warning: {warning}", highlight=False)


def conditions(where: list[str]) -> dict[str, Any] | None:
    """`key=value` words as the index's filter: a value that reads as a number or truth value is also one.

    >>> conditions(["label=cat", "label=dog", "year=2024"])
    {'label': ['cat', 'dog'], 'year': ['2024', 2024]}
    """
    values: dict[str, list[Any]] = {}
    for word in where:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise InputError(f"--where takes key=value, such as label=cat, got {word!r}.")
        values.setdefault(key, []).extend([value] if key == "label" else _readings(value))
    return values or None


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

    vectors = read_vectors(path)
    names = vectors.ids or [f"{path.name} row {row}" for row in range(len(vectors.embedding))]
    return vectors.embedding, names
