"""What a query's doubt is made of, and a sentence that names the largest part."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from doubtless.calibration.sentence import Sentence
from doubtless.doubt.signals import PARTS

LITTLE = 0.1  # below this a doubt is called little

SOURCES = {
    "image": "the image",
    "model": "the model",
    "gallery": "the gallery",
    "distance": "the distance",
    "novelty": "novelty",
}


@dataclass(frozen=True, eq=False)
class DoubtParts:
    """One doubt for each of n queries, and how it came about.

    total    (n,) in [0, 1], higher is less sure: 1 − P(right, were it known) · (known-ness), a score of doubt
    parts    image, model, gallery, distance, novelty → (n,) in [0, 1]: the doubt if that source alone spoke.
             1 − total is the product of all 1 − part; a source that was not there is 0
    chances  signal → (n,) share of known queries whose signal is as odd: small is odd. "novelty" is of all that
             the query says of itself
    """

    total: Tensor
    parts: Mapping[str, Tensor]
    chances: Mapping[str, Tensor]
    disagreeing: tuple[Tensor, Tensor] | None = None
    """(n,) how many of the first ten hits contradict the first, (n,) how many there are; None without labels."""

    def __len__(self) -> int:
        return len(self.total)

    def largest(self, query: int) -> str:
        """The part of a query's doubt that is largest; the first of equal ones in the order of `PARTS`."""
        return max(PARTS, key=lambda part: float(self.parts[part][query]))

    def reason(self, query: int) -> str:
        """A sentence that names the largest part and what is odd about it."""
        part = self.largest(query)
        because = self._because(part, query)
        if float(self.total[query]) < LITTLE:
            return f"There is little doubt; most of it comes from {SOURCES[part]}: {because}."
        return Sentence(f"Most of the doubt comes from {SOURCES[part]}: {because}.", "part", part=part)

    def _because(self, part: str, query: int) -> str:
        if part == "gallery":
            return self._of_gallery(query)
        rare = (
            f"{share_of_known(float(self.chances[part][query]))} of known queries"
            if part in self.chances
            else ""
        )
        return {
            "image": f"its quality is as poor for {rare}",
            "model": f"the network is as unsure of {rare}",
            "distance": f"the first hit is as far away for {rare}",
            "novelty": f"{rare} are as unlike what is known",
        }[part]

    def _of_gallery(self, query: int) -> str:
        if float(self.parts["gallery"][query]) == 1:
            return "nothing was found in it"
        if self.disagreeing is not None:
            count, shown = (int(value[query]) for value in self.disagreeing)
            if count:
                return f"{count} of the first {shown} hits disagree{'s' if count == 1 else ''} with the first"
            return "all first hits agree, but the second is nearly as near as the first"
        return "the first hits are nearly as near as the first one"


def share_of_known(chance: float) -> str:
    """0.34 → 34 %, 0.002 → 0.2 %, 1e-9 → fewer than 0.01 %."""
    percent = 100 * chance
    if percent < 0.01:
        return "fewer than 0.01 %"
    return f"{percent:.0f} %" if percent >= 1 else f"{percent:.1g} %"
