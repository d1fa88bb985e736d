"""Keeping a gallery safe: looking for damage, copies that are whole, and saving what is left of a damaged one.

They are of galleries in folders; a backend such as Milvus has its own ways.
"""

from __future__ import annotations

from pathlib import Path

from doubtless.errors import InputError, StoreError
from doubtless.gallery.feedback.store import NOTE, FeedbackStore
from doubtless.gallery.model import damage_of_model
from doubtless.index import checking, copies
from doubtless.index.backends import backend_of
from doubtless.index.checking import Check as Check
from doubtless.index.folder import FolderIndex
from doubtless.index.salvage import Salvage as Salvage
from doubtless.index.settings import DATABASE


def check(place: str | Path, *, thorough: bool = False) -> Check:
    """Whether a gallery is what was written into it; thorough: every byte of it is looked at."""
    found = checking.check(_folder(place), thorough=thorough)
    if thorough:
        found.damage.extend(FeedbackStore(_folder(place)).damage())
        if not found.damage:  # else it may not open
            found.damage.extend(_model_damage(_folder(place)))
    return found


def backup(place: str | Path, to: str | Path) -> int:
    """Copies a gallery as it is at one moment, also while it is written to; how many items it has."""
    _refuse_damaged(_folder(place))
    return copies.backup(_folder(place), _folder(to))


def restore(copy: str | Path, to: str | Path) -> int:
    """Puts a copy where there is nothing; how many items it has."""
    _refuse_damaged(_folder(copy))
    return copies.restore(_folder(copy), _folder(to))


def salvage(place: str | Path, to: str | Path) -> Salvage:
    """Saves what can still be read of a damaged gallery into a new one, with its pictures and its model.

    What people said comes along where it is whole; else it stays where it is.
    """
    source, target = _folder(place), _folder(to)
    saved = FolderIndex.salvage(source, target)
    said = FeedbackStore(source)
    copies.save_files(source, target, leave={said.path.name, NOTE} if said.damage() else ())
    return saved


def _refuse_damaged(place: Path) -> None:
    """What people said is not copied where it is not what they said, nor another model; the rest sees to itself."""
    damage = FeedbackStore(place).damage()
    if not damage and (place / DATABASE).is_file():
        damage = _model_damage(place)
    if damage:
        raise StoreError(
            f"{place} is damaged and was not copied: {damage[0]} Put that aside, and the rest can be."
        )


def _model_damage(place: Path) -> list[str]:
    with FolderIndex.open(place) as index:
        return damage_of_model(index)


def _folder(place: str | Path) -> Path:
    backend, _ = backend_of(place)
    if backend is not FolderIndex:
        raise InputError(f"{place} is no folder; its backend has ways of its own to check and to copy it.")
    return Path(place)
