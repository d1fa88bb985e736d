"""`doubtless ask`: what a gallery finds for images or for vectors, and what to think of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from doubtless.cli.place import GalleryPlace
from doubtless.cli.records import refuse_both
from doubtless.errors import InputError

if TYPE_CHECKING:
    from rich.text import Text

    from doubtless.embedding import Embedding
    from doubtless.gallery import Answer


def ask(
    index: GalleryPlace,
    images: Annotated[list[Path] | None, typer.Argument(help="Images to ask about.")] = None,
    embedding: Annotated[
        Path | None, typer.Option(help="Ask about vectors instead: .npy, .npz, .safetensors or parquet.")
    ] = None,
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="Items per query.")] = 5,
    where: Annotated[
        list[str] | None,
        typer.Option(help="key=value an item must have: label=cat, or metadata; repeated keys: any of them."),
    ] = None,
    score: Annotated[
        str | None, typer.Option(help="direction or expected-distance; default: the index's own.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="Run whose model embeds, if it was moved.")] = None,
    together: Annotated[
        bool, typer.Option("--together", help="All images show one thing: one answer from all of them.")
    ] = False,
    confidence: Annotated[
        float, typer.Option(help="Of the covering set: labels that contain the true one so often.")
    ] = 0.9,
    json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print one line per query as CSV.")] = False,
) -> None:
    """Ask a gallery about images (embedded by the model it was made with) or about vectors.

    Example: doubtless ask shop photo.jpg

    Example: doubtless ask gallery shoe.jpg --k 5 --where label=Sneaker

    Example: doubtless ask gallery front.jpg side.jpg back.jpg --together

    Example: doubtless ask gallery --embedding queries.npy --json
    """
    from doubtless.cli.tables import csv_text, print_json
    from doubtless.gallery import Gallery

    refuse_both(json, csv)
    if bool(images) == (embedding is not None):
        raise InputError("Name images to ask about, or --embedding FILE, and not both.")
    queries: Any = list(images or [])  # pictures or an embedding: answers, not one answer
    names = [str(image) for image in images or []]
    with Gallery.open(index, model=model) as gallery:
        if embedding is not None:
            queries, names = _vectors(embedding)
        options: Any = {"where": conditions(where or []), "confidence": confidence, "score": score}
        if together:
            told, names = [gallery.ask(queries, k, together=True, **options)], [", ".join(names)]
        else:
            told = list(gallery.ask(queries, k, **options))
        ranked_by = score or gallery.index.settings.score
    if json:
        queries_told = [{"query": name, **answer.to_json()} for name, answer in zip(names, told, strict=True)]
        print_json({"index": str(index), "score": ranked_by, "queries": queries_told})
        return
    if csv:
        typer.echo(csv_text(CSV_COLUMNS, csv_rows(names, told)), nl=False)
        return
    print_answers(names, told, confidence=confidence)


def covering(names: Sequence[str], confidence: float) -> str:
    """What a covering set says.

    >>> covering(["leek", "garlic"], 0.9)
    'If the gallery has it, it is one of these, with 90 % confidence: leek, garlic.'
    >>> covering([], 0.9)
    'With 90 % confidence it is none of the gallery.'
    """
    if not names:
        return f"With {100 * confidence:.0f} % confidence it is none of the gallery."
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    shown = ", ".join(names[:SHOWN])
    return (
        f"If the gallery has it, it is one of these, with {100 * confidence:.0f} % confidence: {shown}{more}."
    )


SHOWN = 8
"""Of a covering set that are named; --json has all."""
CSV_COLUMNS = ("query", "decision", "label", "probability", "none", "doubt", "covering_set", "reason")


def csv_rows(names: Sequence[str], answers: Sequence[Answer]) -> list[list[Any]]:
    """One row per answer, for `csv_text` with `CSV_COLUMNS`."""
    rows = []
    for name, answer in zip(names, answers, strict=True):
        told = answer.to_json()
        told["covering_set"] = None if answer.covering_set is None else "; ".join(answer.covering_set)
        rows.append([name, *(told[column] for column in CSV_COLUMNS[1:])])
    return rows


def print_answers(names: Sequence[str], answers: Sequence[Answer], *, confidence: float = 0.9) -> None:
    """One after the other; what all of several are warned of is said once, before them."""
    from doubtless.terminal import Terminal

    alike = [
        warning
        for warning in (answers[0].warnings if len(answers) > 1 else ())
        if all(warning in answer.warnings for answer in answers)
    ]
    console = Terminal(highlight=False)
    for warning in alike:
        console.print(f"warning, of all {len(answers)}: {warning}")
    for name, answer in zip(names, answers, strict=True):
        print_answer(name, answer, confidence=confidence, said=alike)


def print_answer(name: str, answer: Answer, *, confidence: float = 0.9, said: Sequence[str] = ()) -> None:
    """The decision and why, labels that were considered, then one query's items as a table.

    said   warnings that need not be repeated
    """
    from doubtless.terminal import Terminal

    console = Terminal(highlight=False)
    console.print(name, style="bold", soft_wrap=True)
    console.print(f"{answer.decision}: {answer.reason}")
    if answer.labels:
        console.print(considered(answer))
    if answer.covering_set is not None:
        console.print(covering(answer.covering_set, confidence))
    for warning in answer.warnings:
        if warning not in said:
            console.print(f"warning: {warning}")
    console.print(_items(answer))


def considered(answer: Answer) -> str:
    """Labels with their probabilities, the most probable first, and that of none of these."""
    shown = [
        f"{one.label} {one.probability:.0%}" for one in answer.labels[:LABELS] if one.probability >= 0.005
    ]
    none = [] if answer.none is None else [f"none of these {answer.none:.0%}"]
    return f"Probabilities: {', '.join([*shown, *none])}."


LABELS = 4
"""Labels of an answer that are shown with their probability; --json has all."""


def _items(answer: Answer) -> Any:
    """What was found, an item per line; distances where these say more than the score."""
    from rich.table import Table

    spread = "" if answer.uncertainty is None else f"uncertainty of the query {answer.uncertainty:.4g}"
    table = Table(title=spread or None, title_justify="left")
    columns = ["item", "label", "score", *(["expected distance"] if spread else [])]
    for column in [*columns, *(["probability"] if answer.probability is not None else [])]:
        is_text = column in ("item", "label")  # which a narrow terminal cuts, and never a number
        table.add_column(column, justify="left" if is_text else "right", no_wrap=not is_text)
    for hit in answer.hits:
        row: list[Any] = [*map(_cut, (hit.id, hit.label or "")), f"{hit.score:.4f}"]
        if spread:
            row.append(f"{hit.expected_squared_distance:.4g}")
        if answer.probability is not None:
            row.append("" if hit.probability is None else f"{hit.probability:.3f}")
        table.add_row(*row)
    return table


def _cut(words: str) -> Text:
    from rich.text import Text

    return Text(words, no_wrap=True, overflow="ellipsis")


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
