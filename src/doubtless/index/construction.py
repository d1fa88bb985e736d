"""An index that is there whole or not at all: what is being done until then, and folders built beside their place.

While `gallery` is being created, it lies in `.gallery.creating`, under a lock; at the end it is moved to its place.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from doubtless.errors import InputError, StoreError
from doubtless.files import umask
from doubtless.index.database.lock import WriterLock
from doubtless.index.database.store import Store
from doubtless.index.settings import Settings

UNFINISHED = "unfinished"
"""Under this name an index keeps, where its backend has no better way, what has to be done before it is whole."""


@dataclass(frozen=True)
class Construction:
    """Work at whose end an index is there, whole, and before which nobody can open it."""

    name: str
    """What is being done: "creating"; so is called what lies beside the index meanwhile."""
    unfinished: str
    """What is told to those who open the index before: the end of a sentence."""
    resumes: bool = False
    """Whether what a stopped one has built is kept, and continued by the next."""


class Standing(NamedTuple):
    """What there is under a name: whether there is an index, and what must be done before anyone may open it."""

    exists: bool
    unfinished: str | None


def exists_already(name: str | Path) -> InputError:
    """The error of who would create an index where there is something."""
    return InputError(f"{name} exists already; an index is only created where there is nothing.")


def is_taken(path: Path) -> bool:
    """Whether there is anything but an empty folder."""
    try:
        return path.exists() and (not path.is_dir() or any(path.iterdir()))
    except (
        OSError,
        ValueError,
    ) as error:  # a name that no file can have, or a folder that may not be looked into
        raise StoreError(f"{str(path)[:200]!r} cannot be looked at: {error}.") from error


def create_folder(path: Path, settings: Settings) -> None:
    """Makes an empty index beside its place and moves it there: a cut-off creation leaves nothing at `path`."""
    if is_taken(path):
        raise exists_already(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    except OSError as error:
        raise StoreError(f"The index {path} cannot be created: {error.strerror or error}.") from error
    try:
        temporary.chmod(0o777 & ~umask())  # mkdtemp makes private folders; an index is to be shared
        Store.create(temporary, settings)
        os.replace(temporary, path)
    except OSError as error:
        raise StoreError(f"The index {path} cannot be created: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def building_folder(path: Path, workshop: Path, work: Construction) -> Iterator[Path]:
    """Where to build what is moved to `path` when the block ends well; a second one at the same time is refused."""
    if is_taken(path):
        raise exists_already(path)
    built, lock_file = workshop / "index", workshop / f"{work.name}.lock"
    with locked_folder(workshop, lock_file.name):
        if not work.resumes:
            shutil.rmtree(built, ignore_errors=True)  # of a process that was killed: the lock is ours
        try:
            yield built
            if is_taken(path):
                raise exists_already(path)
            _move(built, path)
        finally:
            if not work.resumes:
                shutil.rmtree(built, ignore_errors=True)


@contextlib.contextmanager
def locked_folder(folder: Path, lock: str) -> Iterator[None]:
    """Makes a folder and holds a lock in it; at the end an empty one goes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:  # ValueError: a name with a zero character
        raise StoreError(f"{str(folder)[:200]!r} cannot be made: {error}.") from error
    writer = WriterLock(folder / lock)
    try:
        yield
    finally:
        (folder / lock).unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # it holds something that is to be continued
            folder.rmdir()
        writer.release()


def _move(built: Path, path: Path) -> None:
    try:
        os.replace(built, path)
    except OSError as error:
        raise StoreError(
            f"The index {path} cannot be put into its place: {error.strerror or error}."
        ) from error
