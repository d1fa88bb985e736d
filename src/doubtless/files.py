"""Files that are either the old one or the new one, never half of each: write, fsync, rename."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from doubtless.errors import DiskFullError, DoubtlessError, FileError, InputError

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Of errors of the system: a disk, or somebody's share of it, is full."""


@contextlib.contextmanager
def atomic_writer(path: str | Path, *, durable: bool = True) -> Iterator[IO[bytes]]:
    """Opens a temporary file beside `path` that takes its place when the block ends without an error.

    A full disk, a crash or an exception leaves what was there before. Not `durable`: nobody waits for the disk, so
    that a power failure may leave a damaged file, which whoever reads it has to notice. What is no file
    (`/dev/null`, `/dev/stdout`) is written to as it is.

    >>> with atomic_writer("notes.txt") as file:
    ...     written = file.write(b"all or nothing")
    >>> Path("notes.txt").read_text()
    'all or nothing'
    """
    path = Path(path)
    if _is_stream(path):
        try:
            with path.open("wb") as file:
                yield file
        except OSError as error:
            raise _unwritten(path, error) from error
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise _unwritten(path, error) from error
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~umask())  # mkstemp makes private files; a run is to be shared
        os.replace(temporary, path)
    except OSError as error:
        kept = " The previous file is untouched." if path.exists() else ""
        raise _unwritten(path, error, kept) from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
    if durable:
        _fsync_folder(path.parent)


def _is_stream(path: Path) -> bool:
    """A device, or a name of what this process has open: to be written to. Renamed over, it would be a file."""
    try:
        kind = path.stat().st_mode
    except (OSError, ValueError):  # not there, or no name: that is said where it is written
        return False
    opened = path.is_symlink() and os.readlink(path).startswith("/proc/")
    return stat.S_ISCHR(kind) or opened or path.absolute().is_relative_to("/dev/fd")


def _unwritten(path: Path, error: OSError, kept: str = "") -> FileError:
    kind = DiskFullError if error.errno in NO_ROOM else FileError
    return kind(f"{path} cannot be written: {error.strerror or error}.{kept}")


def write_bytes(path: str | Path, data: bytes) -> None:
    """Writes a whole file, or nothing."""
    with atomic_writer(path) as file:
        file.write(data)


def write_text(path: str | Path, text: str) -> None:
    """Writes a whole file in UTF-8, or nothing."""
    write_bytes(path, text.encode())


def write_json(path: str | Path, value: Any, *, compact: bool = False) -> None:
    """Writes plain values as JSON; NaN and infinities are refused, since JSON has no word for them.

    Indented, for people to read and compare; `compact`, half as long, where there are tens of thousands of numbers.

    >>> write_json("answer.json", {"probability": 0.9})
    >>> read_json("answer.json")
    {'probability': 0.9}
    """
    layout: dict[str, Any] = {"separators": (",", ":")} if compact else {"indent": 2}
    write_text(path, json.dumps(value, allow_nan=False, **layout) + "\n")


def read_json(path: str | Path) -> Any:
    """Reads JSON; a missing or damaged file is a sentence, not a traceback."""
    path = Path(path)
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise FileError(f"There is no file {path}.") from None
    except (OSError, ValueError) as error:
        raise FileError(f"{path} is damaged or no JSON ({error}); write it again or restore it.") from error


@contextlib.contextmanager
def reading(
    path: str | Path, what: str, *, kind: type[DoubtlessError] = InputError, then: str = ""
) -> Iterator[None]:
    """Makes a sentence of whatever a file from outside makes its readers raise.

    Libraries raise a dozen kinds of errors over damaged files, and so does taking apart values that are no longer
    what they were called. `then` says what can be done about it.

    >>> try:
    ...     with reading("a.json", "split"):
    ...         {}["train"]
    ... except InputError as error:
    ...     print(error)
    a.json is no readable split: KeyError: 'train'.
    """
    try:
        yield
    except DoubtlessError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        said = " ".join(lines[-1].split())[:300].rstrip(".") if lines else ""
        plain = isinstance(error, OSError | ValueError | RuntimeError) and said
        reason = said if plain else f"{type(error).__name__}: {said}".rstrip(": ")
        raise kind(f"{path} is no readable {what}: {reason}.{' ' if then else ''}{then}") from error


def umask() -> int:
    """Permissions that new files of this process do not get."""
    current = os.umask(0)
    os.umask(current)
    return current


def _fsync_folder(folder: Path) -> None:
    """Makes the rename itself durable, where the file system allows it."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


SHIPPED = {"suites": ("bench", "benchmarks/suites"), "configs": ("", "configs")}
"""What a wheel brings along: its folder in the package, and where it lies in a clone."""


def shipped(what: str) -> Path:
    """The folder of the suites or configurations that are shipped, in an installed wheel or in a clone.

    >>> (shipped("configs") / "fashion-sample" / "deterministic.yaml").is_file()
    True
    """
    room, in_clone = SHIPPED[what]
    package = Path(__file__).parent
    installed = package / room / what
    return installed if installed.is_dir() else package.parents[1] / in_clone
