"""The reference of the command line: what a command says of itself, its arguments and options."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, get_args

from typer.main import get_command

from doubtless.cli import app

KINDS = {"int": "whole number", "float": "number", "Path": "file or folder", "str": "text"}


def commands() -> dict[str, Any]:
    """Every command that `doubtless --help` shows, by its words: `ask`, `sources check`."""
    return dict(_below(get_command(app), ()))


def _below(group: Any, words: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _below(command, (*words, name))
        else:
            yield " ".join((*words, name)), command


def about(name: str) -> str:
    """What the command says of itself, without its examples."""
    paragraphs = inspect.cleandoc(commands()[name].help or "").split("\n\n")
    return "\n\n".join(text for text in paragraphs if not text.startswith("Example"))


def options(name: str) -> str:
    """The command's sentences and a table of all that it takes."""
    lines = [about(name), "", "| takes | | what it is |", "|---|---|---|"]
    for parameter in commands()[name].params:
        if parameter.name == "help" or getattr(parameter, "hidden", False):
            continue
        meaning = " ".join((parameter.help or "").split()).replace("|", "\\|")
        lines.append(f"| {_names(parameter)} | {_kind(parameter)} | {meaning} |")
    return "\n".join(lines)


def _names(parameter: Any) -> str:
    if not parameter.opts[0].startswith("-"):
        return f"`{parameter.metavar or parameter.name.upper()}`"
    return ", ".join(f"`{one}`" for one in (*parameter.opts, *parameter.secondary_opts))


def _kind(parameter: Any) -> str:
    """What is to be written behind it, and what holds where it is not."""
    if getattr(parameter, "is_flag", False):
        return "" if not parameter.default else f"`{parameter.opts[0]}`"
    annotation = parameter.type_descriptor.annotation
    several = parameter.multiple or parameter.nargs == -1
    inner = (get_args(annotation) or (annotation,))[0]
    kind = KINDS.get(getattr(inner, "__name__", ""), "text") + (", several" if several else "")
    if parameter.required:
        return f"{kind}, needed"
    return kind if parameter.default in (None, (), []) else f"{kind}; `{_plain(parameter.default)}`"


def _plain(default: Any) -> str:
    return " ".join(map(str, default)) if isinstance(default, (list, tuple)) else str(default)
