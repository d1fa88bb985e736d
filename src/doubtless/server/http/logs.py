"""Logs of a server: plain lines, or one JSON object per line for whoever collects them."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Literal

Format = Literal["text", "json"]
FORMATS: tuple[Format, ...] = ("text", "json")
ACCESS = "doubtless.access"
SERVER = "doubtless.server"


class JsonLines(logging.Formatter):
    """A record as one line of JSON.

    >>> record = logging.LogRecord("doubtless.server", logging.ERROR, "x.py", 1, "%s failed", ("GET",), None)
    >>> told = json.loads(JsonLines().format(record))
    >>> told["level"], told["logger"], told["message"]
    ('error', 'doubtless.server', 'GET failed')
    """

    def format(self, record: logging.LogRecord) -> str:
        """What `record.told` has, an access line's figures, stands beside the words."""
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "told", {}),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False, default=str)


def install(form: Format, *, access: bool) -> None:
    """Sends what servers log to stderr in a form; call it when uvicorn has set up its own.

    access   a line per request as well: method, route, status, time, client
    """
    handler = logging.StreamHandler(sys.stderr)
    if form == "json":
        handler.setFormatter(JsonLines())
        for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
            logger = logging.getLogger(name)
            logger.handlers, logger.propagate = [], True
        logging.captureWarnings(True)
        logging.getLogger().handlers = [handler]
        logging.getLogger(SERVER).setLevel(logging.INFO)
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        logging.getLogger(ACCESS).handlers = [handler] if access else []
        logging.getLogger(ACCESS).propagate = False
    logging.getLogger(ACCESS).setLevel(logging.INFO if access else logging.WARNING)
