"""A process that calibrates a gallery and is killed while it does so, at a statement of its database or a moment.

    python -m tests.reference.calibrating_process     # lines on standard input: see `Order`

For every line a child is forked, and when it has ended one line says how: {"signal": 9, "statements": 12}.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import torch

from doubtless.gallery import Gallery

FIRST, SECOND = 0.3, 0.1
"""Target errors: of the calibration that is there, and of the one that is killed."""


def calibrate(path: str, queries: str, labels: str, target_error: float) -> None:
    """With queries from a place, of which some show what the gallery does not have."""
    with Gallery.open(path, writable=True) as gallery:
        gallery.calibrate(target_error=target_error, queries=queries, labels=labels)


def child(order: dict[str, Any]) -> None:
    """Calibrates, and kills itself before the statement of this number."""
    torch.set_num_threads(1)
    ran = 0

    def count(statement: str) -> None:
        nonlocal ran
        if ran == order["statement"]:
            os.kill(os.getpid(), signal.SIGKILL)
        ran += 1

    with Gallery.open(order["path"], writable=True) as gallery:
        gallery.index._store._connection.set_trace_callback(count)  # type: ignore[attr-defined]
        if order["seconds"] is not None:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # ends the process, as a kill does
            signal.setitimer(signal.ITIMER_REAL, order["seconds"])
        gallery.calibrate(target_error=SECOND, queries=order["queries"], labels=order["labels"])
        gallery.index._store._connection.set_trace_callback(None)  # type: ignore[attr-defined]
    os.write(1, (json.dumps({"statements": ran}) + "\n").encode())


def main() -> None:
    for line in sys.stdin:
        started = os.fork()
        if not started:
            code = 1
            try:
                child(json.loads(line))
                code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(started, 0)
        ended = (
            {"signal": os.WTERMSIG(status)} if os.WIFSIGNALED(status) else {"exit": os.WEXITSTATUS(status)}
        )
        os.write(1, (json.dumps(ended) + "\n").encode())


if __name__ == "__main__":
    main()
