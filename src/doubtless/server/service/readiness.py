"""Can it answer? Its disk, its database and its model are tried, for whoever sends it questions or starts it anew.

One thread looks, at most once a second however many ask; one that does not come back is an answer as well.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from doubtless.gallery import Gallery
from doubtless.runs.data import image_size
from doubtless.runs.model import Model
from doubtless.server.service.errors import OverloadedError
from doubtless.server.service.queue import Batcher, Query, Reply

log = logging.getLogger("doubtless.server")
ROOM = 64 << 20
"""Bytes that must be free where something may be stored."""
FRESH = 1.0
"""Seconds for which what was seen is believed."""
PATIENCE = 3.0
"""Seconds after which what does not answer is said not to."""


class Readiness:
    """Whether a service can answer now."""

    def __init__(
        self, gallery: Gallery, batcher: Batcher[Query, Reply], model: Model | None, *, read_only: bool
    ) -> None:
        self._gallery, self._batcher, self._read_only = gallery, batcher, read_only
        self._black = None if model is None else _black(model)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="doubtless-ready")
        self._lock = threading.Lock()
        self._last: tuple[float, Future[str | None]] | None = None

    async def missing(self) -> str | None:
        """What keeps it from answering, as a sentence; None where nothing does."""
        looking = asyncio.wrap_future(self._looked())
        try:
            return await asyncio.wait_for(asyncio.shield(looking), PATIENCE)
        except TimeoutError:
            return f"The database, the model or the disk has not answered for {PATIENCE:g} seconds."

    def close(self) -> None:
        """Looks no more."""
        self._worker.shutdown(wait=False, cancel_futures=True)

    def _looked(self) -> Future[str | None]:
        with self._lock:
            if self._last is None or (self._last[1].done() and time.monotonic() - self._last[0] > FRESH):
                self._last = (time.monotonic(), self._worker.submit(self._look))
            return self._last[1]

    def _look(self) -> str | None:
        for what, look in (
            ("The disk cannot be looked at.", self._look_at_disk),
            ("The database cannot be read.", self._look_at_database),
            ("The model does not answer.", self._look_at_model),
        ):
            try:
                found = look()
            except OverloadedError as error:
                return str(error)
            except Exception as error:
                log.error("Not ready: %s", what, exc_info=error)
                return what
            if found is not None:
                return found
        return None

    def _look_at_disk(self) -> str | None:
        folder = self._gallery.folder
        if not folder.is_dir():
            return "The folder of the gallery is not there any more."
        if not self._read_only and shutil.disk_usage(folder).free < ROOM:
            return f"The disk is full: fewer than {ROOM >> 20} MB are left to store anything."
        return None

    def _look_at_database(self) -> None:
        assert len(self._gallery.index) >= 0  # asks the database, in a transaction

    def _look_at_model(self) -> str | None:
        """One black image goes where all others go, behind those that wait."""
        if not self._batcher.running:
            return "Requests are no longer answered."
        if self._black is not None:
            self._batcher.submit(Query(pixels=self._black)).result()
        return None


def _black(model: Model) -> Tensor:
    size = image_size(model.method)
    return model.preparation(torch.zeros(3, size, size, dtype=torch.uint8))
