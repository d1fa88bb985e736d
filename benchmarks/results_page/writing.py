"""Numbers and tables as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from benchmarks.results_page.measured import Value

BEST_OF_ALL = "★"


def number(value: float, digits: int = 3) -> str:
    """``.812``, ``1.000``, ``−.020``: as the other pages write numbers.

    >>> number(0.8124), number(-0.02), number(1.0)
    ('.812', '−.020', '1.000')
    """
    return re.sub(r"^(−?)0\.", r"\1.", f"{value:.{digits}f}".replace("-", "−"))


def cell(value: Value | None, *, bold: bool = False, star: bool = False, paper: str = "") -> str:
    """``**.812 ± .004** ★ [.81]``; nothing where nothing was measured.

    >>> cell(Value(0.8124, 0.004), bold=True, paper="[.81]")
    '**.812 ± .004** [.81]'
    """
    if value is None:
        return paper
    text = number(value.mean) + ("" if value.std is None else f" ± {number(value.std)}")
    text = f"**{text}**" if bold else text
    return " ".join(part for part in (text, BEST_OF_ALL if star else "", paper) if part)


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Names to the left, numbers to the right.

    >>> print(table(["", "R@1"], [["a", ".5"]]))
    |  | R@1 |
    | --- | ---: |
    | a | .5 |
    """
    lines = [heading, ["---", *["---:"] * (len(heading) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
