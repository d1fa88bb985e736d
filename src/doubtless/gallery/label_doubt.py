"""What the doubt of an answer by labels comes from: the factors of its probability, each a part of its own.

P(label) = P(not foreign) · P(one of the labels found) · P(this one of them). What is missing to 1 in each factor is
a part: *novelty*, *image* and *model* share the first by how odd each of them is, *distance* is the second,
*gallery* the third. So 1 − doubt is the product of all 1 − part, and no part can say what the probabilities do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from doubtless.calibration.conformal import CoveringSets
from doubtless.calibration.distribution import Distribution
from doubtless.calibration.sentence import Sentence
from doubtless.doubt.doubt import Doubt
from doubtless.doubt.foreign import foreign_share
from doubtless.doubt.parts import LITTLE, share_of_known
from doubtless.doubt.signals import PART_OF
from doubtless.embedding import Embedding


@dataclass(frozen=True, eq=False)
class Oddness:
    """How odd n pictures are, and by what."""

    foreign: Tensor
    """(n,) the probability that it shows nothing of the kind."""
    sources: Mapping[str, Tensor] = field(default_factory=dict)
    """Part → (n,): its share of that; only of what was measured."""
    chances: Mapping[str, Tensor] = field(default_factory=dict)
    """Signal → (n,) share of known queries that are as odd; "altogether" of all signals."""

    @classmethod
    def none(cls, count: int) -> Oddness:
        """Of queries that nobody looked at."""
        return cls(torch.zeros(count, dtype=torch.double))


def oddness(
    doubt: Doubt | None, queries: Embedding, features: Tensor | None, itself: Tensor | None = None
) -> Oddness:
    """By a fitted doubt. Features (n, F) that it wants and nobody has are not looked at, and no part of it."""
    if doubt is None or doubt.oddity is None:
        return Oddness.none(len(queries))
    signals = doubt.own_signals(len(queries), features, queries=queries, itself=itself)
    unseen = {"novelty"} if doubt.wants_features and features is None else set()
    surprise = doubt.oddity.surprise(signals)
    alone = {
        name: doubt.oddity.surprise_of(name, signals[name])
        for name in doubt.oddity.names
        if name not in unseen
    }
    if not alone:
        return Oddness.none(len(queries))
    total = sum(alone.values(), torch.full_like(surprise, 1e-12))
    sources: dict[str, Tensor] = {}
    for name, value in alone.items():
        part = PART_OF[name]
        sources[part] = sources.get(part, torch.zeros_like(total)) + value / total
    chances = {name: value.neg().exp() for name, value in alone.items()}
    return Oddness(foreign_share(surprise), sources, chances | {"altogether": surprise.neg().exp()})


@dataclass(frozen=True, eq=False)
class LabelDoubt:
    """The doubt of n queries, 1 − P(most probable label), and its parts."""

    total: Tensor
    parts: Mapping[str, Tensor]
    chances: Mapping[str, Tensor]

    @classmethod
    def of(cls, near: Distribution, odd: Oddness) -> LabelDoubt:
        """From probabilities among pictures of the kind, and how odd each picture is."""
        best, none = near.first[1], near.none
        one_of_them = best / (1 - none).clamp_min(torch.finfo(none.dtype).tiny)
        known = -torch.log1p(-odd.foreign.clamp_max(1 - 1e-15))  # of a hazard, shares can be taken
        parts = {name: -torch.expm1(-known * share) for name, share in odd.sources.items()}
        nothing = none >= 1  # no label was found at all: there is nothing to contest
        parts["distance"] = none
        parts["gallery"] = torch.where(nothing, 0.0, 1 - one_of_them.clamp(0, 1))
        rest = torch.stack([1 - part for part in parts.values()]).prod(0)
        return cls(1 - rest, parts, odd.chances)

    def reason(self, query: int) -> str:
        """Where most of the doubt comes from; nothing where there is little."""
        if float(self.total[query]) < LITTLE:
            return ""
        part = max(self.parts, key=lambda name: float(self.parts[name][query]))
        words = {
            "gallery": "the gallery: its labels contest each other.",
            "distance": "the distance: things that are not in the gallery find as much.",
        }.get(part)
        if words is None:
            rare = share_of_known(float(self.chances["altogether"][query]))
            named = {"image": "the image", "model": "the model", "novelty": "novelty"}[part]
            words = f"{named}: {rare} of known queries are as odd."
        return Sentence(f"Most of the doubt comes from {words}", "part", part=part)


def covering_of(present: Distribution, label: Tensor) -> CoveringSets:
    """Covering sets from the distributions of n known queries of these labels (n,)."""
    ordered = present.by_probability()
    return CoveringSets.fit(ordered.probability, ordered.label == label.unsqueeze(1))
