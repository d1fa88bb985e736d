"""Making the folder of a new index: all of it or nothing, and never over something that is there."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from doubtless.errors import InputError, RunError
from doubtless.retrieval.schema import Settings
from doubtless.retrieval.store import Store


def create_folder(path: Path, settings: Settings) -> None:
    """Makes the index beside its place and moves it there: a cut-off creation leaves nothing at `path`."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InputError(f"{path} exists already; an index is only created where there is nothing.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    except OSError as error:
        raise RunError(f"The index {path} cannot be created: {error.strerror or error}.") from error
    try:
        made.chmod(0o777 & ~_umask())  # mkdtemp makes private folders; an index is to be shared
        Store.create(made, settings)
        os.replace(made, path)
    except OSError as error:
        raise RunError(f"The index {path} cannot be created: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
