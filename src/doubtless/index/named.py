"""What lies under a name: an index that is opened, created, dropped, constructed and closed, whatever it holds."""

from __future__ import annotations

import contextlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from torch import Tensor

from doubtless.errors import InputError, StoreError
from doubtless.index.construction import UNFINISHED, Construction, Standing, exists_already
from doubtless.index.settings import IndexScore, Kind, Settings, settings_of


class NamedIndex(ABC):
    """An index by its name alone; `Index` says what it holds. A backend is a subclass of that."""

    path: Path | str
    """Its folder, or its address."""
    _is_open: bool = True

    # -- where it lies -------------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def open(cls, name: str | Path, *, writable: bool = False) -> Self:
        """Opens an index to search it or, with `writable`, to change it as well."""

    @classmethod
    @abstractmethod
    def create_as(cls, name: str | Path, settings: Settings) -> Self:
        """A new, empty index, open for writing; where there is anything it is left alone and refused."""

    @classmethod
    @abstractmethod
    def drop(cls, name: str | Path) -> None:
        """Deletes an index that was never finished; one that was is refused."""

    @classmethod
    def create(
        cls,
        name: str | Path,
        *,
        family: str,
        dim: int,
        variances: int | None = None,
        kind: Kind = "auto",
        model: str | None = None,
        score: IndexScore = "direction",
    ) -> Self:
        """A new, empty index, open for writing; where there is anything it is left alone and refused.

        variances: how many an item has, 1 or dim (the default) of Gaussians. kind: "flat" looks at every vector,
        "hnsw" and "ivf" are approximate, "auto" goes by size. model: a fingerprint of what makes the embeddings;
        those of another are refused. score: what a search ranks by unless it says otherwise.
        """
        settings = settings_of(
            family=family, dim=dim, variances=variances, kind=kind, model=model, score=score
        )
        return cls.create_as(name, settings)

    @classmethod
    def look_at(cls, name: str | Path) -> Standing:
        """What there is under a name."""
        try:
            index = cls.open(name)
        except (InputError, StoreError):
            return Standing(False, None)
        with index:
            return Standing(True, index.unfinished)

    @classmethod
    def exists(cls, name: str | Path) -> bool:
        """Whether there is anything under a name but what a stopped construction has left."""
        return cls.look_at(name) == Standing(True, None)

    @classmethod
    def place(cls, name: str | Path) -> str:
        """The same for all names of one index."""
        return str(name)

    @classmethod
    def beside(cls, name: str | Path, ending: str) -> Path:
        """A hidden folder for work on this index."""
        return Path(f".{re.sub(r'[^A-Za-z0-9._-]+', '-', str(name))}.{ending}")

    @classmethod
    def lists(cls, name: str | Path) -> Path:
        """The folder where lists that belong to this index lie, of bad images for example."""
        folder = cls.beside(name, "lists")
        return folder.with_name(folder.name.removeprefix("."))

    # -- construction --------------------------------------------------------------------------------

    @classmethod
    @contextlib.contextmanager
    def under_construction(cls, name: str | Path, settings: Settings, work: Construction) -> Iterator[Self]:
        """An index to be filled, open for writing, which nobody can open before the block has ended well.

        Of a block that fails nothing is left, or, where the work resumes, what the next one continues.
        """
        exists, unfinished = cls.look_at(name)
        if exists and unfinished is None:
            raise exists_already(name)
        if unfinished not in (None, work.unfinished):
            raise InputError(f"{name} is something else that is not finished: {unfinished}")
        if unfinished is not None and not work.resumes:
            cls.drop(name)  # of a process that was killed
        is_new = unfinished is None or not work.resumes
        index = cls._begin(name, settings, work.unfinished) if is_new else cls._continue(name)
        try:
            with index:
                yield index
                index._mark(None)
        except BaseException:
            if not work.resumes:
                with contextlib.suppress(InputError, StoreError):
                    cls.discard(name, work)
            raise

    @classmethod
    def discard(cls, name: str | Path, work: Construction) -> None:
        """Throws away what a stopped construction of this kind has left under a name, if anything."""
        if cls.look_at(name).unfinished == work.unfinished:
            cls.drop(name)

    @abstractmethod
    def attach(self, name: str, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> None:
        """Keeps tensors and JSON under a name in the index, in place of what was there; durable like an add."""

    @abstractmethod
    def attached(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What `attach` kept under a name; None where there is nothing."""

    @property
    def unfinished(self) -> str | None:
        """What has to be done before anyone may open it; None: it is whole."""
        mark = self.attached(UNFINISHED)
        return None if mark is None else mark[1].get("reason")

    @classmethod
    def _begin(cls, name: str | Path, settings: Settings, unfinished: str) -> Self:
        """A new index that is unfinished from its first moment on."""
        index = cls.create_as(name, settings)
        index._mark(unfinished)
        return index

    @classmethod
    def _continue(cls, name: str | Path) -> Self:
        """Opens an unfinished index for writing."""
        return cls.open(name, writable=True)

    def _mark(self, unfinished: str | None) -> None:
        self.attach(UNFINISHED, {}, {"reason": unfinished})

    # -- closing -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Lets go of what it holds. Closing twice is allowed."""
        self._is_open = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _refuse_closed(self) -> None:
        if not self._is_open:
            raise StoreError(f"The index {self.path} is closed; open it again.")

    def _refuse_reader(self, *, writable: bool) -> None:
        if not writable:
            raise StoreError(f"The index {self.path} is open for reading; open it with writable=True.")
