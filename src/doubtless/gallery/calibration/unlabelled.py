"""Calibrating a gallery without a label: its items search each other, and people judge some of what they find."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from doubtless.calibration.features import DEPTH
from doubtless.calibration.fit import Targets
from doubtless.calibration.kept_searches import some_of
from doubtless.calibration.pairs.asked import OTHER, SAME, UNSAID, AskedPairs
from doubtless.calibration.pairs.unlabelled import ASSUMES, HitChance, refuse_few, stands_out, unrelated
from doubtless.errors import InputError
from doubtless.search.hits import without_itself

if TYPE_CHECKING:
    from doubtless.gallery.calibration.calibrated import Calibrated
    from doubtless.index.base import Index

ATTACHMENT = "unlabelled"
CHUNK = 500
MOST_COMPARED = 1_000
"""Items whose cosines with as many others say what is alike by chance."""

Said = Mapping[frozenset[int], bool]
"""Rows of two items → whether people said that they are the same thing."""


@dataclass(frozen=True, eq=False)
class Unlabelled:
    """N items of a gallery in random order, each with its first hit, and what the mixture makes of them."""

    row: Tensor
    """(N,)"""
    hit: Tensor
    """(N,) rows of the first hits."""
    out: Tensor
    """(N,) what they stand out by."""
    chance: HitChance
    target_error: float
    confidence: float

    def left(self, there: Tensor) -> Unlabelled:
        """What is left of them where these rows are in the gallery."""
        left = torch.isin(self.row, there) & torch.isin(self.hit, there)
        return replace(self, row=self.row[left], hit=self.hit[left], out=self.out[left])

    def told(self, said: Said) -> tuple[HitChance, AskedPairs]:
        """The probability and the promise after what people said."""
        pairs = zip(self.row.tolist(), self.hit.tolist(), strict=True)
        words = {None: UNSAID, True: SAME, False: OTHER}
        known = torch.tensor([words[said.get(frozenset(pair))] for pair in pairs], dtype=torch.long)
        asked = known != UNSAID
        chance = self.chance.corrected(self.out, self.out[asked], known[asked] == SAME)
        doubt = 1 - chance.of(self.out)
        return chance, AskedPairs(doubt, known, self.target_error, self.confidence)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON for `Index.attach`."""
        return {"row": self.row, "hit": self.hit, "out": self.out}, {
            "chance": self.chance.record(),
            "target_error": self.target_error,
            "confidence": self.confidence,
        }

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], record: Mapping[str, Any]) -> Unlabelled:
        """What `state` gave."""
        chance = HitChance.from_record(record["chance"])
        return cls(
            tensors["row"],
            tensors["hit"],
            tensors["out"],
            chance,
            record["target_error"],
            record["confidence"],
        )


def fit_unlabelled(index: Index, targets: Targets, *, most: int, seed: int = 0) -> Unlabelled:
    """From the items of an index, whatever labels they have; `most` of them search the others."""
    if not (index.has_vectors and index.knows_all):
        raise InputError(
            "Calibration without labels compares the items with each other; of a store that is searched in place "
            "they are not all known. Give labelled queries."
        )
    refuse_few(len(index))
    generator = torch.Generator().manual_seed(seed)
    row = index.rows[some_of(torch.arange(len(index)), most, seed)]
    row = row[torch.randperm(len(row), generator=generator)]
    hit, out = (
        torch.cat(parts) for parts in zip(*(_searched(index, some) for some in row.split(CHUNK)), strict=True)
    )
    found = hit >= 0
    drawn = unrelated(_random_cosines(index, row, generator), len(index) - 1, generator=generator)
    chance = HitChance.fit(out[found], drawn)
    return Unlabelled(row[found], hit[found], out[found], chance, targets.target_error, targets.confidence)


def record_of(index: Index, known: Unlabelled) -> dict[str, Any]:
    """What is kept of how it was calibrated, in plain values."""
    return {
        "method": "unlabelled",
        "items": len(index),
        "queries": len(known.row),
        "assumes": ASSUMES,
        "expected_same": float(known.chance.of(known.out).mean()),
    }


def answered(calibrated: Calibrated, said: Said, index: Index) -> Calibrated:
    """A calibration without labels with its probability and promise after what people said."""
    if calibrated.unlabelled is None:
        return calibrated
    chance, asked = calibrated.unlabelled.left(index.rows).told(said)
    return replace(calibrated, calibrator=chance, risk=asked)


def _searched(index: Index, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The first hit of items (n,), each among all others, and what it stands out by."""
    hits = without_itself(index.search(index.embedding(rows), DEPTH + 1), rows)
    return hits.row[:, 0], stands_out(hits)[:, 0]


def _random_cosines(index: Index, row: Tensor, generator: torch.Generator) -> Tensor:
    """Cosines (m, r) of some items with others, drawn at random; the same ones for all, themselves left out."""
    some = row[:MOST_COMPARED]
    others = index.rows[torch.randperm(len(index), generator=generator)[:MOST_COMPARED]]
    cosine = index.directions(some) @ index.directions(others).T
    itself = some.unsqueeze(1) == others
    # One is left out of every line, so that all have as many; which one hardly matters where it is not there.
    itself[~itself.any(1), -1] = True
    return cosine[~itself].view(len(some), len(others) - 1)
