"""`Calibrated`: everything that was calibrated for an index, and how it is kept with it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from doubtless.calibration import calibrator, conformal, distribution, promise, risk
from doubtless.calibration.calibrator import Calibrator
from doubtless.calibration.conformal import CoveringSets, Presence
from doubtless.calibration.distribution import LabelDistribution
from doubtless.calibration.fit import Calibration
from doubtless.calibration.open_risk import Terms
from doubtless.calibration.pairs import pairs
from doubtless.calibration.pairs.asked import AskedPairs
from doubtless.calibration.pairs.pairs import PairCalibrator
from doubtless.calibration.pairs.unlabelled import HitChance
from doubtless.calibration.promise import Promise
from doubtless.calibration.risk import RiskControl
from doubtless.doubt.doubt import ATTACHMENT as DOUBT
from doubtless.doubt.doubt import Doubt
from doubtless.errors import StoreError
from doubtless.gallery.calibration import kept, unlabelled
from doubtless.gallery.calibration.kept import Kept
from doubtless.gallery.calibration.unlabelled import Unlabelled
from doubtless.index.base import Index

RECORD = "calibration"
"""The attachment that says under which conditions the others were calibrated."""
READERS: dict[str, Any] = {
    calibrator.ATTACHMENT: Calibrator,
    conformal.COVERING: CoveringSets,
    conformal.PRESENCE: Presence,
    risk.ATTACHMENT: RiskControl,
    pairs.ATTACHMENT: PairCalibrator,
    distribution.ATTACHMENT: LabelDistribution,
    promise.ATTACHMENT: Promise,
    kept.ATTACHMENT: Kept,
    unlabelled.ATTACHMENT: Unlabelled,
}
"""Name of an attachment, and of its field of `Calibrated` → who reads it."""
FOLLOWED = (distribution.ATTACHMENT, promise.ATTACHMENT, conformal.COVERING)
"""What a recalibration makes anew, so that what it was need not be read."""
STAMP = "stamp"
"""In every record: another word with every calibration, by which it is told from the one that was read before, and
by which parts of two calibrations are told apart where a backend cannot keep several at once."""
PARTS = "parts"
"""In the record of all: their names, so that one that is lost is missed."""
NOTHING = {"nothing": True}
TRIES = 3
COMBINED, PROBABILITY, LABELS = "combined", "probability", "labels"
"""What abstention was calibrated for: the combined doubt, 1 − P(first hit right), or 1 − P(most probable label)."""


@dataclass(frozen=True, eq=False)
class Calibrated:
    """What was calibrated for an index and is kept with it; any of it may be missing."""

    calibrator: Calibrator | HitChance | None = None
    covering: CoveringSets | None = None
    presence: Presence | None = None
    risk: RiskControl | AskedPairs | None = None
    pairs: PairCalibrator | None = None
    doubt: Doubt | None = None
    record: Mapping[str, Any] | None = None
    distribution: LabelDistribution | None = None
    promise: Promise | None = None
    kept: Kept | None = None
    unlabelled: Unlabelled | None = None
    """Nothing but this is kept of a calibration without labels; `answered` makes calibrator and risk of it."""

    @classmethod
    def of(
        cls,
        calibration: Calibration,
        record: Mapping[str, Any],
        *,
        pairs: PairCalibrator | None = None,
        doubt: Doubt | None = None,
    ) -> Calibrated:
        """What `doubtless.calibration.fit.calibrate` gave; the record says by what is abstained."""
        by = PROBABILITY if calibration.doubt_of is None else COMBINED
        return cls(
            calibration.calibrator,
            calibration.covering,
            calibration.presence,
            calibration.risk,
            pairs,
            doubt,
            {**record, "doubt": by},
        )

    @classmethod
    def load(cls, index: Index) -> Calibrated:
        """What was saved with an index."""
        return cls._of(index, _parts(index), READERS)

    @classmethod
    def to_follow(cls, index: Index) -> tuple[Calibrated, Terms | None]:
        """What a recalibration keeps of what was saved, and the promise's terms; it is not worked out again."""
        found = _parts(index)
        kept = {name: reader for name, reader in READERS.items() if name not in FOLLOWED}
        return cls._of(index, found, kept), _read(index, promise.ATTACHMENT, found, Promise.terms_of_state)

    @classmethod
    def _of(cls, index: Index, found: Mapping[str, Part], readers: Mapping[str, Any]) -> Calibrated:
        fields = {name: _read(index, name, found, reader.from_state) for name, reader in readers.items()}
        about = None if RECORD not in found else found[RECORD][1]
        combined = (about or {}).get("doubt") in {COMBINED, LABELS}
        doubt = _read(index, DOUBT, found, Doubt.from_state) if combined else None
        return cls(**fields, doubt=doubt, record=about)

    def save(self, index: Index) -> None:
        """Keeps everything in the index at once; what is not there takes the place of an older one all the same."""
        values = {name: getattr(self, name) for name in (*READERS, DOUBT)}
        parts: dict[str, Any] = {
            name: ({}, NOTHING) if value is None else value.state() for name, value in values.items()
        }
        parts[RECORD] = ({}, {**(self.record or {}), PARTS: sorted(parts)})
        stamp = secrets.token_hex(8)
        index.attach_all(
            {name: (tensors, {**record, STAMP: stamp}) for name, (tensors, record) in parts.items()}
        )

    @property
    def is_there(self) -> bool:
        """Whether anything was calibrated that gives probabilities."""
        return self.distribution is not None or self.calibrator is not None

    @property
    def is_combined(self) -> bool:
        """Whether the combined doubt decides about abstention, and not 1 − P(first hit right)."""
        return (self.record or {}).get("doubt") == COMBINED


def stamp_of(index: Index) -> str | None:
    """Of the calibration that is kept with an index now; None where there is none, or an older one."""
    record = index.attached(RECORD)
    return None if record is None else record[1].get(STAMP)


Part = tuple[dict[str, Tensor], dict[str, Any]]


def _parts(index: Index) -> dict[str, Part]:
    """What is kept, of one moment and of one calibration; parts that older versions kept have no stamp."""
    for _ in range(TRIES):  # another process may be at it: where reading takes several steps, once more
        kept = index.attached_all([*READERS, DOUBT, RECORD])
        stamps = {name: record.pop(STAMP, None) for name, (_, record) in kept.items()}
        whole, named = stamps.pop(RECORD, None), kept.get(RECORD, ({}, {}))[1].pop(PARTS, [])
        if set(stamps.values()) in ({None}, {whole}, set()) and set(named) <= set(kept):
            return {name: part for name, part in kept.items() if part[1] != NOTHING}
    raise StoreError(
        f"Of the calibration of {index.path} one part is newer than another: it was cut off while it was kept; "
        "calibrate it again."
    )


def _read(index: Index, name: str, found: Mapping[str, Part], from_state: Callable[..., Any]) -> Any:
    """What is made of an attachment; None where there is none."""
    state = found.get(name)
    try:
        return None if state is None else from_state(*state)
    except (KeyError, TypeError) as error:
        raise StoreError(
            f"What {index.path} keeps as its {name} cannot be read ({error!r}); calibrate it again."
        ) from error
