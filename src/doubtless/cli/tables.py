"""Results as a table for the eye, or as JSON for the next program."""

from __future__ import annotations

import csv
import io
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.text import Text

    from doubtless.evaluation import Evaluation
    from doubtless.metrics import Measure
    from doubtless.report import Cell, ComparisonTable


CELL_WIDTH = len("0.123 ± 0.012")


def print_json(value: Any) -> None:
    """Prints a value as JSON."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def csv_text(heading: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Rows as CSV; nothing where a value is None.

    >>> csv_text(["id", "label"], [["a", None], ["b", "cat, or dog"]])
    'id,label\\na,\\nb,"cat, or dog"\\n'
    """
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(heading)
    lines.writerows(rows)
    return text.getvalue()


def evaluation_csv(evaluation: Evaluation) -> str:
    """Measures with their intervals, one per line."""
    rows = [[name, one.value, one.low, one.high] for name, one in evaluation.measures.items()]
    return csv_text(["measure", "value", "low", "high"], rows)


def print_evaluation(evaluation: Evaluation, title: str) -> None:
    """Measures with their intervals, then every uncertainty's, then what the notes say."""
    from rich.table import Table

    from doubtless.terminal import Terminal

    console = Terminal()
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("measure")
    table.add_column("value", justify="right")
    table.add_column("95 % interval", justify="right")
    for name, measure in evaluation.measures.items():
        table.add_row(name, f"{measure.value:.4f}", interval(measure))
    console.print(table)
    if evaluation.baselines:
        console.print(_baselines(evaluation))
    for note in evaluation.protocol.get("notes", []):
        console.print(f"• {note}", highlight=False)


def interval(measure: Measure) -> str:
    """A measure's interval, or nothing where it has none."""
    if measure.low is None or measure.high is None:
        return ""
    return f"{measure.low:.4f} – {measure.high:.4f}"


def _baselines(evaluation: Evaluation) -> Any:
    from rich.table import Table
    from rich.text import Text

    from doubtless.metrics.catalogue import metric_of

    names = list(dict.fromkeys(name for values in evaluation.baselines.values() for name in values))
    shown = [name for name in names if (metric := metric_of(name)) is not None and metric.brief]
    table = Table(title="learned, combined, and free uncertainties", title_justify="left", title_style="bold")
    table.add_column("uncertainty")
    for name in shown:
        table.add_column(name, justify="right")
    if any(name in evaluation.measures for name in shown):
        table.add_row("learned", *(_value(evaluation.measures.get(name)) for name in shown))
    for name, values in evaluation.doubts.items():
        table.add_row(Text(name, "bold"), *(_value(values.get(metric)) for metric in shown))
    for baseline, values in evaluation.baselines.items():
        table.add_row(baseline, *(_value(values.get(name)) for name in shown))
    return table


def _value(measure: Measure | None) -> str:
    return "" if measure is None else f"{measure.value:.4f}"


def comparison_csv(table: ComparisonTable) -> str:
    """One line per method and metric."""
    rows = [
        [method, metric, cell.mean, cell.std]
        for method, cells in table.cells.items()
        for metric, cell in cells.items()
    ]
    return csv_text(["method", "metric", "mean", "std"], rows)


def print_comparison(table: ComparisonTable, title: str) -> None:
    """Methods as rows, metrics as columns, as many per table as fit the terminal."""
    from rich.table import Table

    from doubtless.terminal import Terminal

    console = Terminal()
    measured = [
        name for name in table.metrics if any(_cell(cells.get(name)) for cells in table.cells.values())
    ]
    heading = max(len(name) for name in table.cells) + 4
    for number, metrics in enumerate(_packed(measured, console.width - heading)):
        shown = Table(title=title if number == 0 else None, title_justify="left", title_style="bold")
        shown.add_column("method", no_wrap=True)
        for metric in metrics:
            shown.add_column(metric, justify="right", no_wrap=True)
        for method, cells in table.cells.items():
            shown.add_row(method, *(_cell(cells.get(metric)) for metric in metrics))
        console.print(shown)
    for note in table.notes:
        console.print(f"• {note}", highlight=False)


def _packed(names: list[str], width: int) -> list[list[str]]:
    """As many columns per table as fit into the width."""
    tables: list[list[str]] = [[]]
    used = 0
    for name in names:
        needed = max(len(name), CELL_WIDTH) + 3
        if tables[-1] and used + needed > width:
            tables.append([])
            used = 0
        tables[-1].append(name)
        used += needed
    return tables


def _cell(cell: Cell | None) -> Text | str:
    """Mean ± spread over seeds, the best in bold, a paper's number below (≠: not comparable)."""
    from rich.text import Text

    if cell is None or cell.mean != cell.mean:
        return ""
    text = f"{cell.mean:.3f}" + (f" ± {cell.std:.3f}" if cell.std is not None else "")
    if cell.published is not None:
        text += f"\n{'≠' if cell.not_comparable else 'paper'} {cell.published:.2f}"
    return Text(text, "bold" if cell.best else "")


FOLDERS = {"--out", "-o", "--work", "--data"}
"""Options whose values are folders of this machine: they mean nothing to whoever makes the page again."""


def recorded_command(arguments: Sequence[str] | None = None) -> str:
    """What one types to do the same again; None: what was typed to start this process.

    >>> recorded_command(["train", "my config.yaml", "--out", "/home/me/run", "--set", "seed=1"])
    "doubtless train 'my config.yaml' --set seed=1"
    """
    kept: list[str] = []
    for word in sys.argv[1:] if arguments is None else arguments:
        if kept and kept[-1] in FOLDERS:
            kept.pop()
        else:
            kept.append(word)
    return shlex.join(["doubtless", *kept])
