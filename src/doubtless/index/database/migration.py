"""An index copied to another place, from one backend to another or between two of a kind.

Items go over in their order, some at a time, each lot whole; so a copy that was stopped holds the first items of
its source and goes on behind them. Until it is complete nobody can open it (`Index.under_construction`). It is
complete when both sides, read once more, have the same count and the same checksum over settings, items,
distributions and attachments.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from doubtless.errors import InputError, StoreError
from doubtless.index.backends import backend_of, folder_beside, open_index
from doubtless.index.base import Index
from doubtless.index.construction import UNFINISHED, Construction
from doubtless.index.forms import packed
from doubtless.index.items import Item
from doubtless.index.settings import KEPT_MODEL

ATTACHMENT = "migration"
"""Under this name a copy keeps what it is a copy of."""

TOGETHER = 2_048
MIGRATION = Construction(
    "migrating",
    "a migration into it was stopped; repeat `doubtless migrate`, or begin anew with --restart.",
    resumes=True,
)

Observer = Callable[[int, int], None]
"""Is called with how many items are done, of how many."""


@dataclass(frozen=True)
class Migrated:
    """What a migration has done."""

    source: str
    target: str
    items: int
    copied: int
    """Items this call copied; the others were there from one that was stopped."""
    attachments: list[str]
    checksum: str


def migrate(
    source: str | Path, target: str | Path, *, restart: bool = False, observer: Observer | None = None
) -> Migrated:
    """Copies an index; called again after it was stopped, it goes on. Never over something else.

    >>> migrate("gallery", "copy").items
    160
    >>> migrate("gallery", "milvus:http://localhost:19530/gallery")  # needs a server  # doctest: +SKIP
    """
    origin, source_name = backend_of(source)
    backend, name = backend_of(target)
    if (origin, origin.place(source_name)) == (backend, backend.place(name)):
        raise InputError(f"{source} cannot be copied onto itself; name another place.")
    with open_index(source) as old:
        if backend.exists(name):
            return _repeated(old, source, target)
        if restart:
            backend.discard(name, MIGRATION)
        with backend.under_construction(name, old.settings.copied(), MIGRATION) as new:
            _claim(old, new, target)
            copied = _copy_items(old, new, target, observer)
            attachments = _copy_attachments(old, new)
            _copy_model(old, new, backend)
            items, checksum = _verified(old, new, source, target)
            new.attach(ATTACHMENT, {}, _record(old, checksum))
        return Migrated(str(source), str(target), items, copied, attachments, checksum)


def checksum_of(index: Index) -> str:
    """SHA-256 over all an index holds: the same wherever it is kept, another for any difference."""
    digest = hashlib.sha256()
    _feed(digest, index.settings.public_record())
    for items, numbers in _lots(index, index.rows):
        for item in items:
            _feed(digest, [item.id, item.label, item.path, item.metadata])
        digest.update(numbers)
    for name in _attachment_names(index):
        tensors, record = _attachment(index, name)
        _feed(digest, [name, record])
        for key, value in sorted(tensors.items()):
            plain = value.contiguous()
            _feed(digest, [key, str(plain.dtype), list(plain.shape)])
            digest.update(plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    return digest.hexdigest()


# -- copying -----------------------------------------------------------------------------------------


def _copy_items(old: Index, new: Index, target: str | Path, observer: Observer | None) -> int:
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
        if observer is not None:
            observer(start + len(some), len(rows))
    return len(rows) - done


def _copy_attachments(old: Index, new: Index) -> list[str]:
    names = _attachment_names(old)
    for name in names:
        new.attach(name, *_attachment(old, name))
    return names


def _copy_model(old: Index, new: Index, backend: type[Index]) -> None:
    """The model that is kept beside the items; files that were copied before a stop are copied again."""
    kept = folder_beside(old.path) / KEPT_MODEL
    if kept.is_dir():
        shutil.copytree(kept, backend.lists(new.path) / KEPT_MODEL, dirs_exist_ok=True)


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
    return [name for name in index.attachments() if name not in (ATTACHMENT, UNFINISHED)]


def _attachment(index: Index, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    attachment = index.attached(name)
    if attachment is None:
        raise StoreError(f"{index.path} lost its attachment {name!r} while it was read; repeat the command.")
    return attachment


def _feed(digest: Any, value: object) -> None:
    digest.update(json.dumps(value, ensure_ascii=False, sort_keys=True).encode() + b"\n")


# -- the target --------------------------------------------------------------------------------------


def _record(old: Index, checksum: str | None = None) -> dict[str, Any]:
    return {"source": old.settings.identity, "checksum": checksum}


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
        origin = new.attached(ATTACHMENT)
        if origin is None or origin[1]["source"] != old.settings.identity:
            raise elsewhere
        items, checksum = _verified(old, new, source, target)
        return Migrated(str(source), str(target), items, 0, _attachment_names(new), checksum)


def _claim(old: Index, new: Index, target: str | Path) -> None:
    """Notes of what this is a copy, or finds it noted."""
    origin = new.attached(ATTACHMENT)
    if origin is None and not len(new):
        new.attach(ATTACHMENT, {}, _record(old))
    elif origin is None or origin[1]["source"] != old.settings.identity:
        raise InputError(
            f"{target} is the unfinished copy of another index than {old.path}; finish that, or discard it with "
            "--restart."
        )
