"""What an index is: family, dimension, how it is searched."""

from __future__ import annotations

import secrets
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from doubtless.embedding import FAMILIES
from doubtless.errors import InputError, nearest

SCHEMA = 2
"""1: without checksums over anything but numbers; sealed when it is next opened for writing."""
DATABASE = "index.sqlite"

MODEL = "model"
"""The attachment that says where the model is whose embeddings an index holds."""
KEPT_MODEL = "model"
"""The folder, where files of an index lie, in which that model itself is kept."""

Kind = Literal["auto", "flat", "hnsw", "ivf"]
IndexScore = Literal["direction", "expected-distance"]


@dataclass(frozen=True)
class Settings:
    """What was decided when the index was created; none of it changes later."""

    family: str
    dim: int
    variances: int
    """Numbers of doubt beside a location: 0 (points), 1 (scalar variance, or vmf's concentration), or dim."""
    kind: Kind = "auto"
    score: IndexScore = "direction"
    model: str | None = None
    identity: str = field(default_factory=lambda: secrets.token_hex(16))
    """Told apart by this: a cache of one index is never taken for another's."""

    def __post_init__(self) -> None:
        if self.family not in FAMILIES or self.family == "empirical":
            known = [name for name in FAMILIES if name != "empirical"]
            raise InputError(f"There is no family {self.family!r} for an index{nearest(self.family, known)}")
        if self.dim < 1 or (self.family == "vmf" and self.dim < 2):
            raise InputError(f"The dimension of a {self.family} index cannot be {self.dim}.")
        accepted = accepted_variances(self.family, self.dim)
        if self.variances not in accepted:
            raise InputError(
                f"A {self.family} index of dimension {self.dim} stores {' or '.join(map(str, accepted))} "
                f"variances per item, got {self.variances}."
            )
        check_choices(kind=self.kind, score=self.score)

    @property
    def width(self) -> int:
        """Numbers stored per item."""
        return self.dim + self.variances

    @property
    def is_gaussian(self) -> bool:
        """Whether distances are those of the raw space, not of the sphere."""
        return not FAMILIES[self.family].is_unit

    @property
    def ranking_score(self) -> IndexScore:
        """What vectors are ranked by: for points both scores rank alike."""
        return "direction" if self.family == "point" else self.score

    @property
    def takes_plain_vectors(self) -> bool:
        """Whether a vector without a variance is one with variance 0: ranked by L2 distance, of nobody's model."""
        return self.family == "gaussian" and self.score == "expected-distance" and self.model is None

    def record(self) -> dict[str, Any]:
        """As it is written down."""
        return asdict(self)

    def public_record(self) -> dict[str, Any]:
        """What was decided by people: all but the identity."""
        return {key: value for key, value in self.record().items() if key != "identity"}

    def copied(self) -> Settings:
        """The same for another index, with an identity of its own."""
        return Settings(**self.public_record())


def check_choices(*, kind: str, score: str) -> None:
    """Refuses a kind of search and a score that no index has."""
    for name, given, accepted in (("kind", kind, get_args(Kind)), ("score", score, get_args(IndexScore))):
        if given not in accepted:
            raise InputError(f"There is no {name} {given!r} of an index{nearest(str(given), accepted)}")


def settings_of(
    *, family: str, dim: int, variances: int | None, kind: Kind, model: str | None, score: IndexScore
) -> Settings:
    """Settings with the defaults of a family: what its items may bring; samples are kept as a vMF fit."""
    family = "vmf" if family == "empirical" else family
    if family == "vmf" or variances is None:
        variances = accepted_variances(family, dim)[-1]
    return Settings(family, int(dim), variances, kind=kind, model=model, score=score)


def accepted_variances(family: str, dim: int) -> tuple[int, ...]:
    """How many numbers of doubt an item of a family may have."""
    return {"point": (0,), "vmf": (1,)}.get(family, (1, dim))
