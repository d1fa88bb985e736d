"""Answers as a person reads them in a terminal: the picture, the verdict, the reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from torch import Tensor

    from doubtless.gallery import Answer

HALF = "▀"
"""Its upper half has the text's colour, its lower half the background's: two pixels per character."""
ROWS = 8
"""Lines of text that a picture is high."""


@dataclass(frozen=True)
class ShownAnswer:
    """A picture that was asked about, and what was said."""

    file: Path
    truth: str
    """What it shows; the gallery was not told."""
    pixels: Tensor  # uint8 (C, H, W)
    answer: Answer

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"query": str(self.file), "shows": self.truth, **self.answer.to_json()}


def half_blocks(
    pixels: Tensor, rows: int = ROWS
) -> list[list[tuple[tuple[int, int, int], tuple[int, int, int]]]]:
    """A picture (C, H, W) as lines of characters, each an upper and a lower colour; square where it is square.

    >>> import torch
    >>> lines = half_blocks(torch.full((1, 8, 8), 9, dtype=torch.uint8), rows=2)
    >>> len(lines), len(lines[0]), lines[0][0]
    (2, 4, ((9, 9, 9), (9, 9, 9)))
    """
    import torch
    from torch.nn.functional import interpolate

    colours = pixels.expand(3, -1, -1) if pixels.shape[0] == 1 else pixels[:3]
    width = max(1, round(2 * rows * pixels.shape[2] / pixels.shape[1]))
    small = interpolate(colours[None].float(), size=(2 * rows, width), mode="area")[0]
    dots = small.round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).tolist()  # (2 · rows, width, 3)
    return [
        [(tuple(above), tuple(below)) for above, below in zip(dots[row], dots[row + 1], strict=True)]
        for row in range(0, 2 * rows, 2)
    ]


def can_draw(console: Console) -> bool:
    """Whether a terminal shows colours enough, and characters, for a picture."""
    encoding = (console.encoding or "").lower()
    return console.is_terminal and console.color_system in ("256", "truecolor") and "utf" in encoding


def print_shown(shown: Sequence[ShownAnswer], console: Console) -> None:
    """Each with its picture where the terminal can draw one, else with the place of its file."""
    from rich.table import Table

    draws = can_draw(console)
    for number, one in enumerate(shown, start=1):
        words = _words(number, one, place=not draws)
        if not draws:
            console.print(words, end="\n\n", highlight=False)
            continue
        side_by_side = Table.grid(padding=(0, 2))
        side_by_side.add_row(_drawn(one.pixels), words)
        console.print(side_by_side, highlight=False)
        console.print()


def _drawn(pixels: Tensor) -> Any:
    from rich.style import Style
    from rich.text import Text

    text = Text()
    for number, line in enumerate(half_blocks(pixels)):
        text.append("\n" if number else "")
        for above, below in line:
            text.append(
                HALF, Style(color="rgb({},{},{})".format(*above), bgcolor="rgb({},{},{})".format(*below))
            )
    return text


VERDICTS = {"answer": "green", "abstain": "yellow", "not-in-gallery": "red"}


def verdict(answer: Answer) -> str:
    """The decision in a word or two: the label and how sure, or that there is none.

    >>> from doubtless.gallery import Answer
    >>> verdict(Answer("abstain", (), None, 0.5, {}, "Its nearest items contradict each other."))
    'no answer'
    """
    if answer.decision == "answer":
        sure = "" if answer.probability is None else f", {100 * answer.probability:.0f} %"
        return f"{answer.label}{sure}"
    return "no answer" if answer.decision == "abstain" else "not in the gallery"


def _words(number: int, one: ShownAnswer, *, place: bool) -> Any:
    from rich.text import Text

    from doubtless.cli.ask import covering

    text = Text()
    text.append(f"{number}. {one.truth}", "dim")
    text.append(f"   {one.file}\n" if place else "\n", "dim")
    text.append(f"{verdict(one.answer)}\n", f"bold {VERDICTS[one.answer.decision]}")
    text.append(one.answer.reason)
    if one.answer.covering_set and one.answer.decision != "not-in-gallery":
        text.append(f"\n{covering(one.answer.covering_set, 0.9)}", "dim")
    return text
