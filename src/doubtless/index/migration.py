"""An index copied to another place, from a folder to Milvus, back, or between two of a kind.

Items go over in their order, some at a time, each lot whole; so a copy that was stopped holds the first items of
its source and goes on behind them. Until it is complete nobody can open it: in a folder it lies beside its place,
in `.NAME.migrating`, in Milvus it is marked as unfinished. It is complete when both sides, read once more, have
the same count and the same checksum over settings, items, distributions and parts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from doubtless.errors import InputError, StoreError
from doubtless.index.base import Index, open_index
from doubtless.index.folder import FolderIndex
from doubtless.index.forms import packed
from doubtless.index.milvus.connection import Address, is_milvus
from doubtless.index.milvus.index import discard_unfinished, look_at
from doubtless.index.sqlite import Item

ATTACHMENT = "migration"
"""Under this name a copy keeps what it is a copy of."""

TOGETHER = 2_048
UNFINISHED = (
    "a migration into it was stopped; repeat `doubtless index migrate`, or begin anew with --restart."
)

Told = Callable[[int, int], None]
"""Is told how many items are done, of how many."""


@dataclass(frozen=True)
class Migrated:
    """What a migration has done."""

    source: str
    target: str
    items: int
    copied: int
    """Items this call copied; the others were there from one that was stopped."""
    parts: list[str]
    checksum: str


def migrate(
    source: str | Path, target: str | Path, *, restart: bool = False, told: Told | None = None
) -> Migrated:
    """Copies an index; called again after it was stopped, it goes on. Never over something else.

    >>> migrate("gallery", "milvus:http://localhost:19530/gallery")                # doctest: +SKIP
    """
    if _place(source) == _place(target):
        raise InputError(f"{source} cannot be copied onto itself; name another place.")
    with open_index(source) as old:
        if _is_finished(target):
            return _repeated(old, source, target)
        with _unfinished(old, target, restart=restart) as new:
            copied = _copy_items(old, new, target, told)
            parts = _copy_attachments(old, new)
            items, checksum = _verified(old, new, source, target)
            new.attach(ATTACHMENT, {}, _record(old, checksum))
        return Migrated(str(source), str(target), items, copied, parts, checksum)


def checksum_of(index: Index) -> str:
    """SHA-256 over all an index holds: the same wherever it is kept, another for any difference."""
    digest = hashlib.sha256()
    _feed(digest, {key: value for key, value in index.settings.record().items() if key != "identity"})
    for items, numbers in _lots(index, index.rows):
        for item in items:
            _feed(digest, [item.id, item.label, item.path, item.metadata])
        digest.update(numbers)
    for name in _attachment_names(index):
        tensors, record = _part(index, name)
        _feed(digest, [name, record])
        for key, value in sorted(tensors.items()):
            plain = value.contiguous()
            _feed(digest, [key, str(plain.dtype), list(plain.shape)])
            digest.update(plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    return digest.hexdigest()


# -- copying -----------------------------------------------------------------------------------------


def _copy_items(old: Index, new: Index, target: str | Path, told: Told | None) -> int:
    rows, done = old.rows, len(new)
    if done > len(rows) or old.ids(rows[:done]) != new.ids():
        raise InputError(
            f"{old.path} is not any more what it was when its migration to {target} began; begin anew with "
            "--restart."
        )
    for start in range(done, len(rows), TOGETHER):
        some = rows[start : start + TOGETHER]
        items = old.items(some)
        new.add(
            old.embedding(some),
            [item.id for item in items],
            labels=[item.label for item in items],
            paths=[item.path for item in items],
            metadata=[item.metadata for item in items],
        )
        if told is not None:
            told(start + len(some), len(rows))
    return len(rows) - done


def _copy_attachments(old: Index, new: Index) -> list[str]:
    names = _attachment_names(old)
    for name in names:
        new.attach(name, *_part(old, name))
    return names


def _verified(old: Index, new: Index, source: str | Path, target: str | Path) -> tuple[int, str]:
    counts, sums = (len(old), len(new)), (checksum_of(old), checksum_of(new))
    if counts[0] != counts[1] or sums[0] != sums[1]:
        raise StoreError(
            f"The copy {target} is not equal to {source} ({counts[1]:,} of {counts[0]:,} items, checksum "
            f"{sums[1][:12]}… instead of {sums[0][:12]}…), which may have been changed meanwhile. Repeat the "
            "command; if it says so again, begin anew with --restart."
        )
    return counts[0], sums[0]


def _lots(index: Index, rows: Tensor) -> Iterator[tuple[list[Item], bytes]]:
    for start in range(0, len(rows), TOGETHER):
        some = rows[start : start + TOGETHER]
        yield index.items(some), packed(index.embedding(some), index.settings).tobytes()


def _attachment_names(index: Index) -> list[str]:
    return sorted(name for name in index.stats()["parts"] if name != ATTACHMENT)


def _part(index: Index, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    found = index.attached(name)
    if found is None:
        raise StoreError(f"{index.path} lost its part {name!r} while it was read; repeat the command.")
    return found


def _feed(digest: Any, value: object) -> None:
    digest.update(json.dumps(value, ensure_ascii=False, sort_keys=True).encode() + b"\n")


# -- the target --------------------------------------------------------------------------------------


def _place(name: str | Path) -> str:
    if not is_milvus(name):
        return str(Path(name).resolve())
    address = Address.parse(str(name))
    return (
        f"{address.server or ''}{'' if address.file is None else address.file.resolve()} {address.collection}"
    )


def _record(old: Index, checksum: str | None = None) -> dict[str, Any]:
    return {"source": old.settings.identity, "checksum": checksum}


def _is_finished(target: str | Path) -> bool:
    if is_milvus(target):
        there, unfinished = look_at(str(target))
        return there and unfinished is None
    path = Path(target)
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def _repeated(old: Index, source: str | Path, target: str | Path) -> Migrated:
    """The same command once more, after it was done: nothing is left to do, or this is something else."""
    elsewhere = InputError(
        f"{target} exists already, and is no copy of {source}; an index is never overwritten."
    )
    try:
        new = open_index(target)
    except (InputError, StoreError):
        raise elsewhere from None
    with new:
        part = new.attached(ATTACHMENT)
        if part is None or part[1]["source"] != old.settings.identity:
            raise elsewhere
        items, checksum = _verified(old, new, source, target)
        return Migrated(str(source), str(target), items, 0, _attachment_names(new), checksum)


@contextlib.contextmanager
def _unfinished(old: Index, target: str | Path, *, restart: bool) -> Iterator[Index]:
    """The copy as far as it has come, which is put into its place when the block ends well."""
    if is_milvus(target):
        with _in_milvus(old, str(target), restart=restart) as new:
            _claim(old, new, target)
            yield new
            new.finish()
        return
    path = Path(target)
    folder = path.with_name(f".{path.name}.migrating")
    if restart:
        shutil.rmtree(folder, ignore_errors=True)
    with (
        FolderIndex.open(folder, writable=True)
        if folder.exists()
        else FolderIndex.create(folder, **_shape(old)) as index
    ):
        _claim(old, index, target)
        yield index
    try:
        os.replace(folder, path)
    except OSError as error:
        raise StoreError(
            f"{folder} cannot be put into its place {path}: {error.strerror or error}."
        ) from error


def _in_milvus(old: Index, target: str, *, restart: bool) -> Any:
    from doubtless.index.milvus.index import MilvusIndex

    _, why = look_at(target)
    if why is not None and why != UNFINISHED:
        raise InputError(f"{target} is something else that is not finished: {why}")
    if why is not None and restart:
        discard_unfinished(target)
        why = None
    if why is None:
        return MilvusIndex.create(target, **_shape(old), unfinished=UNFINISHED)
    return MilvusIndex.open(target, writable=True, unfinished=True)


def _claim(old: Index, new: Index, target: str | Path) -> None:
    """Notes of what this is a copy, or finds it noted."""
    part = new.attached(ATTACHMENT)
    if part is None and not len(new):
        new.attach(ATTACHMENT, {}, _record(old))
    elif part is None or part[1]["source"] != old.settings.identity:
        raise InputError(
            f"{target} is the unfinished copy of another index than {old.path}; finish that, or discard it with "
            "--restart."
        )


def _shape(index: Index) -> dict[str, Any]:
    settings = index.settings.record()
    return {key: value for key, value in settings.items() if key != "identity"}
