"""A process that backs up, restores, compacts or builds in the background, and is killed while it does so.

    python -m tests.reference.upkeep_process     # lines on standard input, JSON: see `child`

For every line a child is forked, and when it has ended one line says how: {"signal": 14, "added": ["late 0", …]}.
The signal is that of an alarm that nobody handles: as with a kill, nothing of Python runs after it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import torch

from doubtless.embedding import Embedding
from doubtless.gallery.safekeeping import backup, restore
from doubtless.index import building, vector_cache
from doubtless.index import proposals as approximate
from doubtless.index.folder import FolderIndex

LARGE, PIECE = 1000, 50
"""Items from which a gallery is large here, and how many are linked at a time."""


def child(order: dict[str, Any]) -> None:
    """work: what is done to the index at `path`, with a copy at `to`; seconds: when it is killed, if at all."""
    torch.set_num_threads(1)
    if order["seconds"] is not None:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, order["seconds"])
    if order["work"] == "backup":
        backup(order["path"], order["to"])
    elif order["work"] == "restore":
        restore(order["to"], order["path"])
    else:
        with FolderIndex.open(order["path"], writable=True) as index:
            index.compact() if order["work"] == "compact" else add_while_it_is_built(index)


def add_while_it_is_built(index: FolderIndex) -> None:
    """Says of every item that it is stored."""
    number = len(index)  # one that was killed before has added some
    while index._builder._is_wanted():
        id = f"late {number}"
        index.add(Embedding.point(torch.ones(1, index.dim)), [id], labels=["late"])
        os.write(1, (json.dumps({"added": id}) + "\n").encode())
        number += 1
        time.sleep(0.002)


def main() -> None:
    vector_cache.TAIL, building.PATIENCE, building.PIECE = 500, 0.0, PIECE
    approximate.FLAT_BELOW, approximate.UNCOVERED = LARGE, 300
    for line in sys.stdin:
        began, started = time.monotonic(), os.fork()
        if not started:
            code = 1
            try:
                child(json.loads(line))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(started, 0)
        how = {"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else {"exit": os.WEXITSTATUS(status)}
        os.write(1, (json.dumps({**how, "seconds": time.monotonic() - began}) + "\n").encode())


if __name__ == "__main__":
    main()
