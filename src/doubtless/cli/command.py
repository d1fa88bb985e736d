"""The command line that is running, as a report records it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

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
