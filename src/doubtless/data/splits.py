"""Explicit splits: who trains, validates, tests. Recorded with the run; test data never selects anything."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from doubtless.config import validation_share
from doubtless.data.source import TEST, TRAIN, Source
from doubtless.errors import InputError, RunError
from doubtless.files import read_json, write_json

SplitKind = Literal["closed", "open", "given"]


@dataclass(frozen=True)
class Split:
    """Positions in the source, sorted, of the three parts.

    `closed`: by image, every class in every part (the source's own test part where it has one).
    `open`:   by class, the first half of the sorted classes trains, the others test.
    `given`:  the source's own parts, whose classes are different ones.
    Validation is cut from the training part: by image when closed, by class when open or given. Where places
    say what belongs together, whole regions stand in for the classes, so that no two parts are neighbours.
    """

    kind: SplitKind
    train: Tensor
    validation: Tensor
    test: Tensor
    source: str
    fingerprint: str
    seed: int

    def save(self, path: str | Path) -> None:
        """Writes it as JSON."""
        parts = {name: getattr(self, name).tolist() for name in ("train", "validation", "test")}
        header = {
            "kind": self.kind,
            "source": self.source,
            "fingerprint": self.fingerprint,
            "seed": self.seed,
        }
        write_json(path, {"schema": 1, **header, **parts})

    @classmethod
    def load(cls, path: str | Path) -> Split:
        """Reads what `save` wrote; a damaged file is refused by a sentence."""
        data = read_json(path)
        try:
            parts = {
                name: torch.tensor(data[name], dtype=torch.long) for name in ("train", "validation", "test")
            }
            return cls(
                kind=data["kind"],
                source=data["source"],
                fingerprint=data["fingerprint"],
                seed=data["seed"],
                **parts,
            )
        except (KeyError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise RunError(f"{path} is no split of this library ({error}).") from error


def make_split(
    source: Source, kind: SplitKind, *, validation: float | None = None, test: float = 0.2, seed: int = 0
) -> Split:
    """Splits a source; `test` counts only for a closed split of a source without a test part of its own.

    `validation` is a share of the training part: of its images when closed, else of its classes. None: see
    `validation_share`.
    """
    validation = validation_share(kind) if validation is None else validation
    generator = torch.Generator().manual_seed(seed)
    if kind == "closed":
        if source.places is not None:
            raise InputError(f"{source.name} is split by region; accepted: split: given or split: open.")
        pool, held_out = _closed(source, test, generator)
        train, chosen = _by_image(source.labels, pool, validation, generator)
    else:
        pool, held_out = _open(source) if kind == "open" else _given(source)
        train, chosen = _by_class(source, pool, validation, generator)
    for name, part in (("training", train), ("validation", chosen), ("test", held_out)):
        if len(part) == 0:
            raise InputError(
                f"A {kind} split of {source.name} leaves no image for {name}; it has {len(source)} images."
            )
    return Split(
        kind=kind,
        train=train.sort().values,
        validation=chosen.sort().values,
        test=held_out.sort().values,
        source=source.name,
        fingerprint=source.fingerprint(),
        seed=seed,
    )


def _closed(source: Source, test: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    if source.given_split is not None:
        return torch.nonzero(source.given_split == TRAIN)[:, 0], torch.nonzero(source.given_split == TEST)[
            :, 0
        ]
    return _by_image(source.labels, torch.arange(len(source)), test, generator)


def _open(source: Source) -> tuple[Tensor, Tensor]:
    groups = _groups(source)
    classes = len(source.label_names) if source.places is None else int(groups.max()) + 1
    if classes < 4:
        raise InputError(
            f"An open split needs at least 4 {_group_word(source)} (2 to train, 2 to test), {source.name} has "
            f"{classes}."
        )
    seen = groups < classes // 2
    return torch.nonzero(seen)[:, 0], torch.nonzero(~seen)[:, 0]


def _given(source: Source) -> tuple[Tensor, Tensor]:
    if source.given_split is None:
        raise InputError(
            f"{source.name} has no train and test part of its own; split: open or closed can be had."
        )
    return torch.nonzero(source.given_split == TRAIN)[:, 0], torch.nonzero(source.given_split == TEST)[:, 0]


def _by_image(
    labels: Tensor, pool: Tensor, share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Takes `share` of every class out of the pool; a class of one image stays where it is."""
    taken = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels[pool].unique():
        members = pool[labels[pool] == label]
        count = min(round(share * len(members)), len(members) - 1)
        order = torch.randperm(len(members), generator=generator)
        taken[members[order[:count]]] = True
    return pool[~taken[pool]], pool[taken[pool]]


def _by_class(
    source: Source, pool: Tensor, share: float, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Takes `share` of the classes, at least two, out of the pool; or of the regions, which hold many places."""
    groups = _groups(source)[pool]
    classes = groups.unique()
    least = 2 if source.places is None else 1
    if len(classes) < 2 * least:
        raise InputError(
            f"Class-disjoint validation needs at least {2 * least} training {_group_word(source)} ({least} to "
            f"train, {least} to validate), {source.name} has {len(classes)}."
        )
    count = min(max(least, round(share * len(classes))), len(classes) - least)
    chosen = classes[torch.randperm(len(classes), generator=generator)[:count]]
    taken = torch.isin(groups, chosen)
    return pool[~taken], pool[taken]


def _groups(source: Source) -> Tensor:
    """What a split keeps whole, (n,)."""
    return source.labels if source.places is None else source.places.region


def _group_word(source: Source) -> str:
    return "classes" if source.places is None else "regions"
