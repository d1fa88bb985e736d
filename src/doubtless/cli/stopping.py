"""What the command line says when it ends early: one sentence about a wrong call, or how to go on after Ctrl-C."""

from __future__ import annotations

import shlex
import signal
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

import typer

SAME = "the same command goes on where it was"
AGAIN = "nothing has changed; start again with the same command"
GO_ON = {
    "bench": SAME,
    "create": SAME,
    "embed": SAME,
    "migrate": SAME,
    "add": "what was added stays; go on with the same command and --existing skip",
    "calibrate": AGAIN,
    "relabel": AGAIN,
    "remove": AGAIN,
}
"""Command → how to go on after it was stopped; others only look, and are started again."""


STOPPED = 130
"""The exit code after Ctrl-C."""


class Stopped(Exception):  # noqa: N818 (nothing is wrong)
    """Ctrl-C, with a sentence on how to go on."""


def how_to_go_on(arguments: Sequence[str]) -> str:
    """A sentence for whoever has pressed Ctrl-C.

    >>> how_to_go_on(["embed", "runs/first", "photos", "--out", "out"])
    'Stopped: the same command goes on where it was.'
    """
    words = [word for word in arguments if not word.startswith("-")]
    while words[:1] == ["index"]:  # a name of earlier versions
        words = words[1:]
    hint = GO_ON.get(words[0]) if words else None
    return f"Stopped: {hint}." if hint else "Stopped."


def noting_interrupts() -> list[int]:
    """A list that is empty until Ctrl-C is pressed, which goes on to interrupt as it does."""
    pressed: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        pressed.append(number)
        signal.default_int_handler(number, frame)

    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, note)
    return pressed


def system_sentence(error: OSError) -> str:
    """What the system refused, in one line.

    >>> system_sentence(PermissionError(13, "Permission denied", "photos"))
    'photos: Permission denied.'
    """
    what = "" if error.filename is None else f"{str(error.filename)[:200]}: "
    return f"{what}{error.strerror or error}."


def resumed(arguments: Sequence[str]) -> str:
    """The command that continues a training.

    >>> resumed(["train", "my config.yaml", "--out", "runs/first"])
    "doubtless train 'my config.yaml' --out runs/first --resume"
    """
    words = [word for word in arguments if word != "--no-resume"]
    return shlex.join(["doubtless", *words, *([] if "--resume" in words else ["--resume"])])


def refused(error: Exception) -> bool:
    """Says what is wrong with a call, where that is what was raised: by click, or by the copy of it in typer."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "ClickException" not in kinds:
        return False
    if "NoArgsIsHelpError" in kinds:
        error.show()  # type: ignore[attr-defined]
    else:
        tell(sentence_of(error))
    return True


def tell(sentence: str) -> None:
    """Says it on standard error, whatever somebody's words in it are made of."""
    typer.echo(f"doubtless: {sentence}".encode(errors="backslashreplace").decode(), err=True)


def sentence_of(error: Any) -> str:
    """What is wrong with a call, and where its help is, in one line.

    >>> sentence_of(typer.BadParameter("it must be at least 1"))
    'Invalid value: it must be at least 1. See doubtless --help.'
    """
    message = " ".join(error.format_message().split()).rstrip(".")
    if message.startswith("Missing argument"):
        message = message.replace("Missing argument", "It lacks the argument")
    command = getattr(error, "ctx", None)
    where = "doubtless" if command is None else command.command_path
    message = message[:1].upper() + message[1:]
    end = "" if message.endswith("?") else "."
    return f"{message}{end} See {where} --help."
